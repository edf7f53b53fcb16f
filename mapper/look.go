package mapper

import (
	"context"
	"fmt"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/billing"
)

// A lookAround finds out how large a kind is, and where its entities are.
type lookAround struct {
	engine *Engine
	query  Query
	page   int64
	used   *billing.Usage // if not nil, what it uses is added to that
}

// estimate draws a sample and measures the beginning of the kind, at the same time. The two
// give an estimate of how many entities it has; 0 is unknown.
func (l lookAround) estimate(ctx context.Context, sp Splitting, workers int64) (samples []*datastore.Key, n int64, err error) {
	size := sp.sampleSize(workers)
	milestones := make([]milestone, len(milestonePages))
	group, gctx := errgroup.WithContext(ctx)
	for i, pages := range milestonePages {
		l.use(1, 0)
		group.Go(func() (err error) {
			milestones[i].rank = pages * l.page
			milestones[i].key, err = l.engine.find(gctx, l.query.within(nil, nil), milestones[i].rank)
			return err
		})
	}
	group.Go(func() (err error) {
		samples, err = l.sample(gctx, size)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	if at := further(samples, milestones); at != nil {
		rank, known, err := l.count(ctx, at, mostCounted)
		if err != nil {
			return nil, 0, err
		}
		if known {
			milestones = append(milestones, milestone{key: at, rank: rank})
		}
	}
	n = estimateFrom(samples, milestones)
	if more := samplesFor(n, l.page, workers); len(samples) == size && more > size && sp.adaptive() {
		samples, err = l.sample(ctx, more)
	}
	return samples, n, err
}

func (l lookAround) sample(ctx context.Context, n int) ([]*datastore.Key, error) {
	keys, err := l.engine.sample(ctx, l.query, n, maxSampleBytes*maxFanOut/2)
	if err != nil {
		return nil, fmt.Errorf("sample %q by __scatter__: %w", l.query.Kind, err)
	}
	l.use(int64(len(keys)/queryBatch+1), int64(len(keys)))
	return keys, nil
}

// mostCounted bounds a count for an estimate. 1,000 of them are billed as a read.
const mostCounted = 10_000_000

// count counts the entities before a key, or up to most of them. It is not known if the
// database can't.
func (l lookAround) count(ctx context.Context, before *datastore.Key, most int) (n int64, known bool, err error) {
	n, known, err = l.engine.count(ctx, l.query.within(nil, before), most)
	if known {
		l.use(max(1, (n+999)/1000), 0)
	}
	return n, known, err
}

// count counts the entities of a query, or up to most of them. It is not known if the
// database can't.
func (e *Engine) count(ctx context.Context, q *datastore.Query, most int) (n int64, known bool, err error) {
	result, err := e.client.RunAggregationQuery(ctx, q.Limit(most).NewAggregationQuery().WithCount("n"))
	if code := status.Code(err); code == codes.Unimplemented || code == codes.DeadlineExceeded && ctx.Err() == nil {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("count entities: %w", err)
	}
	value, ok := result["n"].(*datastorepb.Value)
	if !ok {
		return 0, false, fmt.Errorf("count entities: the answer has %T", result["n"])
	}
	return value.GetIntegerValue(), true, nil
}

func (l lookAround) use(reads, smallOps int64) {
	if l.used != nil {
		l.used.Reads += reads
		l.used.SmallOps += smallOps
	}
}
