package mapper

import (
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// A Query selects the entities of a job. docs/queries.md lists the combinations that work; a start
// refuses the others.
type Query struct {
	// Kind is the kind of the entities. Kinds, in its place, are up to 500 kinds.
	Kind  string   `json:"kind,omitempty"`
	Kinds []string `json:"kinds,omitempty"`

	// Namespace is their namespace. It defaults to the namespace of Ancestor, or to the empty one.
	// Namespaces, in its place, are up to 1,000 namespaces. AllNamespaces selects all that exist
	// when the job lists them.
	Namespace     string   `json:"namespace,omitempty"`
	Namespaces    []string `json:"namespaces,omitempty"`
	AllNamespaces bool     `json:"all_namespaces,omitempty"`

	// Ancestor, if set, selects only the entities below this key, and the entity itself if it is of
	// the kind.
	Ancestor *datastore.Key `json:"ancestor,omitempty"`

	// Start and End are keys of the kind, which need not exist. They select only entities from
	// Start on, and before End.
	Start *datastore.Key `json:"start,omitempty"`
	End   *datastore.Key `json:"end,omitempty"`

	// Filters are conditions on properties; entities have to satisfy all of them. An [Update]
	// checks them again in its transaction. The function may change a filtered property: each
	// entity is still processed once. Some filters need composite indexes, and a start without them
	// is refused.
	Filters []Filter `json:"filters,omitempty"`

	// ShardBy is an indexed property. If set, the job goes through the entities in the order of its
	// values in place of keys, and is cut between values. Values are integers, times, strings,
	// blobs or floats, or of several types in Datastore's order. Entities without the property are
	// not processed; Status.WithoutShardBy counts them. An entity fails if the property is a list
	// or the function changes it. Filters on it must be "<", "<=", ">" or ">=".
	ShardBy string `json:"shard_by,omitempty"`

	// ReadTime lets a job of a [Visit] read all entities in the state of that time. Datastore keeps
	// the last hour, at any microsecond; with point-in-time recovery it keeps seven days, at whole
	// minutes. A job fails when its time has become too old, and can't be resumed. So a long job
	// needs point-in-time recovery and a whole minute.
	ReadTime time.Time `json:"read_time,omitzero"`

	// KeysOnly lets the job read keys, which cost less than entities. The function gets the key and
	// a zero Value. It does not go with ShardBy.
	//
	// The function of an [Update] may delete entities or put others. An entity that is gone by then
	// still counts. With Filters or ShardBy, the Update still reads its entities, at their usual
	// cost, to check each before it is deleted. If all its inequalities are on one property, and
	// Start and End are not set, the job is sharded by that property. So entities older than a time
	// can be deleted without a composite index.
	KeysOnly bool `json:"keys_only,omitempty"`
}

// A Filter is a condition that a query's entities satisfy.
type Filter struct {
	// Property is the name of an indexed property. A dot leads into an embedded entity.
	Property string

	// Op is "=", "<", "<=", ">", ">=" or "in".
	Op string

	// Value is a bool, an integer, a float, a string, a []byte, a time.Time, a *datastore.Key, or
	// nil for null. For "in" it is a slice of up to 30 of them.
	//
	// In JSON, true, "text", 5 and null are what they look like, and 5.0 is a float. Other values
	// are objects that name their type: {"time": "2026-10-24T00:00:00Z"}, {"key": "…"} with the
	// text of Key.Encode, {"bytes": "…"} in base64, {"float": 5} or {"float": "NaN"}, and {"int":
	// 5} or {"int": "5"}.
	Value any

	// AllowAnyType lets a job start although the property is stored with values of another type
	// than Value. By default that is an error, found by a look at the least and the greatest value.
	// Datastore orders types: the string "2026-10-24" is greater than every time, and null is less.
	AllowAnyType bool
}

// Where returns a filter: Where("active", "=", true).
func Where(property, op string, value any) Filter {
	return Filter{Property: property, Op: op, Value: value}
}

// Share returns a filter for a share of the keys. A hash of the key, which never changes, puts each
// key into one of several equal parts, and the filter selects the parts from one on and before
// another. Share(0, 1, 100) is a canary of 1%, and Share(1, 100, 100) is the rest. The job reads
// all keys, which are free, and looks up only the entities of the share. A share is at least one in
// a thousand.
func Share(from, to, of int64) Filter {
	return Filter(query.Share{From: from, To: to, Of: of}.Filter())
}

// Matches reports whether an entity with these properties satisfies all filters, as the database
// decides it. An array satisfies a filter if one of its values does. It satisfies several
// inequalities on one property if one value satisfies them all. Values that are not indexed satisfy
// none. Properties that no entity can have are an error.
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
