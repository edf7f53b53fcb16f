package query

import (
	"errors"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// Batch is the number of results in one answer of Datastore to a query.
const Batch = 300

// A Scan is a Datastore query for a range of a job. Its results are in the order in which the job
// processes entities.
type Scan struct {
	Query *datastore.Query
	// Property is the property by whose values the results are ordered, and then by key. If it is
	// empty, they are ordered only by key.
	Property string
	Fixed    bool // whether all results have the same value of Property
	Value    any  // the one value of Property if Fixed is set
	Times    bool // whether the values are times, which a projection returns as microseconds

	// Share is the share of all keys to which the job is limited. The reader skips results with
	// other keys.
	Share Share
}

// Scans returns the scans for the entities at start or after it, and before end, in one kind and
// namespace. In the order of keys, one scan is enough. In the order of a property's values, up to
// three are needed: the range may start and end between two keys with the same value.
func (q Query) Scans(start, end *keyspace.Position) []Scan {
	if start != nil && start.Space() != q.Space() {
		start = nil
	}
	if end != nil && end.Space() != q.Space() {
		end = nil
	}
	low, high := q.Bounds()
	if low != nil && (start == nil || keyspace.Compare(start, low) < 0) {
		start = low
	}
	if high != nil && (end == nil || keyspace.Compare(high, end) < 0) {
		end = high
	}
	if start != nil && end != nil && keyspace.Compare(start, end) >= 0 {
		return nil
	}
	if q.ShardBy == "" {
		return []Scan{{Query: withKeys(q.Base().Order("__key__"), start, end), Share: q.Share}}
	}
	return q.scansOfValues(start, end)
}

// withKeys limits a Datastore query to keys at start or after it, and before end. A position
// without a key is no limit.
func withKeys(d *datastore.Query, start, end *keyspace.Position) *datastore.Query {
	if start != nil && start.Key != nil {
		d = d.FilterField("__key__", ">=", start.Key)
	}
	if end != nil && end.Key != nil {
		d = d.FilterField("__key__", "<", end.Key)
	}
	return d
}

// byValue orders the results of a Datastore query by the property in ShardBy, and then by key.
func (q Query) byValue(d *datastore.Query) *datastore.Query {
	d = d.Order(names.Field(q.ShardBy))
	if q.ranged() { // otherwise the inequality's property would be compared before the key
		d = d.Order("__key__")
	}
	return d
}

func (q Query) scansOfValues(start, end *keyspace.Position) (scans []Scan) {
	one := func(v any, start, end *keyspace.Position) Scan {
		d := q.Base().FilterField(names.Field(q.ShardBy), "=", v).Order("__key__")
		return Scan{Query: withKeys(d, start, end), Property: q.ShardBy, Fixed: true, Value: v, Share: q.Share}
	}
	valued := func(p *keyspace.Position) bool { return p != nil && p.Valued }
	if valued(start) && valued(end) && value.Compare(start.Value, end.Value) == 0 {
		return []Scan{one(start.Value, start, end)}
	}
	d := q.byValue(q.Base())
	switch {
	case valued(start) && start.Key != nil:
		scans = append(scans, one(start.Value, start, nil))
		d = d.FilterField(names.Field(q.ShardBy), ">", start.Value)
	case valued(start):
		d = d.FilterField(names.Field(q.ShardBy), ">=", start.Value)
	}
	if valued(end) {
		d = d.FilterField(names.Field(q.ShardBy), "<", end.Value)
	}
	scans = append(scans, Scan{Query: d, Property: q.ShardBy, Times: q.Times, Share: q.Share})
	if valued(end) && end.Key != nil {
		scans = append(scans, one(end.Value, nil, end))
	}
	return scans
}

// Reading returns the Datastore query that reads the scan's entities. If whole is false, it reads
// only what is needed to know their positions: the key, and the property's value.
func (s Scan) Reading(whole bool) *datastore.Query {
	switch {
	case whole:
		return s.Query
	case s.Property == "" || s.Fixed:
		return s.Query.KeysOnly()
	}
	return s.Query.Project(s.Property)
}

// Bounding reports whether a Datastore query can be limited at this position. Not every value can
// be used in a filter.
func (q Query) Bounding(p *keyspace.Position) bool {
	if !p.Valued {
		return true
	}
	_, err := Filter{Property: q.ShardBy, Op: "<", Value: p.Value}.normal()
	return err == nil
}

// Between returns the part of the query at start or after it, and before end. A nil position is no
// limit.
func (q Query) Between(start, end *keyspace.Position) Query {
	q.Filters = slices.Clone(q.Filters)
	bound := func(p *keyspace.Position, op string, key **datastore.Key) {
		switch {
		case p == nil:
		case p.Valued:
			q.Filters = append(q.Filters, Filter{Property: q.ShardBy, Op: op, Value: p.Value})
		default:
			*key = p.Key
		}
	}
	bound(start, ">=", &q.Start)
	bound(end, "<", &q.End)
	return q
}

// Datastore returns a Datastore query for the same entities, for callers that read them without a
// job. It returns an error if there is no such query.
func (q Query) Datastore() (*datastore.Query, error) {
	q, err := q.Normal(false)
	if err == nil && q.Many() {
		err = errors.New("the query is over several kinds or namespaces")
	}
	if err == nil && !q.Share.All() {
		err = errors.New("the query is over a share of the keys, which Datastore does not know")
	}
	if err != nil {
		return nil, err
	}
	low, high := q.Bounds()
	d := q.Base()
	if q.ShardBy == "" {
		d = withKeys(d.Order("__key__"), low, high)
	} else {
		for _, f := range q.Filters {
			if f.Property == q.ShardBy {
				d = d.FilterField(names.Field(f.Property), f.Op, f.Value)
			}
		}
		d = q.byValue(d)
	}
	if q.KeysOnly {
		d = d.KeysOnly()
	}
	return d, nil
}
