package survey

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// mostCells is the number of intervals of the key space that are counted if samples do not tell how
// many entities the query has.
const mostCells = 128

// runByCounts surveys a range in two rounds of calls. The calls of a round run at the same time.
// The first round reads the first page and a part of the sample. The second round counts the
// entities between the samples. The bool settled is false if the result can't be used: there are no
// samples, or most entities lie in intervals that have more entities than a count may count.
func (sv Survey) runByCounts(ctx context.Context, workers int64) (found Found, settled bool, err error) {
	if sv.CountPieces == nil || !sv.Source.Counts() || workers < 2 {
		return found, false, nil
	}
	var first split.Rank
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		if sv.Query.ShardBy != "" {
			found.Samples, err = sv.values(gctx, mostCells)
		} else {
			found.Samples, err = sv.inside(gctx, query.Batch)
		}
		return err
	})
	group.Go(func() (err error) {
		first, err = sv.first(gctx)
		return err
	})
	if err := group.Wait(); err != nil {
		return found, false, err
	}
	if first.At == nil {
		found.Estimate, found.Exact = first.Before, first.Before > 0
		return found, true, nil
	}
	if len(found.Samples) == 0 {
		return found, false, nil
	}
	cells := int64(mostCells)
	if sv.Query.Plain() {
		cells = split.CellsOf(found.Samples, query.Batch, first)
	}
	if cells < 2 {
		return found, false, nil
	}
	whole := split.Piece{Start: sv.Start, End: sv.End, Space: sv.Space, Samples: found.Samples, Workers: workers}
	pieces := sv.CountPieces(split.Cells(whole, cells))
	if found.Estimate, settled = split.MostlyCounted(pieces); settled {
		found.Pieces = pieces
	}
	return found, settled, nil
}
