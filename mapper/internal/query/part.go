package query

import (
	"errors"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// Bounding reports whether the value of a position can bound a query.
func (q Query) Bounding(p *keyspace.Position) bool {
	if !p.Valued {
		return true
	}
	_, err := Filter{q.ShardBy, "<", p.Value}.normal()
	return err == nil
}

// Between returns the part of the query from one position on, and before another. A nil one
// bounds nothing.
func (q Query) Between(start, end *keyspace.Position) Query {
	q.Filters = slices.Clone(q.Filters)
	bound := func(p *keyspace.Position, op string, key **datastore.Key) {
		switch {
		case p == nil:
		case p.Valued:
			q.Filters = append(q.Filters, Filter{q.ShardBy, op, p.Value})
		default:
			*key = p.Key
		}
	}
	bound(start, ">=", &q.Start)
	bound(end, "<", &q.End)
	return q
}

// Datastore returns the query for readers of a part.
func (q Query) Datastore() (*datastore.Query, error) {
	q, err := q.Normal(false)
	if err == nil && q.Many() {
		err = errors.New("the query is over several kinds or namespaces")
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
				d = d.FilterField(f.Property, f.Op, f.Value)
			}
		}
		d = q.byValue(d)
	}
	if q.KeysOnly {
		d = d.KeysOnly()
	}
	return d, nil
}
