package survey

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// Constants for [Boundaries], which cuts a query into parts for other programs.
const (
	// exactSplits is the largest number of entities for which Boundaries makes exactly equal parts
	// instead of estimating from a sample. For this, it reads each key once.
	exactSplits = 10_000

	// samplesPerSplit is the number of sampled keys to read for each part. In total, at least
	// leastSampled are read. With 24, the largest of 100 parts has 1.6 times the mean number of
	// entities [simulation]. The number matters, because nothing corrects the parts later.
	samplesPerSplit, leastSampled = 24, 512

	// cellsPerSplit is the number of intervals of the key space that are counted for each part.
	// They are counted if samples can't tell where the entities are.
	cellsPerSplit = 8
)

var errUnknown = errors.New("the database neither counts entities nor has samples of them, so it is unknown " +
	"where they are")

// Boundaries returns up to n-1 positions that cut the query q into parts with about the same number
// of entities.
func Boundaries(ctx context.Context, src source.Source, q query.Query, n int) ([]*keyspace.Position, error) {
	look := Survey{Source: src, Query: q}
	var candidates []*keyspace.Position
	var err error
	if q.ShardBy != "" {
		candidates, err = look.values(ctx, cellsPerSplit*n)
		candidates = slices.DeleteFunc(candidates, func(p *keyspace.Position) bool { return !q.Bounding(p) })
	} else {
		candidates, err = look.inside(ctx, max(leastSampled, samplesPerSplit*n))
	}
	if err != nil {
		return nil, err
	}
	ones := make([]int64, len(candidates)+1)
	for i := range ones {
		ones[i] = 1 // each gap between samples has the same expected number of entities
	}
	if total, known := look.Count(ctx, nil, exactSplits+1); q.Plain() && len(candidates) >= samplesPerSplit*n/2 &&
		(!known || total > exactSplits) {
		return evenly(candidates, ones, n), nil
	} else if known && total <= exactSplits {
		candidates = nil
	}
	candidates = some(candidates, cellsPerSplit*n)
	counts, err := CountAll(ctx, src, q, candidates)
	switch {
	case err == nil:
		return exactly(ctx, src, q, n, candidates, counts)
	case status.Code(err) != codes.Unimplemented:
		return nil, err
	case len(candidates) == 0:
		if first, err := src.Find(ctx, q.Scans(nil, nil), 0); err != nil || first == nil {
			return nil, err
		}
		return nil, errUnknown
	}
	return evenly(candidates, ones[:len(candidates)+1], n), nil
}

// some returns up to n of the positions, spread evenly over the list.
func some(all []*keyspace.Position, n int) []*keyspace.Position {
	if len(all) <= n {
		return all
	}
	few := make([]*keyspace.Position, n)
	for i := range few {
		few[i] = all[(2*i+1)*len(all)/(2*n)]
	}
	return few
}

// evenly returns up to n-1 of the positions, such that the parts between them have about the same
// number of entities. The counts are the numbers of entities before the first position, between
// neighbouring positions, and after the last.
func evenly(at []*keyspace.Position, counts []int64, n int) (cuts []*keyspace.Position) {
	total := int64(0)
	for _, c := range counts {
		total += c
	}
	before, cut := int64(0), int64(0) // numbers of entities before this position, and before the last cut
	for i, p := range at {
		before += counts[i]
		left := n - len(cuts)
		// The remaining entities are divided equally: the next cut is at the position that is
		// nearest to the end of an equal part.
		if left > 1 && before > cut && before < total && 2*(before-cut)+counts[i+1] > 2*(total-cut)/int64(left) {
			cuts, cut = append(cuts, p), before
		}
	}
	return cuts
}

// exactly returns positions that cut a query into n parts with exactly the same number of entities.
// To find them, it uses positions whose counts are known: the numbers of entities before the first
// one, between neighbours, and after the last. If one of these positions is near an exact cut, it
// becomes the cut. A query in the order of a property's values is cut only between values.
func exactly(
	ctx context.Context, src source.Source, q query.Query, n int, at []*keyspace.Position, counts []int64,
) (cuts []*keyspace.Position, err error) {
	total := int64(0)
	for _, c := range counts {
		total += c
	}
	first, err := src.Find(ctx, q.Scans(nil, nil), 0)
	if err != nil || first == nil {
		return nil, err
	}
	// value returns the first position with the same value of the property as p.
	value := func(p *keyspace.Position) *keyspace.Position {
		if !p.Valued {
			return p
		}
		return &keyspace.Position{Namespace: q.Namespace, Kind: q.Kind, Valued: true, Value: p.Value}
	}
	last := value(first)        // the next cut must come after this position
	cell, before := 0, int64(0) // the current interval of at, and the number of entities before it
	var from *keyspace.Position // the start of the interval, or a position inside it
	passed := int64(0)          // the number of entities before from
	for i := 1; i < n; i++ {
		rank := total * int64(i) / int64(n)
		for before+counts[cell] <= rank && cell < len(at) {
			before, cell = before+counts[cell], cell+1
			from, passed = at[cell-1], before
		}
		near := total / int64(10*n) // a tenth of the mean number of entities in a part
		found := from
		if rank-passed > near || from == nil {
			if found, err = src.Find(ctx, q.Scans(from, nil), rank-passed); err != nil {
				return nil, err
			}
			if found == nil { // some entities were deleted after they were counted
				break
			}
			from, passed = found, rank
		}
		if cut := value(found); keyspace.Compare(last, cut) < 0 && q.Bounding(cut) {
			cuts, last = append(cuts, cut), cut
		}
	}
	return cuts, nil
}

// CountAll returns the numbers of entities before the first position, between neighbouring
// positions, and after the last. It makes several calls at the same time.
func CountAll(
	ctx context.Context, src source.Source, q query.Query, at []*keyspace.Position,
) (counts []int64, err error) {
	counts = make([]int64, len(at)+1)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	each(at, func(i int, start, end *keyspace.Position) {
		group.Go(func() error {
			for _, s := range q.Scans(start, end) {
				n, err := src.Counted(gctx, s, 0)
				if err != nil {
					return err
				}
				counts[i] += n
			}
			return nil
		})
	})
	return counts, group.Wait()
}
