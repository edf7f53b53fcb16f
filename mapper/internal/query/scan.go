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

// A Scan is a Datastore query whose results are in the order of positions: the order in which the
// job processes entities.
type Scan struct {
	Query    *datastore.Query
	Property string // the property by whose values the results are ordered, and then by key; empty: only by key
	Fixed    bool   // whether all results have the same value of Property
	Value    any    // the one value of Property if Fixed is set
	Times    bool   // whether the values are times, which a projection returns as microseconds

	Share Share // the share of all keys that count; other results are skipped
}

// Scans returns the scans that find the entities of a range in one kind and namespace, in order. A
// range of keys needs one scan. A range of values needs up to three: at its first and at its last
// value, it may contain only some of the keys.
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

// withKeys limits a query to keys at or after start, and before end. A position without a key is no
// limit.
func withKeys(d *datastore.Query, start, end *keyspace.Position) *datastore.Query {
	if start != nil && start.Key != nil {
		d = d.FilterField("__key__", ">=", start.Key)
	}
	if end != nil && end.Key != nil {
		d = d.FilterField("__key__", "<", end.Key)
	}
	return d
}

// byValue makes the results come in the order of the property in ShardBy, then of keys.
func (q Query) byValue(d *datastore.Query) *datastore.Query {
	d = d.Order(names.Field(q.ShardBy))
	if q.ranged() { // otherwise the property of the inequality would be sorted before the key
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

// Reading returns the Datastore query that reads the scan's entities. If whole is not set, it reads
// only what their positions need.
func (s Scan) Reading(whole bool) *datastore.Query {
	switch {
	case whole:
		return s.Query
	case s.Property == "" || s.Fixed:
		return s.Query.KeysOnly()
	}
	return s.Query.Project(s.Property)
}

// Bounding reports whether a filter can limit the query at the value of a position.
func (q Query) Bounding(p *keyspace.Position) bool {
	if !p.Valued {
		return true
	}
	_, err := Filter{Property: q.ShardBy, Op: "<", Value: p.Value}.normal()
	return err == nil
}

// Between returns the part of the query at or after start, and before end. A nil position is no
// bound.
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

// Datastore returns an equivalent Datastore query, for callers that read a part of the job's
// entities themselves.
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
