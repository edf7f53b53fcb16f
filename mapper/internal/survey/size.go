package survey

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// mostPlanned is the largest number of entities of one kind and namespace that are counted for a
// plan. A larger number is estimated.
const mostPlanned = 1_000_000

// mostSpaces is the largest number of pairs of kind and namespace whose entities are counted for a
// plan.
const mostSpaces = 1000

// SizeOf finds out how many entities a job's query has, in all its kinds and namespaces. Limits
// keep it short, because a user waits for the job's plan.
func SizeOf(ctx context.Context, src source.Source, j *estimate.Job) (size estimate.Size, err error) {
	var mu sync.Mutex
	page := j.Page()
	size.Exact = true
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	next := src.Spaces(gctx, j.Query, nil, nil)
	for n := 0; ; n++ {
		s, ok, err := next()
		more := err == nil && ok && n == mostSpaces
		if err != nil || !ok || more {
			err = cmp.Or(group.Wait(), err)
			size.Exact, size.LowerBound = size.Exact && !more, size.LowerBound || more
			return size, err
		}
		group.Go(func() error {
			part, err := sizeIn(gctx, src, j.Query.In(s), j)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			size.Entities += part.Entities
			size.Pages += (part.Entities + page - 1) / page
			size.Exact, size.LowerBound = size.Exact && part.Exact, size.LowerBound || part.LowerBound
			size.Spent.Reads += part.Spent.Reads
			size.Spent.SmallOps += part.Spent.SmallOps
			return nil
		})
	}
}

// sizeIn finds out how many entities a query over one kind in one namespace has.
func sizeIn(ctx context.Context, src source.Source, q query.Query, j *estimate.Job) (est estimate.Size, err error) {
	look := Survey{Source: src, Query: q, Page: j.PageSize, Refine: true, Used: &est.Spent}
	n, known := look.Count(ctx, nil, mostPlanned)
	if known && n < mostPlanned {
		est.Entities, est.Exact = n, q.Share.All()
		return est, nil
	}
	found, err := look.Run(ctx, split.Strategy{}, j.Workers)
	if est.Entities = max(n, found.Estimate); err == nil && est.Entities == 0 {
		err = errors.New("the database neither counts entities nor has samples of them, so their number is not known")
	}
	est.LowerBound = known && (found.Estimate <= n || !q.Plain() && est.Entities >= split.MostCounted)
	return est, err
}
