package survey

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// A Part is one of the parts into which [Parts] cuts a query.
type Part struct {
	Query    query.Query
	Entities int64 // number of entities; -1: unknown
}

// Parts cuts a query into up to n parts. If count is set and the database can count, it also counts
// the entities of each part.
func Parts(ctx context.Context, src source.Source, q query.Query, n int, count bool) (parts []Part, err error) {
	if q.Times, err = src.Probe(ctx, q, true); err != nil {
		return nil, err
	}
	at, err := Boundaries(ctx, src, q, n)
	if err != nil {
		return nil, source.Unanswered(ctx, err)
	}
	var counts []int64
	if count {
		if counts, err = CountAll(ctx, src, q, at); err != nil && status.Code(err) != codes.Unimplemented {
			return nil, fmt.Errorf("count: %w", err)
		}
		if err != nil {
			counts = nil
		}
	}
	each(at, func(i int, start, end *keyspace.Position) {
		part := Part{q.Between(start, end), -1}
		if counts != nil {
			part.Entities = counts[i]
		}
		parts = append(parts, part)
	})
	return parts, nil
}

// each calls f for each part of a query that is cut at these positions. The first part has no
// start, and the last part has no end.
func each(at []*keyspace.Position, f func(i int, start, end *keyspace.Position)) {
	var start *keyspace.Position
	for i, end := range at {
		f(i, start, end)
		start = end
	}
	f(len(at), start, nil)
}
