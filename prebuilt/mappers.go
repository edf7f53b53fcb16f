package prebuilt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper"
)

// Mappers returns all mappers of this package except [Erase], for mapper.EngineOptions.
func Mappers() []mapper.AnyMapper {
	return []mapper.AnyMapper{Count, Check, Touch, Delete, SetProperty, RenameProperty, DropProperties, Copy}
}

// Destroys reports whether the mapper of that name overwrites or deletes the entities of its query.
// Rehearse its jobs first. [Copy] is not among these mappers, but a copy may overwrite another
// entity.
func Destroys(name string) bool {
	return slices.Contains([]string{Delete.Name(), SetProperty.Name(), RenameProperty.Name(), DropProperties.Name(),
		EraseName}, name)
}

// An entity is the type of entities in this package. It holds any properties.
type entity = datastore.PropertyList

// CountParams are the parameters of [Count].
type CountParams struct {
	// By is a property: entities are counted by its values. By default there is only the count of
	// all entities. A dot leads into an embedded entity, or is part of the name, as in a filter.
	By string `json:"by,omitempty"`
}

// Validate implements mapper.Validator.
func (p CountParams) Validate() error {
	if p.By == "" {
		return nil
	}
	return checkProperty("by", p.By)
}

// Count is the mapper "count". It counts entities, in the counter "entities". With [CountParams].By
// it also counts them by the values of a property:
//
//   - Values of different types have different counters: plan="free", plan=5, plan=5.0, plan=true
//     and plan=null.
//   - Other types are written as in GQL: seen=DATETIME("2026-10-24T00:00:00Z"), photo=BLOB("…"),
//     and bank=KEY(NAMESPACE("acme"), Bank, 5). A key of another project has PROJECT("other").
//   - "plan (missing)" counts the entities without the property.
//   - An entity with several values counts for each of them. An empty list counts as ARRAY().
//   - A name of more than 100 bytes is shortened, and ends with a hash of the whole name.
//
// A job has up to 40,000 counters. If a property has more values, the job fails.
var Count *mapper.Mapper[CountParams] = mapper.Visit("count", countEntity).WithDescription(
	"Counts entities, also by the values of a property. It changes nothing.")

func countEntity(_ context.Context, e *mapper.Entity[entity], p CountParams) error {
	e.Count("entities", 1)
	if p.By == "" {
		return nil
	}
	counted := func(what string) { e.Count(value.Short(gql.Path(p.By)+what, longestCounter), 1) }
	there := false
	stored, err := read("count", e)
	if err != nil {
		return err
	}
	value.Each(stored, p.By, func(v *pb.Value) {
		there = true
		values := value.Elements(v)
		if len(values) == 0 {
			counted("=" + value.Text([]any{}))
		}
		for _, el := range values {
			counted("=" + value.Text(value.Go(stored, el)))
		}
	})
	if !there {
		counted(" (missing)")
	}
	return nil
}

// longestCounter is the largest size of a counter's name in bytes.
const longestCounter = 100

// read returns the stored properties of an entity. Errors start with the parameter what, the
// mapper's name. It returns an error if the job's query is KeysOnly.
func read(what string, e *mapper.Entity[entity]) (*pb.Entity, error) {
	stored := e.Stored()
	if stored == nil {
		return nil, mapper.Permanent(fmt.Errorf("%s: %w", what, errKeysOnly))
	}
	return stored, nil
}

var errKeysOnly = errors.New("the job's query reads only keys (keys_only), and not the entities")

// checkOwn returns an error if a property's name, such as "address.city", leads into an embedded
// entity. Mappers that change properties change only properties of the entity itself. Errors start
// with the parameter what, the mapper's name.
func checkOwn(what string, e *mapper.Entity[entity], name string) error {
	stored, err := read(what, e)
	if err != nil {
		return err
	}
	if !value.Leads(stored, name) {
		return nil
	}
	return mapper.Permanent(fmt.Errorf("%s: %q leads into an entity inside, and only properties of the entity itself "+
		"can be changed", what, name))
}

func named(property string) func(datastore.Property) bool {
	return func(p datastore.Property) bool { return p.Name == property }
}

// Touch is the mapper "touch". It writes entities exactly as they are stored. Use it after you have
// added an index or a time-to-live policy.
var Touch *mapper.Mapper[mapper.NoParams] = mapper.Update("touch", touchEntity).WithDescription(
	"Writes entities again unchanged, so that new indexes have them.")

func touchEntity(_ context.Context, e *mapper.Entity[entity], _ mapper.NoParams) error {
	e.Touch()
	return nil
}

// Delete is the mapper "delete". It deletes the entities of the query.
var Delete *mapper.Mapper[mapper.NoParams] = mapper.Update("delete", deleteEntity).WithDescription(
	"Deletes entities.")

func deleteEntity(_ context.Context, e *mapper.Entity[entity], _ mapper.NoParams) error {
	e.Delete(e.Key)
	return nil
}

// SetPropertyParams are the parameters of [SetProperty]. Property and Value are required; null is a
// value. NoIndex excludes the property from indexes.
type SetPropertyParams struct {
	Property string `json:"property"`
	Value    Value  `json:"value"`
	NoIndex  bool   `json:"noindex,omitempty"`
}

// Validate implements mapper.Validator.
func (p SetPropertyParams) Validate() error {
	if err := checkProperty("property", p.Property); err != nil {
		return err
	}
	if !p.Value.given {
		return errors.New(`"value" is missing: what is the property set to? null is written as null`)
	}
	if _, err := pbvalue.Of(p.Value.V, p.NoIndex); err != nil {
		return fmt.Errorf(`"value": %w`, err)
	}
	return nil
}

// checkProperty returns an error if the value of the parameter param is no valid name of a
// property.
func checkProperty(param, property string) error {
	switch {
	case property == "":
		return fmt.Errorf("%q is missing: it names a property", param)
	case len(property) > maxName || !utf8.ValidString(property):
		return fmt.Errorf("%q is longer than %d bytes or not UTF-8", param, maxName)
	case names.Reserved(property):
		return fmt.Errorf("%q is %q, which is reserved by Datastore", param, property)
	}
	return nil
}

// maxName is the largest size of a property's or kind's name in bytes.
const maxName = 1500

// SetProperty is the mapper "set". It sets a property to a value. Entities that already have this
// value, with the same index setting, are not written.
var SetProperty *mapper.Mapper[SetPropertyParams] = mapper.Update("set", setProperty).WithDescription(
	"Sets a property to a value.")

func setProperty(_ context.Context, e *mapper.Entity[entity], p SetPropertyParams) error {
	if err := checkOwn("set", e, p.Property); err != nil {
		return err
	}
	property := datastore.Property{Name: p.Property, Value: p.Value.V, NoIndex: p.NoIndex}
	if i := slices.IndexFunc(e.Value, named(p.Property)); i >= 0 {
		e.Value[i] = property
		return nil
	}
	e.Value = append(e.Value, property)
	return nil
}

// A Value is a property's value. V has one of the types of [mapper.Filter].Value. Its JSON is the
// same as in a filter: a number, a text, true, null, or an object such as {"time":
// "2026-10-24T00:00:00Z"}.
type Value struct {
	V any

	given bool // whether the JSON had a value, which may be null
}

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) {
	stored, err := pbvalue.Of(v.V, true)
	if err != nil {
		return nil, err
	}
	return value.JSON{V: pbvalue.Go(stored)}.MarshalJSON()
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value) UnmarshalJSON(text []byte) error {
	var j value.JSON
	if err := j.UnmarshalJSON(text); err != nil {
		return fmt.Errorf("the value: %w", err)
	}
	v.V, v.given = j.V, true
	return nil
}

// RenamePropertyParams are the parameters of [RenameProperty]. From and To are required.
type RenamePropertyParams struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Validate implements mapper.Validator.
func (p RenamePropertyParams) Validate() error {
	err := cmp.Or(checkProperty("from", p.From), checkProperty("to", p.To))
	if err == nil && p.From == p.To {
		err = fmt.Errorf(`"from" and "to" are both %q`, p.From)
	}
	return err
}

// RenameProperty is the mapper "rename". It gives a property another name. Entities without the
// property are not written. An entity that has both properties is a failure, because one of them
// would be lost.
var RenameProperty *mapper.Mapper[RenamePropertyParams] = mapper.Update("rename", renameProperty).WithDescription(
	"Renames a property.")

func renameProperty(_ context.Context, e *mapper.Entity[entity], p RenamePropertyParams) error {
	if err := cmp.Or(checkOwn("rename", e, p.From), checkOwn("rename", e, p.To)); err != nil {
		return err
	}
	from := slices.IndexFunc(e.Value, named(p.From))
	switch {
	case from < 0:
		return mapper.Skip
	case slices.ContainsFunc(e.Value, named(p.To)):
		return mapper.Permanent(fmt.Errorf("rename: the entity has both %q and %q", p.From, p.To))
	}
	e.Value[from].Name = p.To
	return nil
}

// DropPropertiesParams are the parameters of [DropProperties]. Properties has the names of one or
// more properties.
type DropPropertiesParams struct {
	Properties []string `json:"properties"`
}

// Validate implements mapper.Validator.
func (p DropPropertiesParams) Validate() error {
	if len(p.Properties) == 0 {
		return errors.New(`"properties" is missing, or empty: it names those to remove`)
	}
	for i, name := range p.Properties {
		if err := checkProperty(fmt.Sprintf("properties[%d]", i), name); err != nil {
			return err
		}
	}
	return nil
}

// DropProperties is the mapper "drop". It removes properties. Entities that have none of them are
// not written.
var DropProperties *mapper.Mapper[DropPropertiesParams] = mapper.Update("drop", dropProperties).WithDescription(
	"Removes properties.")

func dropProperties(_ context.Context, e *mapper.Entity[entity], p DropPropertiesParams) error {
	for _, name := range p.Properties {
		if err := checkOwn("drop", e, name); err != nil {
			return err
		}
	}
	e.Value = slices.DeleteFunc(e.Value, func(q datastore.Property) bool {
		return slices.Contains(p.Properties, q.Name)
	})
	return nil
}

// CopyParams are the parameters of [Copy]. Kind or Namespace is required.
type CopyParams struct {
	Kind string `json:"kind,omitempty"` // the kind of the copies; empty: the kind of the entity
	// the namespace of the copies; absent: the namespace of the entity
	Namespace *string `json:"namespace,omitempty"`
	// Insert overwrites nothing: if there is an entity with the key of a copy, the copied entity is
	// a failure that names both.
	Insert bool `json:"insert,omitempty"`
}

// Validate implements mapper.Validator.
func (p CopyParams) Validate() error {
	switch {
	case p.Kind == "" && p.Namespace == nil:
		return errors.New(`"kind" and "namespace" are both missing: the copies would be the entities themselves`)
	case names.Reserved(p.Kind):
		return fmt.Errorf(`"kind" is %q, which is reserved by Datastore`, p.Kind)
	case len(p.Kind) > maxName || !utf8.ValidString(p.Kind):
		return fmt.Errorf(`"kind" is longer than %d bytes or not UTF-8`, maxName)
	case (p.Namespace == nil || *p.Namespace == "") && names.Ours("", p.Kind):
		return fmt.Errorf(`"kind" is %q, one of those that hold scattermap's own records`, p.Kind)
	case p.Namespace != nil && !names.Namespace(*p.Namespace):
		return fmt.Errorf(
			`"namespace" is %.110q, which is reserved, or not up to 100 letters, digits, '.', '_' and '-'`,
			*p.Namespace)
	}
	return nil
}

// Copy is the mapper "copy". It copies entities, exactly as they are stored, to another kind or
// namespace. A copy has the name or ID of its entity, and the same parents. If an entity with that
// key exists, the copy overwrites it, unless [CopyParams].Insert is set.
//
// Without Insert, a start by name refuses to copy several kinds to one, or several namespaces to
// one. Copies of entities with the same name or ID would overwrite each other.
var Copy *mapper.Mapper[CopyParams] = copies.WithStarter(startCopy).
	CheckByName(nil, func(params json.RawMessage) error { return mapper.CheckParams(params, new(CopyParams)) })

// startCopy starts a job of [Copy] by name. It refuses to copy entities onto themselves, and to
// copy several entities to one key.
func startCopy(ctx context.Context, e *mapper.Engine, q mapper.Query, params json.RawMessage,
	o *mapper.StartOptions) (*mapper.Job, error) {
	var p CopyParams
	if err := mapper.CheckParams(params, &p); err != nil {
		return nil, fmt.Errorf("copy: %w", err)
	}
	if q.KeysOnly {
		return nil, fmt.Errorf("copy: %w: %w", mapper.ErrInvalidArgument, errKeysOnly)
	}
	if q.Namespace == "" && q.Ancestor != nil {
		q.Namespace = q.Ancestor.Namespace
	}
	several := q.AllNamespaces || len(q.Namespaces) > 0
	stays := p.Namespace == nil || !several && *p.Namespace == q.Namespace ||
		slices.Contains(q.Namespaces, *p.Namespace)
	if stays && (p.Kind == "" || p.Kind == q.Kind || slices.Contains(q.Kinds, p.Kind)) {
		return nil, fmt.Errorf("copy: %w: copies of the query's entities would be the entities themselves: "+
			"name another kind or namespace", mapper.ErrInvalidArgument)
	}
	if p.Insert {
		return copies.Start(ctx, e, q, p, o)
	}
	for _, merge := range []struct {
		is   bool
		what string
	}{{p.Kind != "" && len(q.Kinds) > 1, "kind"},
		{p.Namespace != nil && (q.AllNamespaces || len(q.Namespaces) > 1), "namespace"}} {
		if merge.is {
			return nil, fmt.Errorf("copy: %w: copies from several %ss into one would overwrite each other if entities "+
				`have the same name or ID: set "insert", which makes such an entity a failure, or start a job for `+
				"each %s", mapper.ErrInvalidArgument, merge.what, merge.what)
		}
	}
	return copies.Start(ctx, e, q, p, o)
}

// copies is the mapper [Copy] without its starter. It is a separate variable because startCopy uses
// it, and Copy can't refer to itself.
var copies = mapper.Update("copy", func(_ context.Context, e *mapper.Entity[entity], p CopyParams) error {
	to := *e.Key
	if p.Kind != "" {
		to.Kind = p.Kind
	}
	if p.Namespace != nil {
		to.Namespace, to.Parent = *p.Namespace, moved(to.Parent, *p.Namespace)
	}
	if to.Equal(e.Key) {
		return mapper.Permanent(errors.New("copy: the copy would be the entity itself: name another kind or namespace"))
	}
	if names.Ours(to.Namespace, to.Kind) {
		return mapper.Permanent(fmt.Errorf("copy: the kind %q of the default namespace holds scattermap's own records",
			to.Kind))
	}
	stored, err := read("copy", e)
	switch {
	case err != nil:
	case p.Insert:
		e.InsertStored(&to, stored)
	default:
		e.PutStored(&to, stored)
	}
	return err
}).WithDescription("Copies entities into another kind or namespace.")

// moved returns a key with the same path in another namespace.
func moved(k *datastore.Key, namespace string) *datastore.Key {
	if k == nil {
		return nil
	}
	c := *k
	c.Namespace, c.Parent = namespace, moved(k.Parent, namespace)
	return &c
}
