package mapper

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// queryBatch is how many results Datastore returns at once.
const queryBatch = 300

// A scan is a Datastore query whose results come in the order of their positions.
type scan struct {
	query    *datastore.Query
	property string // the values of which order the results, before their keys; empty: only their keys
	fixed    bool   // all results have one value of it,
	value    any    // this one
	times    bool   // they are times, which a projection returns as microseconds
}

// scans returns the scans that together, one after the other, find the entities that a range has
// in the query's space: one for a range of keys, and up to three for a range of values. Its first
// value may be one of which some keys are before the range, and its last value one of which some
// are behind it.
func (q Query) scans(start, end *keyspace.Position) []scan {
	if start != nil && start.Space() != q.space() {
		start = nil
	}
	if end != nil && end.Space() != q.space() {
		end = nil
	}
	low, high := q.bounds()
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
		return []scan{{query: withKeys(q.base().Order("__key__"), start, end)}}
	}
	return q.scansOfValues(start, end)
}

// withKeys bounds a query by the keys of positions, if they have any.
func withKeys(d *datastore.Query, start, end *keyspace.Position) *datastore.Query {
	if start != nil && start.Key != nil {
		d = d.FilterField("__key__", ">=", start.Key)
	}
	if end != nil && end.Key != nil {
		d = d.FilterField("__key__", "<", end.Key)
	}
	return d
}

// byValue has results come in the order of their values, and then of their keys.
func (q Query) byValue(d *datastore.Query) *datastore.Query {
	if d = d.Order(q.ShardBy); q.ranged() { // or that property would come before the key
		d = d.Order("__key__")
	}
	return d
}

func (q Query) scansOfValues(start, end *keyspace.Position) (scans []scan) {
	one := func(v any, start, end *keyspace.Position) scan {
		d := q.base().FilterField(q.ShardBy, "=", v).Order("__key__")
		return scan{query: withKeys(d, start, end), property: q.ShardBy, fixed: true, value: v}
	}
	valued := func(p *keyspace.Position) bool { return p != nil && p.Valued }
	if valued(start) && valued(end) && keyspace.CompareValues(start.Value, end.Value) == 0 {
		return []scan{one(start.Value, start, end)}
	}
	d := q.byValue(q.base())
	switch {
	case valued(start) && start.Key != nil:
		scans = append(scans, one(start.Value, start, nil))
		d = d.FilterField(q.ShardBy, ">", start.Value)
	case valued(start):
		d = d.FilterField(q.ShardBy, ">=", start.Value)
	}
	if valued(end) {
		d = d.FilterField(q.ShardBy, "<", end.Value)
	}
	scans = append(scans, scan{query: d, property: q.ShardBy, times: q.times})
	if valued(end) && end.Key != nil {
		scans = append(scans, one(end.Value, nil, end))
	}
	return scans
}

// reading returns the query that reads where entities are, or whole entities.
func (s scan) reading(whole bool) *datastore.Query {
	switch {
	case whole:
		return s.query
	case s.property == "" || s.fixed:
		return s.query.KeysOnly()
	}
	return s.query.Project(s.property)
}

// errNoValue is a fault of the database.
var errNoValue = fault.Fatal(errors.New("the database returned an entity without the property that the query is ordered by"))

// results begins to read where entities are, or whole entities.
func (src source) results(ctx context.Context, s scan, whole bool) (*datastore.Iterator, error) {
	q, err := src.at.query(s.reading(whole))
	if err != nil {
		return nil, err
	}
	return src.client.Run(ctx, q), nil
}

// next returns the next position of the scan, and the entity if those are read.
func (s scan) next(it *datastore.Iterator, whole bool) (p *keyspace.Position, entity datastore.PropertyList, err error) {
	var dst any
	if whole || s.property != "" && !s.fixed {
		dst = (*loaded)(&entity)
	}
	key, err := it.Next(dst)
	if err != nil {
		return nil, nil, err
	}
	p = keyspace.At(key)
	if s.property == "" {
		return p, entity, nil
	}
	p.Valued, p.Value = true, s.value
	if !s.fixed {
		values := indexedValues(entity, s.property)
		if len(values) != 1 {
			return nil, nil, errNoValue
		}
		p.Value = values[0]
		if micros, ok := p.Value.(int64); ok && s.times && !whole {
			if t := time.UnixMicro(micros).UTC(); keyspace.Storable(t) { // what is not, is an integer
				p.Value = t
			}
		}
	}
	return p, entity, nil
}
