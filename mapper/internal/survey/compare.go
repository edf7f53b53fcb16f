package survey

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// A Way is one method to cut a query into parts, with its result.
type Way struct {
	Name    string
	Asked   int     // number of sampled keys that the method asks for; -1: unknown
	Sampled int     // number of sampled keys that the method has received; -1: unknown
	Counts  []int64 // the number of entities in each part

	at []*keyspace.Position
}

// Oversampling is the number of sampled keys to read for each part. Every 32nd sampled key becomes
// a cut.
const Oversampling = 32

// Compare cuts a query into up to n parts by several methods, and counts the entities of each part.
// The query must be in the order of keys. If the database can't count, or there are few entities,
// Compare reads all keys once.
func Compare(ctx context.Context, src source.Source, q query.Query, n int) (ways []Way, err error) {
	look := Survey{Source: src, Query: q}
	lexicographic, err := look.lexicographic(ctx, n)
	if err != nil {
		return nil, err
	}
	ways = append(ways, Way{Name: "lexicographic", at: lexicographic})
	for _, w := range []struct {
		name   string
		sample int // the number of keys to sample
	}{{"scatter", n - 1}, {"oversampled", Oversampling*n - 1}} {
		var sample []*keyspace.Position
		asked := 0
		if n > 1 {
			asked = w.sample
			if sample, err = look.inside(ctx, w.sample); err != nil {
				return nil, err
			}
		}
		ways = append(ways, Way{Name: w.name, Asked: asked, Sampled: len(sample), at: split.AtSamples(sample, n)})
	}
	at, err := Boundaries(ctx, src, q, n)
	if err != nil && !errors.Is(err, errUnknown) { // without boundaries, this method makes no cuts
		return nil, source.Unanswered(ctx, err)
	}
	ways = append(ways, Way{Name: "splits", Asked: -1, Sampled: -1, at: at})
	return ways, look.countParts(ctx, ways)
}

// lexicographic returns keys that cut the key space between the query's first and last key into
// equal parts, without regard to where entities are. If the database lacks the index to find the
// last key, it assumes that the key space has no end.
func (sv Survey) lexicographic(ctx context.Context, n int) ([]*keyspace.Position, error) {
	first, err := sv.Source.Find(ctx, sv.Query.Scans(nil, nil), 0)
	if err != nil || first == nil {
		return nil, err
	}
	_, last := sv.Query.Bounds()
	if last == nil {
		last, err = sv.Source.First(ctx, query.Scan{Query: sv.Query.Base().Order("-__key__")}, 0)
		if err != nil && status.Code(err) != codes.FailedPrecondition {
			return nil, err
		}
	}
	return keyspace.Lexicographic(first, last, n), nil
}

// countParts sets the number of entities of each part, for all ways. Parts of different ways
// overlap. So it cuts the query at the positions of all ways together, and counts each interval
// between two positions once.
func (sv Survey) countParts(ctx context.Context, ways []Way) error {
	var all []*keyspace.Position
	for _, w := range ways {
		all = append(all, w.at...)
	}
	all = keyspace.Sort(all)
	counts, err := sv.cells(ctx, all)
	if err != nil {
		return err
	}
	for i := range ways {
		w := &ways[i]
		w.Counts = make([]int64, len(w.at)+1)
		part := 0
		for cell, n := range counts {
			if cell > 0 && part < len(w.at) && all[cell-1].Equal(w.at[part]) {
				part++
			}
			w.Counts[part] += n
		}
	}
	return nil
}

// cells returns the numbers of entities before the first position, between neighbouring positions,
// and after the last.
func (sv Survey) cells(ctx context.Context, at []*keyspace.Position) ([]int64, error) {
	if total, known := sv.Count(ctx, nil, exactSplits+1); known && total > exactSplits {
		return CountAll(ctx, sv.Source, sv.Query, at)
	}
	counts := make([]int64, len(at)+1)
	for _, s := range sv.Query.Scans(nil, nil) {
		err := sv.Source.EachIn(ctx, s, func(p *keyspace.Position) bool {
			cell, found := slices.BinarySearchFunc(at, p, keyspace.Compare)
			if found {
				cell++ // the interval that starts at the cut
			}
			counts[cell]++
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}
