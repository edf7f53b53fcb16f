package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Query selects the entities of a job. See mapper.Query for the meaning of its fields. It is
// stored as JSON in the job's record.
type Query struct {
	Kind          string         `json:"kind,omitempty"`
	Kinds         []string       `json:"kinds,omitempty"`
	Namespace     string         `json:"namespace,omitempty"`
	Namespaces    []string       `json:"namespaces,omitempty"`
	AllNamespaces bool           `json:"all_namespaces,omitempty"`
	Ancestor      *datastore.Key `json:"ancestor,omitempty"`
	Start         *datastore.Key `json:"start,omitempty"`
	End           *datastore.Key `json:"end,omitempty"`
	Filters       []Filter       `json:"filters,omitempty"`
	ShardBy       string         `json:"shard_by,omitempty"`
	ReadTime      time.Time      `json:"read_time,omitzero"`
	KeysOnly      bool           `json:"keys_only,omitempty"`

	// Share is the share of all keys to which the query is limited. In JSON, one of the Filters
	// stands for it.
	Share Share `json:"-"`

	// Times says that the values of the property in ShardBy are times.
	Times bool `json:"-"`
}

// Normal returns the query in the normal form in which it is stored, or an error if it is invalid.
// The argument updates says that the job's mapper may write the entities.
func (q Query) Normal(updates bool) (Query, error) {
	q.ReadTime = q.ReadTime.UTC().Truncate(time.Microsecond)
	var err error
	if q.Share, q.Filters, err = splitShare(q.WithShare()); err != nil {
		return q, err
	}
	if err := q.checkReads(updates); err != nil {
		return q, err
	}
	// An Update that reads only keys can't change the property of the inequality. So the job can
	// process entities in the order of this property's values, which needs no composite index.
	if by, one := q.rangedBy(); one && updates && q.KeysOnly && q.Start == nil && q.End == nil {
		q.ShardBy = by
	}
	if q.Ancestor != nil && q.Namespace == "" && len(q.Namespaces) == 0 && !q.AllNamespaces {
		q.Namespace = q.Ancestor.Namespace
	}
	if q, err = q.normalSpaces(); err != nil {
		return q, err
	}
	if err := q.checkKeys(); err != nil {
		return q, err
	}
	filters := make([]Filter, len(q.Filters))
	for i, f := range q.Filters {
		var err error
		if filters[i], err = f.normal(); err != nil {
			return q, err
		}
	}
	if q.Filters = filters; len(filters) == 0 {
		q.Filters = nil
	}
	return q, q.checkFilters()
}

// checkReads returns an error if the query reads only keys or past data, and the job can't work
// with it. The argument updates says that the job's mapper writes entities.
func (q Query) checkReads(updates bool) error {
	switch {
	case q.ReadTime.IsZero():
	case updates:
		return setting.Errorf("Query.ReadTime is for a Visit: an Update changes entities as they are now")
	case q.AllNamespaces:
		return setting.Errorf("Query.ReadTime and Query.AllNamespaces are set, but the database can't list the " +
			"namespaces of an earlier time: name them in Query.Namespaces")
	}
	if !updates && q.KeysOnly && q.ShardBy != "" {
		return setting.Errorf("Query.KeysOnly and Query.ShardBy are set, but a Visit can't have both: with ShardBy, " +
			"it must read the entities to see whether the property is a list")
	}
	return nil
}

// WithShare returns the query's filters. If the query is limited to a share of all keys, the result
// has one more filter, which stands for the share.
func (q Query) WithShare() []Filter {
	if q.Share.All() {
		return q.Filters
	}
	return append(slices.Clip(q.Filters), q.Share.Filter())
}

// MarshalJSON returns the query in the form in which it is stored.
func (q Query) MarshalJSON() ([]byte, error) {
	type plain Query
	p := plain(q)
	p.Filters = q.WithShare()
	return json.Marshal(p)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (q *Query) UnmarshalJSON(text []byte) error { return decode(q, text, false) }

// decode reads a query from its stored form. If wholly is set, it returns an error for an unknown
// field.
func decode(q *Query, text []byte, wholly bool) error {
	type plain Query
	d := json.NewDecoder(bytes.NewReader(text))
	if wholly {
		d.DisallowUnknownFields()
	}
	if err := d.Decode((*plain)(q)); err != nil {
		return err
	}
	var err error
	q.Share, q.Filters, err = splitShare(q.Filters)
	return err
}

// checkKeys checks the keys in the query: its ancestor, start and end.
func (q Query) checkKeys() error {
	if q.Many() && (q.Start != nil || q.End != nil) {
		return setting.Errorf("Query.Start and Query.End are keys of one kind in one namespace, but the query has " +
			"several kinds or namespaces")
	}
	if a := q.Ancestor; a != nil {
		if len(q.Namespaces) > 0 || q.AllNamespaces {
			return setting.Errorf("Query.Ancestor is in one namespace, but the query has several namespaces")
		}
		if err := errors.Join(keyspace.CheckKey(a), complete(a)); err != nil {
			return setting.Errorf("Query.Ancestor: %w", err)
		}
		if a.Namespace != q.Namespace {
			return setting.Errorf("Query.Ancestor is in the namespace %q, and Query.Namespace is %q", a.Namespace,
				q.Namespace)
		}
	}
	for i, k := range []*datastore.Key{q.Start, q.End} {
		if k == nil {
			continue
		}
		name := []setting.Name{"Query.Start", "Query.End"}[i]
		if err := errors.Join(keyspace.CheckKey(k), complete(k)); err != nil {
			return setting.Errorf("%s: %w", name, err)
		}
		if k.Kind != q.Kind || k.Namespace != q.Namespace {
			return setting.Errorf("%s %v is of the kind %q in the namespace %q, want the query's", name, k,
				k.Kind,
				k.Namespace)
		}
		if q.ShardBy != "" {
			return setting.Errorf("%s bounds keys, but the job is sharded by the property %q: bound this "+
				"property by Query.Filters", name, q.ShardBy)
		}
	}
	if q.Start != nil && q.End != nil && keyspace.CompareKeys(q.Start, q.End) >= 0 {
		return setting.Errorf("Query.Start %s is not before Query.End %s", names.Key(q.Start), names.Key(q.End))
	}
	return nil
}

func complete(k *datastore.Key) error {
	if k.Incomplete() {
		return errors.New("the key is incomplete")
	}
	return nil
}

// checkFilters returns an error if Datastore can't combine the query's filters. They must be in
// their normal form.
func (q Query) checkFilters() error {
	either := 1
	for _, f := range q.Filters {
		switch {
		case f.Op == "in":
			if either *= len(f.Value.([]any)); either > maxIn {
				return setting.Errorf("Query.Filters: all \"in\" together come to %d combinations, above the %d that "+
					"Datastore allows", either, maxIn)
			}
			fallthrough
		case !f.ranges():
			if f.Property == q.ShardBy {
				return setting.Errorf("Query.Filters: %q %s is on the property of Query.ShardBy, and leaves no "+
					"values to cut between: shard by keys", f.Property, f.Op)
			}
		}
	}
	switch {
	case q.ShardBy == "":
		return nil
	case q.ShardBy == "__key__" || names.Reserved(q.ShardBy):
		return setting.Errorf("Query.ShardBy %q is reserved by Datastore: leave it empty to shard by keys",
			q.ShardBy)
	case len(q.ShardBy) > keyspace.MaxName:
		return setting.Errorf("Query.ShardBy is longer than %d bytes", keyspace.MaxName)
	}
	low, high := q.Bounds()
	if low != nil && high != nil && keyspace.Compare(low, high) >= 0 {
		return setting.Errorf("Query.Filters leave no values of %q", q.ShardBy)
	}
	return nil
}

// Bounds returns positions that limit where the query's entities are: at low or after it, and
// before high. A nil position is no limit.
func (q Query) Bounds() (low, high *keyspace.Position) {
	if q.Start != nil {
		low = keyspace.At(q.Start)
	}
	if q.End != nil {
		high = keyspace.At(q.End)
	}
	for _, f := range q.Filters {
		if f.Property != q.ShardBy || q.ShardBy == "" {
			continue
		}
		v := f.Value
		if f.Op == ">" || f.Op == "<=" {
			var ok bool
			if v, ok = keyspace.Next(v); !ok {
				continue // each entity is checked against this filter later
			}
		}
		p := &keyspace.Position{Namespace: q.Namespace, Kind: q.Kind, Valued: true, Value: v}
		switch f.Op {
		case ">", ">=":
			if low == nil || keyspace.Compare(low, p) < 0 {
				low = p
			}
		default:
			if high == nil || keyspace.Compare(p, high) < 0 {
				high = p
			}
		}
	}
	return low, high
}

// Others returns the query's filters, except the filters on the property in ShardBy.
func (q Query) Others() []Filter {
	if q.ShardBy == "" {
		return q.Filters
	}
	return slices.DeleteFunc(slices.Clone(q.Filters), func(f Filter) bool { return f.Property == q.ShardBy })
}

// rangedBy returns the property of the query's inequalities. The bool one is true if there are
// inequalities, all are on this property, and the query has no ShardBy.
func (q Query) rangedBy() (property string, one bool) {
	for _, f := range q.Filters {
		if f.ranges() && property != "" && f.Property != property {
			return "", false
		}
		if f.ranges() {
			property = f.Property
		}
	}
	return property, property != "" && q.ShardBy == ""
}

// WithoutIndex returns an error whose text says how to change the query so that it needs no
// composite index. The text is meant to follow the error about the missing index. WithoutIndex
// returns nil if there is no such change.
func (q Query) WithoutIndex() error {
	by, one := q.rangedBy()
	if !one || q.Ancestor != nil || q.Start != nil || q.End != nil ||
		slices.ContainsFunc(q.Filters, func(f Filter) bool {
			return !f.ranges()
		}) {
		return nil
	}
	return setting.Errorf("do without by Query.ShardBy %q, for a function that does not change that property, or by "+
		"Query.KeysOnly, for an Update that only deletes", by)
}

// Unread reports whether a job needs only the keys of its entities. The argument updates says that
// its mapper writes entities. Such a job must read them if there are filters, because its
// transactions check the filters again.
func (q Query) Unread(updates bool) bool {
	return q.KeysOnly && (!updates || len(q.Filters) == 0 && q.ShardBy == "")
}

// ranged reports whether there is an inequality on a property other than the one in ShardBy.
func (q Query) ranged() bool { return slices.ContainsFunc(q.Others(), Filter.ranges) }

// Whole reports whether the query selects all entities of its kinds, in the order of keys.
func (q Query) Whole() bool {
	return q.Ancestor == nil && q.Start == nil && q.End == nil && len(q.Filters) == 0 && q.ShardBy == ""
}

// Plain reports whether the query selects all entities of one kind in one namespace, in the order
// of keys. Then a random sample of the kind is also one of the query's entities.
func (q Query) Plain() bool { return q.Whole() && !q.Many() }

// Base returns the Datastore query for all entities of the query, without an order.
func (q Query) Base() *datastore.Query {
	d := datastore.NewQuery(q.Kind).Namespace(q.Namespace)
	if q.Ancestor != nil {
		d = d.Ancestor(q.Ancestor)
	}
	for _, f := range q.Others() {
		d = d.FilterField(names.Field(f.Property), f.Op, f.Value)
	}
	return d
}

// Sample returns the Datastore query for a random sample of up to n keys of the kind. Its order
// __scatter__ is a property with random values, which Datastore gives to a random part of the
// entities.
func (q Query) Sample(n int) *datastore.Query {
	return datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("__scatter__").KeysOnly().Limit(n)
}

// Position returns where an entity is in the query's order, or nil if the entity does not satisfy
// the query. If the entity has several values of the property in ShardBy, Position returns an
// error, together with the position of the least value inside the query's bounds.
func (q Query) Position(key *datastore.Key, e *pb.Entity) (at *keyspace.Position, err error) {
	if !match(q.Filters, e) {
		return nil, nil
	}
	if q.ShardBy == "" {
		return keyspace.At(key), nil
	}
	low, high := q.Bounds()
	values := property.Indexed(e, q.ShardBy)
	slices.SortFunc(values, value.Compare)
	for _, v := range values {
		p := &keyspace.Position{Valued: true, Value: v, Key: key}
		if low != nil && keyspace.Compare(p, low) < 0 || high != nil && keyspace.Compare(p, high) >= 0 {
			continue
		}
		if len(values) > 1 {
			err = fault.Permanent(fmt.Errorf("%w: it has %d values", errSharded, len(values)))
		}
		return p, err
	}
	return nil, nil
}

// Matches reports whether an entity satisfies the query's filters.
func (q Query) Matches(e *pb.Entity) bool { return match(q.Filters, e) }

// Keeps returns an error if the function has moved an entity to another place in the query's order.
// The argument before is the entity before the call. The properties with the names in changed have
// new values in after.
func (q Query) Keeps(before *pb.Entity, changed []string, after *pb.Entity) error {
	leads := func(name string) bool { // a name with a dot may be inside the property before the dot
		return name == q.ShardBy || strings.HasPrefix(q.ShardBy, name+".")
	}
	if q.ShardBy == "" || !slices.ContainsFunc(changed, leads) {
		return nil
	}
	is := &pb.Entity{Properties: maps.Clone(before.GetProperties())}
	for _, name := range changed {
		delete(is.Properties, name)
		if v := after.GetProperties()[name]; v != nil {
			is.Properties[name] = v
		}
	}
	same := func(a, b any) bool { return value.Compare(a, b) == 0 }
	if !slices.EqualFunc(property.Indexed(before, q.ShardBy), property.Indexed(is, q.ShardBy), same) {
		return fault.Permanent(fmt.Errorf("%w: the function has changed %q", errSharded, q.ShardBy))
	}
	return nil
}

// errSharded is the error for an entity that has several values of the property in ShardBy, or in
// which the function has changed this property.
var errSharded = errors.New("the property that the job is sharded by must have one value, and must not change")

// ErrNewer says that a newer build has started the job, and that this build does not know a part of
// its query, or a setting.
var ErrNewer = errors.New("a newer version has started the job, and this one does not know all of it. Deploy the " +
	"newer version, or abort the job")

// Of returns the query of a job from the job's record. It returns [ErrNewer] if a newer build has
// stored a part of the query, or a setting, that this build does not know. Otherwise this build
// would process the wrong entities, or process them in the wrong way. If you add such a setting,
// jobs that use it must name it in [record.Job.Needs].
func Of(j *record.Job) (Query, error) {
	var q Query
	if len(j.Needs) > 0 {
		return q, fmt.Errorf("job %s: %w: it needs %s", j.ID, ErrNewer, strings.Join(j.Needs, ", "))
	}
	if err := decode(&q, j.Query, true); err != nil {
		return q, fmt.Errorf("job %s: %w: query: %w", j.ID, ErrNewer, err)
	}
	q.Times = j.Times
	return q, nil
}
