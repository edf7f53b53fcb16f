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

// Mappers returns all of the package's mappers, for mapper.EngineOptions.
func Mappers() []mapper.AnyMapper {
	return []mapper.AnyMapper{Count, Check, Touch, Delete, SetProperty, RenameProperty, DropProperties, Copy}
}

// Destroys reports whether the mapper of a name changes or deletes what is stored: its jobs should
// be rehearsed first.
func Destroys(name string) bool {
	return slices.Contains([]string{Delete.Name(), SetProperty.Name(), RenameProperty.Name(), DropProperties.Name(),
		EraseName}, name)
}

// An entity has whatever properties there are.
type entity = datastore.PropertyList

// CountParams are the parameters of [Count].
type CountParams struct {
	// By is a property, by whose values to count; empty: nothing. A dot leads into an entity
	// inside, or is part of the name, as in a filter.
	By string `json:"by,omitempty"`
}

// Validate is called when a job starts.
func (p CountParams) Validate() error {
	if p.By == "" {
		return nil
	}
	return checkProperty("by", p.By)
}

// Count is the mapper "count": it counts entities, under the counter "entities", and by the values
// of a property, if one is named: plan="free", and "plan (missing)" of those that do not have it.
// Values have different counters if they differ, also in their type: plan=5, plan=5.0, plan="5",
// plan=true, plan=null, and of other types what GQL has: seen=DATETIME("2026-10-24T00:00:00Z"),
// bank=KEY(NAMESPACE("acme"), Bank, 5), photo=BLOB("…"), and bank=KEY(PROJECT("other"), Bank, 5) of
// a key of another project, also inside an entity. A name of more than 100 bytes is cut off, and
// ends with a hash of all of it. An entity with several values counts for each, and an empty list
// is a value of its own, ARRAY(). A job has up to 40,000 counters, so a property with more values
// fails it.
var Count *mapper.Mapper[CountParams] = mapper.Visit("count", countEntity)

func countEntity(_ context.Context, e *mapper.Entity[entity], p CountParams) error {
	e.Count("entities", 1)
	if p.By == "" {
		return nil
	}
	counted := func(what string) { e.Count(value.Short(gql.Path(p.By)+what, longestCounter), 1) }
	there := false
	stored := e.Stored()
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

// longestCounter is how many bytes the name of a counter has at most.
const longestCounter = 100

// checkOwn returns an error if a name leads into an entity inside, as it does in a filter: what
// changes properties changes those of the entity itself.
func checkOwn(what string, e *mapper.Entity[entity], name string) error {
	if !value.Leads(e.Stored(), name) {
		return nil
	}
	return mapper.Permanent(fmt.Errorf("%s: %q leads into an entity inside, and only properties of the entity itself "+
		"can be changed", what, name))
}

func named(property string) func(datastore.Property) bool {
	return func(p datastore.Property) bool { return p.Name == property }
}

// Touch is the mapper "touch": it writes entities exactly as they are stored, so that an index that
// was added since, or a time-to-live policy, has them.
var Touch *mapper.Mapper[mapper.NoParams] = mapper.Update("touch", touchEntity)

func touchEntity(_ context.Context, e *mapper.Entity[entity], _ mapper.NoParams) error {
	e.Touch()
	return nil
}

// Delete is the mapper "delete": it deletes entities.
var Delete *mapper.Mapper[mapper.NoParams] = mapper.Update("delete", deleteEntity)

func deleteEntity(_ context.Context, e *mapper.Entity[entity], _ mapper.NoParams) error {
	e.Delete(e.Key)
	return nil
}

// SetPropertyParams are the parameters of [SetProperty]. Property and value are required; null is a
// value.
type SetPropertyParams struct {
	Property string `json:"property"`
	Value    Value  `json:"value"`
	NoIndex  bool   `json:"noindex,omitempty"`
}

// Validate is called when a job starts.
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

// checkProperty returns what is wrong with a parameter that names a property.
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

// maxName is how many bytes the name of a property or a kind has at most.
const maxName = 1500

// SetProperty is the mapper "set": it sets a property to a value, and leaves entities that have it
// already.
var SetProperty *mapper.Mapper[SetPropertyParams] = mapper.Update("set", setProperty)

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

// A Value is what a property is set to, in the JSON of a filter's value (see mapper.Filter): a
// number, a text, true, null, or {"time": "2026-10-24T00:00:00Z"}.
type Value struct {
	V any

	given bool // by JSON
}

// MarshalJSON writes it.
func (v Value) MarshalJSON() ([]byte, error) {
	stored, err := pbvalue.Of(v.V, true)
	if err != nil {
		return nil, err
	}
	return value.JSON{V: pbvalue.Go(stored)}.MarshalJSON()
}

// UnmarshalJSON reads it.
func (v *Value) UnmarshalJSON(text []byte) error {
	var j value.JSON
	if err := j.UnmarshalJSON(text); err != nil {
		return fmt.Errorf("the value: %w", err)
	}
	v.V, v.given = j.V, true
	return nil
}

// RenamePropertyParams are the parameters of [RenameProperty].
type RenamePropertyParams struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Validate is called when a job starts.
func (p RenamePropertyParams) Validate() error {
	err := cmp.Or(checkProperty("from", p.From), checkProperty("to", p.To))
	if err == nil && p.From == p.To {
		err = fmt.Errorf(`"from" and "to" are both %q`, p.From)
	}
	return err
}

// RenameProperty is the mapper "rename": it gives a property another name. Entities without the
// property stay as they are, and one that has both is a failure, as one of them would be lost.
var RenameProperty *mapper.Mapper[RenamePropertyParams] = mapper.Update("rename", renameProperty)

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

// DropPropertiesParams are the parameters of [DropProperties].
type DropPropertiesParams struct {
	Properties []string `json:"properties"`
}

// Validate is called when a job starts.
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

// DropProperties is the mapper "drop": it removes properties. Entities without them stay as they
// are.
var DropProperties *mapper.Mapper[DropPropertiesParams] = mapper.Update("drop", dropProperties)

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

// CopyParams are the parameters of [Copy].
type CopyParams struct {
	Kind      string  `json:"kind,omitempty"`      // of the copies; empty: that of the entities
	Namespace *string `json:"namespace,omitempty"` // of the copies; absent: that of the entities
}

// Validate is called when a job starts.
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

// Copy is the mapper "copy": it copies entities exactly as they are stored to another kind, or
// namespace, under the same names and ids. A copy that is there is overwritten.
var Copy = copies.WithStarter(startCopy).CheckByName(func(params json.RawMessage) error {
	return mapper.CheckParams(params, new(CopyParams))
})

// startCopy starts a copy by its name, unless the copies would be the entities themselves.
func startCopy(ctx context.Context, e *mapper.Engine, q mapper.Query, params json.RawMessage,
	o *mapper.StartOptions) (*mapper.Job, error) {
	var p CopyParams
	if err := mapper.CheckParams(params, &p); err != nil {
		return nil, fmt.Errorf("copy: %w", err)
	}
	several := q.AllNamespaces || len(q.Namespaces) > 0
	stays := p.Namespace == nil || !several && *p.Namespace == q.Namespace ||
		slices.Contains(q.Namespaces, *p.Namespace)
	if stays && (p.Kind == "" || p.Kind == q.Kind || slices.Contains(q.Kinds, p.Kind)) {
		return nil, fmt.Errorf("copy: %w: copies of the query's entities would be the entities themselves: "+
			"name another kind or namespace", mapper.ErrInvalidArgument)
	}
	return copies.Start(ctx, e, q, p, o)
}

// copies is Copy, before it is known how it is started by its name.
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
	e.PutStored(&to, e.Stored())
	return nil
})

// moved returns a key in another namespace, with its parents.
func moved(k *datastore.Key, namespace string) *datastore.Key {
	if k == nil {
		return nil
	}
	c := *k
	c.Namespace, c.Parent = namespace, moved(k.Parent, namespace)
	return &c
}
