package mapper

import (
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// A Query says which entities a job is over. What can be combined with what is listed in
// docs/queries.md; the rest is refused when a job starts.
type Query struct {
	// Kind is the kind of the entities. Kinds, in its place, are several, up to 500.
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
	// counted: see Status.WithoutShardBy. The property must not be a list, which fails the entity,
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
	// an entity; it does not go with ShardBy. The function of an [Update] can delete entities or
	// put others, and one that has gone meanwhile still counts. With Filters or ShardBy an
	// [Update] does read its entities, to check each once more before it is deleted, and they
	// cost what they would cost without KeysOnly. If its inequalities are on one property, and
	// there is no Start and no End, it is sharded by that, as by ShardBy: so what is older than a
	// time is deleted without a composite index.
	KeysOnly bool `json:"keys_only,omitempty"`
}

// A Filter is a condition that a query's entities satisfy.
type Filter struct {
	// Property is the name of an indexed property. Those of entities inside have dots in
	// their names.
	Property string

	// Op is "=", "<", "<=", ">", ">=" or "in".
	Op string

	// Value is a bool, an integer, a float, a string, a []byte, a time.Time, a
	// *datastore.Key, or nil for null; for "in" a slice of up to 30 of them.
	//
	// In JSON true, "text", 5 and null are what they look like, and so is 5.0, which is a
	// float. The others are objects that name their type: {"time": "2026-10-24T00:00:00Z"},
	// {"key": "…"} with the text of Key.Encode, {"bytes": "…"} in base64, {"float": 5} or
	// {"float": "NaN"}, and {"int": 5} or {"int": "5"}.
	Value any

	// AllowAnyType has a job start although entities have the property with values of another
	// type than Value. By default that is an error, found by a look at the least and the
	// greatest values: Datastore orders types, so a filter by the string "2026-10-24" lets
	// all times pass that are less than a string, which every time is, and a filter by a
	// time lets null pass.
	AllowAnyType bool
}

// Where returns a filter: Where("active", "=", true).
func Where(property, op string, value any) Filter {
	return Filter{Property: property, Op: op, Value: value}
}

// Share returns a filter that has a job be over a share of the keys: of so many parts of the same
// size, by a hash that never changes, those from one on and before another. A job over Share(0, 1,
// 100) is a canary, of 1%, and one over Share(1, 100, 100) does the rest. It reads keys, which are
// free, and looks up the entities of the share. That is at least one in a thousand; its number is
// known about.
func Share(from, to, of int64) Filter {
	return Filter(query.Share{From: from, To: to, Of: of}.Filter())
}

// Matches reports whether the properties of an entity satisfy all of some filters, as the database
// has it: an array does if one of its values does, and several inequalities on one property if one
// value satisfies them all. What is not indexed satisfies none. Properties that no entity can have
// are an error.
func Matches(filters []Filter, properties []datastore.Property) (bool, error) {
	q, err := Query{Kind: "K", Filters: filters}.inner().Normal(true)
	if err != nil {
		return false, fmt.Errorf("mapper: %w: %w", ErrInvalidArgument, err)
	}
	e, err := pbvalue.Entity(nil, properties, false)
	if err != nil {
		return false, fmt.Errorf("mapper: %w: these can't be the properties of an entity: %w", ErrInvalidArgument, err)
	}
	return query.Matches(q, e), nil
}

// MarshalJSON implements json.Marshaler.
func (f Filter) MarshalJSON() ([]byte, error) { return query.Filter(f).MarshalJSON() }

// UnmarshalJSON implements json.Unmarshaler.
func (f *Filter) UnmarshalJSON(b []byte) error { return (*query.Filter)(f).UnmarshalJSON(b) }

// inner returns the query as the packages inside have it.
func (q Query) inner() query.Query {
	filters := make([]query.Filter, len(q.Filters))
	for i, f := range q.Filters {
		filters[i] = query.Filter(f)
	}
	return query.Query{
		Kind: q.Kind, Kinds: q.Kinds, Namespace: q.Namespace, Namespaces: q.Namespaces, AllNamespaces: q.AllNamespaces,
		Ancestor: q.Ancestor, Start: q.Start, End: q.End, Filters: filters, ShardBy: q.ShardBy, ReadTime: q.ReadTime,
		KeysOnly: q.KeysOnly,
	}
}

// publicQuery returns a query as users have it.
func publicQuery(q query.Query) Query {
	var filters []Filter
	for _, f := range q.WithShare() {
		filters = append(filters, Filter(f))
	}
	return Query{
		Kind: q.Kind, Kinds: q.Kinds, Namespace: q.Namespace, Namespaces: q.Namespaces, AllNamespaces: q.AllNamespaces,
		Ancestor: q.Ancestor, Start: q.Start, End: q.End, Filters: filters, ShardBy: q.ShardBy, ReadTime: q.ReadTime,
		KeysOnly: q.KeysOnly,
	}
}

// DatastoreQuery returns the query for the client, for readers of a [Split]. It is in the order of
// the property of ShardBy, or of keys. ReadTime is not part of it: that is an option of a
// client, or of a transaction. It is an error if the query is over several kinds or namespaces.
func (q Query) DatastoreQuery() (*datastore.Query, error) {
	d, err := q.inner().Datastore()
	if err != nil {
		return nil, fmt.Errorf("mapper: query: %w: %w", ErrInvalidArgument, err)
	}
	return d, nil
}
