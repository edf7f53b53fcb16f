package mapper

import (
	"context"
	"errors"

	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A prefix is what a look-ahead saw: where the first entities of a range are, in order.
type prefix struct {
	at  []*keyspace.Position
	all bool // the range ends behind them
}

// find returns the position of an entity: the n-th of some scans, counted from 0, or nil if
// there are fewer.
func (src source) find(ctx context.Context, scans []scan, n int64) (found *keyspace.Position, err error) {
	for i, s := range scans {
		if found, err = src.first(ctx, s, n); err != nil || found != nil || i == len(scans)-1 {
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

// first returns the position of the n-th entity of a scan, or nil if there are fewer.
func (src source) first(ctx context.Context, s scan, n int64) (found *keyspace.Position, err error) {
	s.query = s.query.Offset(int(n)).Limit(1)
	return found, src.eachIn(ctx, s, func(p *keyspace.Position) bool {
		found = p
		return false
	})
}

// countIn returns how many entities a scan has, up to most.
func (src source) countIn(ctx context.Context, s scan, most int64) (n int64, err error) {
	if n, known := src.count(ctx, []scan{s}, int(most)); known {
		return n, nil
	}
	s.query = s.query.Limit(int(most))
	return n, src.eachIn(ctx, s, func(*keyspace.Position) bool {
		n++
		return true
	})
}

// sample draws up to n keys of the query by __scatter__, fewer if they take
// more than maxBytes, and sorts them. The first keys in scatter order are a
// random choice of all, however few they are. An empty sample says nothing of
// how many entities there are.
func (src source) sample(ctx context.Context, q Query, n, maxBytes int) ([]*keyspace.Position, error) {
	var sample []*keyspace.Position
	err := src.eachIn(ctx, scan{query: q.sample(n)}, func(p *keyspace.Position) bool {
		maxBytes -= keyspace.KeySize(p.Key)
		if maxBytes >= 0 {
			sample = append(sample, p)
		}
		return maxBytes >= 0
	})
	return keyspace.Sort(sample), err
}

// eachIn calls f for the positions of a scan, until it returns false.
func (src source) eachIn(ctx context.Context, s scan, f func(*keyspace.Position) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	it, err := src.results(ctx, s, false)
	if err != nil {
		return err
	}
	for {
		p, _, err := s.next(it, false)
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
