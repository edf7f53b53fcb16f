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
	// Kind is the kind of the entities. For several kinds, up to 500, set Kinds instead.
	Kind  string   `json:"kind,omitempty"`
	Kinds []string `json:"kinds,omitempty"`

	// Namespace is the namespace of the entities. Defaults to the namespace of Ancestor, or to the
	// empty one. For several namespaces, up to 1,000, set Namespaces instead. AllNamespaces selects
	// all that exist when the job lists them.
	Namespace     string   `json:"namespace,omitempty"`
	Namespaces    []string `json:"namespaces,omitempty"`
	AllNamespaces bool     `json:"all_namespaces,omitempty"`

	// Ancestor, if set, selects only the descendants of this key, and the entity with the key if it
	// is of the kind.
	Ancestor *datastore.Key `json:"ancestor,omitempty"`

	// Start and End limit the query to keys in the half-open interval [Start, End). They are keys
	// of the kind. Entities with these keys need not exist. Nil is no limit.
	Start *datastore.Key `json:"start,omitempty"`
	End   *datastore.Key `json:"end,omitempty"`

	// Filters are conditions on properties. Entities must satisfy all of them. An [Update] checks
	// them again at its commit, for the entities that it changes. The function and others may
	// change a filtered property while the job runs. Each entity is still processed once, unless
	// the property is the one in ShardBy. If a filter needs a composite index that does not exist,
	// the start is refused.
	Filters []Filter `json:"filters,omitempty"`

	// ShardBy is an indexed property. If it is set, the job processes entities in the order of the
	// property's values, and not of keys. Use it with an inequality on the property, which then
	// needs no composite index.
	//
	// Values are integers, times, strings, blobs or floats; types may be mixed. Entities without
	// the property are not processed, and Status.WithoutShardBy counts them. An entity is a failure
	// if the property is a list, or if the function changes the property. A key of another project
	// or database fails the job. If others change the property while the job runs, the entity may be
	// processed twice or not at all. Filters on the property must be "<", "<=", ">" or ">=".
	ShardBy string `json:"shard_by,omitempty"`

	// ReadTime makes a job of a [Visit] read the state of all entities at that time. For an
	// [Update] the start is refused. Datastore keeps the last hour, at any microsecond. With
	// point-in-time recovery it also keeps whole minutes of the last seven days. If ReadTime
	// becomes too old while the job runs, the job fails and can't be resumed. So for a long job,
	// turn on point-in-time recovery, and set ReadTime to a whole minute.
	ReadTime time.Time `json:"read_time,omitzero"`

	// KeysOnly makes the job read only keys, which costs less. The function gets the key and a zero
	// Value. A [Visit] can't combine it with ShardBy.
	//
	// The function of an [Update] may then delete entities or put others. An entity that was
	// deleted after the job read its key still counts as processed. With Filters, the Update still
	// reads its entities, at the usual cost, to check the filters before it deletes them.
	//
	// If all inequalities of an Update are on one property, and Start and End are not set, ShardBy
	// defaults to that property. So a job can delete entities that are older than a given time
	// without a composite index.
	KeysOnly bool `json:"keys_only,omitempty"`
}

// A Filter is a condition that a query's entities satisfy.
type Filter struct {
	// Property is the name of an indexed property. A dot leads into an embedded entity, such as
	// "address.city".
	Property string

	// Op is "=", "<", "<=", ">", ">=" or "in".
	Op string

	// Value is a bool, an integer, a float, a string, a []byte, a time.Time, a *datastore.Key, or
	// nil for null. For "in" it is a slice of up to 30 of them.
	//
	// In JSON, true, "text", 5 and null stand for themselves, and 5.0 is a float. Other values are
	// objects that name their type: {"time": "2026-10-24T00:00:00Z"}, {"key": "…"} with the text of
	// Key.Encode, {"bytes": "…"} in base64, {"float": 5} or {"float": "NaN"}, and {"int": 5} or
	// {"int": "5"}.
	Value any

	// AllowAnyType lets a job start even if the stored values of the property have another type
	// than Value. By default such a start is refused, because the filter is probably a mistake.
	// Datastore orders values by type first, so the string "2026-10-24" is greater than every time,
	// and null is less. The check reads the least and the greatest value.
	AllowAnyType bool
}

// Where returns a filter, such as Where("active", "=", true). It does not check the filter; a start
// refuses an invalid one.
func Where(property, op string, value any) Filter {
	return Filter{Property: property, Op: op, Value: value}
}

// Share returns a filter for a share of all keys. For example, Share(0, 1, 100) is a canary of 1%,
// and Share(1, 100, 100) is everything except the canary. A hash divides the keys into "of" parts
// of about the same size, which are numbered from 0. The filter selects the parts in [from, to). A
// key is always in the same part. A share must be at least 1/1000.
//
// The job reads all keys by keys-only queries. Each query costs one read, for any number of keys.
// The job looks up only the entities of the share.
func Share(from, to, of int64) Filter {
	return Filter(query.Share{From: from, To: to, Of: of}.Filter())
}

// Matches reports whether an entity with these properties satisfies all filters, by the database's
// rules. An array satisfies a filter if one of its values does. It satisfies several inequalities
// on one property only if a single value satisfies all of them. Values that are not indexed satisfy
// no filter. If a filter or property is invalid, the error is [ErrInvalidArgument].
func Matches(filters []Filter, properties []datastore.Property) (bool, error) {
	q, err := Query{Kind: "K", Filters: filters}.inner().Normal(true)
	if err != nil {
		return false, fmt.Errorf("mapper: %w: %w", ErrInvalidArgument, err)
	}
	e, err := pbvalue.Entity(nil, properties, false)
	if err != nil {
		return false, fmt.Errorf("mapper: %w: these can't be the properties of an entity: %w", ErrInvalidArgument, err)
	}
	return q.Matches(e), nil
}

// MarshalJSON implements json.Marshaler. The JSON of Value is described at the field.
func (f Filter) MarshalJSON() ([]byte, error) { return query.Filter(f).MarshalJSON() }

// UnmarshalJSON implements json.Unmarshaler. It reads what [Filter.MarshalJSON] writes.
func (f *Filter) UnmarshalJSON(b []byte) error { return (*query.Filter)(f).UnmarshalJSON(b) }

// inner converts the query for package query.
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

// publicQuery converts a query of package query into a [Query]. It does the reverse of inner.
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

// DatastoreQuery converts the query for the Go client, for example to read the entities of a
// split.Part. The result is ordered by key, or by the property of ShardBy. It does not contain
// ReadTime: set that on the client or in a transaction. If the query has several kinds or
// namespaces, the error is [ErrInvalidArgument].
func (q Query) DatastoreQuery() (*datastore.Query, error) {
	d, err := q.inner().Datastore()
	if err != nil {
		return nil, fmt.Errorf("mapper: query: %w: %w", ErrInvalidArgument, err)
	}
	return d, nil
}
