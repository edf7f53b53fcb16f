package source

import (
	"context"
	"errors"

	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// Find returns the position of an entity: the n-th of some scans, counted from 0, or nil if
// there are fewer.
func (src Source) Find(ctx context.Context, scans []query.Scan, n int64) (found *keyspace.Position, err error) {
	for i, s := range scans {
		if found, err = src.First(ctx, s, n); err != nil || found != nil || i == len(scans)-1 {
			return found, err
		}
		passed, err := src.countIn(ctx, s, n)
		if err != nil {
			return nil, err
		}
		n -= passed
	}
	return nil, nil
}

// First returns the position of the n-th entity of a scan, or nil if there are fewer.
func (src Source) First(ctx context.Context, s query.Scan, n int64) (found *keyspace.Position, err error) {
	s.Query = s.Query.Offset(int(n)).Limit(1)
	return found, src.EachIn(ctx, s, func(p *keyspace.Position) bool {
		found = p
		return false
	})
}

// countIn returns how many entities a scan has, up to most.
func (src Source) countIn(ctx context.Context, s query.Scan, most int64) (n int64, err error) {
	if n, known := src.Count(ctx, []query.Scan{s}, int(most)); known {
		return n, nil
	}
	s.Query = s.Query.Limit(int(most))
	return n, src.EachIn(ctx, s, func(*keyspace.Position) bool {
		n++
		return true
	})
}

// Sample draws up to n keys of the query by __scatter__, fewer if they take
// more than maxBytes, and sorts them. The first keys in scatter order are a
// random choice of all, however few they are. An empty sample says nothing of
// how many entities there are.
func (src Source) Sample(ctx context.Context, q query.Query, n, maxBytes int) ([]*keyspace.Position, error) {
	var sample []*keyspace.Position
	err := src.EachIn(ctx, query.Scan{Query: q.Sample(n)}, func(p *keyspace.Position) bool {
		maxBytes -= keyspace.KeySize(p.Key)
		if maxBytes >= 0 {
			sample = append(sample, p)
		}
		return maxBytes >= 0
	})
	return keyspace.Sort(sample), err
}

// EachIn calls f for the positions of a scan, until it returns false.
func (src Source) EachIn(ctx context.Context, s query.Scan, f func(*keyspace.Position) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	it, err := src.results(ctx, s, false)
	if err != nil {
		return err
	}
	for {
		p, _, err := next(s, it, false)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return err
		}
		if !f(p) {
			return nil
		}
	}
}
