package mapper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
)

// A Query says which entities a job is over. What can be combined with what is listed in
// docs/queries.md; the rest is refused when a job starts.
type Query struct {
	// Kind is the kind of the entities. Kinds, in its place, are several, up to 100.
	Kind  string   `json:"kind,omitempty"`
	Kinds []string `json:"kinds,omitempty"`

	// Namespace is their namespace. Defaults to the empty one, or to that of Ancestor.
	// Namespaces, in its place, are several, up to 1,000; AllNamespaces are all that there are
	// when the job comes to them.
	Namespace     string   `json:"namespace,omitempty"`
	Namespaces    []string `json:"namespaces,omitempty"`
	AllNamespaces bool     `json:"all_namespaces,omitempty"`

	// Ancestor is a key. If set, only entities below it count, and the entity itself if it is
	// of the kind.
	Ancestor *datastore.Key `json:"ancestor,omitempty"`

	// Start and End are keys of the kind. If set, only entities from Start on count, or those
	// before End. They need not exist.
	Start *datastore.Key `json:"start,omitempty"`
	End   *datastore.Key `json:"end,omitempty"`

	// Filters are conditions on properties, all of which entities have to satisfy. An [Update]
	// checks them once more in its transaction. The function may change a property that is
	// filtered by: each entity is still processed once. The database may need composite
	// indexes: without them a job is refused at its start.
	Filters []Filter `json:"filters,omitempty"`

	// ShardBy is an indexed property, of integers, times, strings, blobs or floats, or of several
	// types, which are in Datastore's order. If set, the job goes through the entities in the
	// order of its values, and not of their keys, and is cut between values: what is filtered
	// by that property is then one range. Entities without that property are not seen, but
	// counted: see Status.Unsharded. The property must not be a list, which fails the entity,
	// and the function must not change it: that fails the entity, too. Filters on it have to be
	// "<", "<=", ">" or ">=".
	ShardBy string `json:"shard_by,omitempty"`

	// ReadTime has a job of a [Visit] see all entities as they were at that time, whoever changes
	// them meanwhile. Datastore keeps the last hour, of which any microsecond can be read; with
	// point-in-time recovery, seven days, of which whole minutes can. When a time has become too
	// old a job over it fails, and can't be resumed: so one that may take long needs a database
	// with point-in-time recovery, and a whole minute.
	ReadTime time.Time `json:"read_time,omitzero"`

	// KeysOnly has entities not read: the function gets their keys, and a Value that is zero.
	// For a [Visit] they are as they are when the keys are read, and a key read costs less than
	// an entity; the function of an [Update] can delete entities or put others, and one that has
	// gone meanwhile still counts. It does not go with ShardBy, nor an [Update] of it with
	// Filters.
	KeysOnly bool `json:"keys_only,omitempty"`

	times bool // the values of ShardBy are times
}

// normal returns the query as it is recorded, if it can be served.
func (q Query) normal(m mode) (Query, error) {
	q.ReadTime = q.ReadTime.UTC().Truncate(time.Microsecond)
	switch {
	case q.ReadTime.IsZero():
	case m == update:
		return q, errors.New("Query.ReadTime is for a Visit: an Update changes entities as they are now")
	case q.AllNamespaces:
		return q, errors.New("Query.ReadTime is set, and the database lists namespaces as they are now: name them in Query.Namespaces")
	}
	switch {
	case q.KeysOnly && q.ShardBy != "":
		return q, errors.New("Query.KeysOnly is set, and entities have to be read to tell whether that of Query.ShardBy has one value: it may be a list")
	case m == update && q.KeysOnly && len(q.Filters) > 0:
		return q, errors.New("Query.KeysOnly is set, and an Update has to read entities to check them against Query.Filters in its transaction")
	}
	if q.Ancestor != nil && q.Namespace == "" && len(q.Namespaces) == 0 && !q.AllNamespaces {
		q.Namespace = q.Ancestor.Namespace
	}
	q, err := q.normalSpaces()
	if err != nil {
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

// checkKeys checks the keys that bound the query.
func (q Query) checkKeys() error {
	if q.many() && (q.Start != nil || q.End != nil) {
		return errors.New("Query.Start and Query.End are keys of one kind in one namespace, and the query has several")
	}
	if a := q.Ancestor; a != nil {
		if len(q.Namespaces) > 0 || q.AllNamespaces {
			return errors.New("Query.Ancestor is in one namespace, and the query has several")
		}
		if err := errors.Join(keyspace.CheckKey(a), complete(a)); err != nil {
			return fmt.Errorf("Query.Ancestor: %w", err)
		}
		if a.Namespace != q.Namespace {
			return fmt.Errorf("Query.Ancestor is in the namespace %q, and Query.Namespace is %q", a.Namespace, q.Namespace)
		}
	}
	for i, k := range []*datastore.Key{q.Start, q.End} {
		if k == nil {
			continue
		}
		name := []string{"Query.Start", "Query.End"}[i]
		if err := errors.Join(keyspace.CheckKey(k), complete(k)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if k.Kind != q.Kind || k.Namespace != q.Namespace {
			return fmt.Errorf("%s %v is of the kind %q in the namespace %q, and not of the query's", name, k, k.Kind, k.Namespace)
		}
		if q.ShardBy != "" {
			return fmt.Errorf("%s bounds keys, and the job is sharded by the property %q: bound that by Query.Filters", name, q.ShardBy)
		}
	}
	if q.Start != nil && q.End != nil && keyspace.CompareKeys(q.Start, q.End) >= 0 {
		return fmt.Errorf("Query.Start %v is not before Query.End %v", q.Start, q.End)
	}
	return nil
}

func complete(k *datastore.Key) error {
	if k.Incomplete() {
		return errors.New("the key is incomplete")
	}
	return nil
}

// checkFilters checks filters that are normal by themselves.
func (q Query) checkFilters() error {
	either := 1
	for _, f := range q.Filters {
		switch {
		case f.Op == "in":
			if either *= len(f.Value.([]any)); either > maxIn {
				return fmt.Errorf("Query.Filters: all \"in\" together come to %d combinations, above the %d that Datastore allows", either, maxIn)
			}
			fallthrough
		case !f.ranges():
			if f.Property == q.ShardBy {
				return fmt.Errorf("Query.Filters: %q %s is on the property of Query.ShardBy, whose values it leaves none to cut between: shard by keys", f.Property, f.Op)
			}
		}
	}
	switch {
	case q.ShardBy == "":
		return nil
	case q.ShardBy == "__key__" || keyspace.Reserved(q.ShardBy):
		return fmt.Errorf("Query.ShardBy %q is reserved by Datastore; by keys is how jobs are sharded without it", q.ShardBy)
	case len(q.ShardBy) > keyspace.MaxName:
		return fmt.Errorf("Query.ShardBy is longer than %d bytes", keyspace.MaxName)
	}
	low, high := q.bounds()
	if low != nil && high != nil && keyspace.Compare(low, high) >= 0 {
		return fmt.Errorf("Query.Filters leave no values of %q", q.ShardBy)
	}
	return nil
}

// bounds returns the positions that all entities are between, the first one included: nil is
// no bound.
func (q Query) bounds() (low, high *keyspace.Position) {
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
				continue // each entity is checked against the filter anyway
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

// others returns the filters that are not on the property that the job is sharded by.
func (q Query) others() []Filter {
	if q.ShardBy == "" {
		return q.Filters
	}
	return slices.DeleteFunc(slices.Clone(q.Filters), func(f Filter) bool { return f.Property == q.ShardBy })
}

// ranged reports whether there is an inequality on a property that the job is not sharded by.
func (q Query) ranged() bool { return slices.ContainsFunc(q.others(), Filter.ranges) }

// whole reports whether the query is over whole kinds, by keys.
func (q Query) whole() bool {
	return q.Ancestor == nil && q.Start == nil && q.End == nil && len(q.Filters) == 0 && q.ShardBy == ""
}

// plain reports whether the query is over one whole kind, by keys: then a sample of that is one
// of its entities.
func (q Query) plain() bool { return q.whole() && !q.many() }

// base returns the Datastore query without an order, and without a range.
func (q Query) base() *datastore.Query {
	d := datastore.NewQuery(q.Kind).Namespace(q.Namespace)
	if q.Ancestor != nil {
		d = d.Ancestor(q.Ancestor)
	}
	for _, f := range q.others() {
		d = d.FilterField(f.Property, f.Op, f.Value)
	}
	return d
}

// sample returns the Datastore query for keys spread over all of the kind's entities.
func (q Query) sample(n int) *datastore.Query {
	return datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("__scatter__").KeysOnly().Limit(n)
}

// position returns the position of an entity, if it satisfies the query. One that has several
// values of the property that the job is sharded by is at the least of them that counts, and
// an error.
func (q Query) position(key *datastore.Key, properties []datastore.Property) (at *keyspace.Position, err error) {
	if !match(q.Filters, properties) {
		return nil, nil
	}
	if q.ShardBy == "" {
		return keyspace.At(key), nil
	}
	low, high := q.bounds()
	values := indexedValues(properties, q.ShardBy)
	slices.SortFunc(values, keyspace.CompareValues)
	for _, v := range values {
		p := &keyspace.Position{Valued: true, Value: v, Key: key}
		if low != nil && keyspace.Compare(p, low) < 0 || high != nil && keyspace.Compare(p, high) >= 0 {
			continue
		}
		if len(values) > 1 {
			err = fault.Permanent(fmt.Errorf("%w: it has %d values of it", errSharded, len(values)))
		}
		return p, err
	}
	return nil, nil
}

// sharded returns the values of an entity that the job is sharded by, and shares nothing with it.
func (q Query) sharded(properties []datastore.Property) (values []any) {
	if q.ShardBy == "" {
		return nil
	}
	for _, v := range indexedValues(properties, q.ShardBy) {
		values = append(values, property.CloneValue(v))
	}
	return values
}

// keeps returns an error if what the function does to an entity moves it in the order of the
// query, in which it had some values before.
func (q Query) keeps(p *keyspace.Position, before []any, e *effect) error {
	if q.ShardBy == "" {
		return nil
	}
	name, _, _ := strings.Cut(q.ShardBy, ".")
	for _, m := range e.mutations {
		if m.deletes || !m.key.Equal(p.Key) || !slices.Contains(m.changed, name) && !slices.Contains(m.changed, q.ShardBy) {
			continue
		}
		if !slices.EqualFunc(indexedValues(m.properties, q.ShardBy), before, func(a, b any) bool { return keyspace.CompareValues(a, b) == 0 }) {
			return fault.Permanent(fmt.Errorf("%w: the function has changed %q", errSharded, q.ShardBy))
		}
	}
	return nil
}

// errSharded says that an entity does not go with the property that the job is sharded by.
var errSharded = errors.New("the property that the job is sharded by has to have one value, which does not change")
