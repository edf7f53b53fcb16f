package survey

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// mostCells is how many cells are counted if a sample does not say how large the query is.
const mostCells = 128

// weighed surveys a range in two rounds of calls. First it reads the first page and one answer of
// the sample, then it counts the cells between samples. The calls of a round run at the same time.
// The survey is not settled without samples, or if most of the range is in cells that exceed the
// limit of their counts.
func (sv Survey) weighed(ctx context.Context, workers int64) (found Found, settled bool, err error) {
	if sv.Weigh == nil || !sv.Source.Counts() || workers < 2 {
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
	pieces := sv.Weigh(split.Cells(split.Piece{Start: sv.Start, End: sv.End, Space: sv.Space, Samples: found.Samples,
		Workers: workers}, cells))
	if found.Estimate, settled = split.MostlyCounted(pieces); settled {
		found.Pieces = pieces
	}
	return found, settled, nil
}
