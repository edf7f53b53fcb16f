package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// A survey finds out how large a kind is, and where its entities are.
type survey struct {
	source source
	query  Query
	start  *keyspace.Position // of the range
	end    *keyspace.Position
	page   int64
	refine bool           // the estimate is all that is known
	used   *billing.Usage // if not nil, what it uses is added to that

	weigh func(pieces []split.Piece) []split.Piece // if not nil, it counts what pieces have
}

// A surveyed is what a survey finds.
type surveyed struct {
	samples  []*keyspace.Position
	estimate int64         // of the entities; 0 is unknown
	pieces   []split.Piece // if they were counted to find that out
}

// sized is of how many entities of the sample the size is looked at.
const sized = 16

// run draws a sample and measures the beginning of the kind, at the same time. The two
// give an estimate of how many entities it has.
func (l survey) run(ctx context.Context, sp split.Strategy, workers int64) (found surveyed, err error) {
	size := sp.SampleSize(workers)
	if !l.query.plain() {
		return l.runSome(ctx, size)
	}
	milestones := make([]split.Rank, len(split.RankPages))
	errs := make([]error, len(milestones))
	group, gctx := errgroup.WithContext(ctx)
	for i, pages := range split.RankPages {
		l.use(1, 0)
		group.Go(func() error {
			milestones[i].Before = pages * l.page
			milestones[i].At, errs[i] = l.source.find(gctx, l.query.scans(l.start, l.end), milestones[i].Before)
			return nil
		})
	}
	group.Go(func() (err error) {
		found.samples, err = l.inside(gctx, size)
		return err
	})
	if err := group.Wait(); err != nil {
		return found, err
	}
	var known []split.Rank // some are enough
	for i, m := range milestones {
		if errs[i] == nil {
			known = append(known, m)
		}
	}
	if len(known) == 0 {
		return found, errs[0]
	}
	if l.weigh != nil && len(found.samples) == size && split.EstimateFrom(found.samples, known) == 0 {
		pieces := l.weigh(split.CutAtAllSamples(split.Piece{Start: l.start, End: l.end, Space: l.query.space(), Samples: found.samples, Workers: workers}))
		if total, ok := split.MostlyCounted(pieces); ok {
			found.estimate, found.pieces = total, pieces
			return found, nil
		}
	}
	found.estimate = l.estimate(ctx, found.samples, known)
	more := split.SamplesFor(found.estimate, l.page, workers)
	if len(found.samples) < size || more <= size || !sp.Adaptive() {
		return found, nil
	}
	if found.samples, err = l.inside(ctx, more); err != nil {
		return found, err
	}
	found.estimate = l.estimate(ctx, found.samples, known)
	return found, nil
}

// runSome surveys a query where a sample of the kind says little, as only some of its entities
// count, or keys do not matter. Its samples are places where ranges may be cut; what is between
// them has to be counted.
func (l survey) runSome(ctx context.Context, size int) (found surveyed, err error) {
	few := int(split.RankPages[len(split.RankPages)-1] * l.page)
	n, known := int64(0), false
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		n, known = l.count(gctx, nil, few)
		return nil
	})
	group.Go(func() (err error) {
		if l.query.ShardBy != "" {
			found.samples, err = l.values(gctx, size)
		} else {
			found.samples, err = l.inside(gctx, size)
		}
		return err
	})
	switch err := group.Wait(); {
	case err != nil:
		return found, err
	case known && n < int64(few):
		found.estimate = n
	case known && l.refine:
		n, _ := l.count(ctx, nil, split.MostCounted)
		found.estimate = max(n, int64(few))
	case known && len(found.samples) == 0:
		n, _ := l.count(ctx, nil, int(split.FarPages*l.page))
		found.estimate = max(n, int64(few))
	case known:
		found.estimate = split.MostCountedPieces // what its parts are counted up to
	default:
		at := split.Rank{Before: int64(few)}
		if at.At, err = l.source.find(ctx, l.query.scans(l.start, l.end), at.Before); err != nil {
			return found, err
		}
		l.use(1, 0)
		found.estimate = split.EstimateFrom(found.samples, []split.Rank{at})
	}
	return found, nil
}

// bounds returns the positions that all entities of the range are between; nil is no bound.
func (l survey) bounds() (low, high *keyspace.Position) {
	low, high = l.query.bounds()
	if l.start != nil && l.start.Space() == l.query.space() && (low == nil || keyspace.Compare(low, l.start) < 0) {
		low = l.start
	}
	if l.end != nil && l.end.Space() == l.query.space() && (high == nil || keyspace.Compare(l.end, high) < 0) {
		high = l.end
	}
	return low, high
}

// inside returns those of a sample of the kind that are inside the range, and the query.
func (l survey) inside(ctx context.Context, size int) ([]*keyspace.Position, error) {
	all, err := l.sample(ctx, size)
	low, high := l.bounds()
	return slices.DeleteFunc(all, func(p *keyspace.Position) bool {
		return low != nil && keyspace.Compare(p, low) <= 0 || high != nil && keyspace.Compare(p, high) >= 0 ||
			l.query.Ancestor != nil && !keyspace.Below(p.Key, l.query.Ancestor)
	}), err
}

// values returns positions that are spread evenly between the first and the last value.
func (l survey) values(ctx context.Context, size int) ([]*keyspace.Position, error) {
	low, high := l.bounds()
	var err error
	if low == nil || !low.Valued {
		l.use(1, 0)
		if low, err = l.source.find(ctx, l.query.scans(l.start, l.end), 0); err != nil || low == nil {
			return nil, err
		}
	}
	if high == nil || !high.Valued {
		l.use(1, 0)
		if high, err = l.last(ctx); err != nil || high == nil {
			return nil, err
		}
	}
	var samples []*keyspace.Position
	for _, v := range keyspace.Spread(low.Value, high.Value, size) {
		samples = append(samples, &keyspace.Position{Namespace: l.query.Namespace, Kind: l.query.Kind, Valued: true, Value: v})
	}
	return samples, nil
}

// last returns the position of the last entity. If the database has no index for that it is
// that of the kind.
func (l survey) last(ctx context.Context) (last *keyspace.Position, err error) {
	q := l.query
	s := scan{query: q.base().Order("-" + q.ShardBy), property: q.ShardBy, times: q.times}
	if last, err = l.source.first(ctx, s, 0); status.Code(err) != codes.FailedPrecondition {
		return last, err
	}
	s.query = datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("-" + q.ShardBy)
	return l.source.first(ctx, s, 0)
}

// estimate estimates how many entities the kind has, and counts some for that if it needs to:
// if nothing is known, or the pieces that the kind is cut into would be too many to be counted.
func (l survey) estimate(ctx context.Context, samples []*keyspace.Position, known []split.Rank) int64 {
	if rough := split.EstimateFrom(samples, known); rough > 0 && rough <= split.MostCountedPieces && !l.refine {
		return rough
	}
	return split.EstimateBy(samples, known, func(before *keyspace.Position) (int64, bool) { return l.count(ctx, before, split.MostCounted) })
}

// entitySize returns how many bytes entities have: the mean of some of those in a sample, or of
// the first ones; 0 is unknown.
func (l survey) entitySize(ctx context.Context, sample []*keyspace.Position) (int64, error) {
	var entities []datastore.PropertyList
	var err error
	if l.query.ShardBy == "" {
		var some []*keyspace.Position
		for i := 0; i < len(sample); i += (len(sample) + sized - 1) / sized {
			some = append(some, sample[i])
		}
		entities, _, err = entityReader(l.source.get(ctx))(some)
	} else if scans := l.query.scans(l.start, l.end); len(scans) > 0 {
		var some *datastore.Query
		if some, err = l.source.at.query(scans[0].query.Limit(sized)); err == nil {
			_, err = l.source.client.GetAll(ctx, some, &entities)
		}
	}
	if err != nil || len(entities) == 0 {
		return 0, err
	}
	l.use(int64(len(entities)), 0)
	bytes := int64(0)
	for _, e := range entities {
		bytes += int64(keyspace.PropertiesSize(e))
	}
	return max(1, bytes/int64(len(entities))), nil
}

// mostUnsharded is in up to how many spaces entities are counted that have not the property that
// the job is sharded by: a job over more does not wait for that.
const mostUnsharded = 100

// unsharded returns how many entities of the query have not the property that the job is sharded
// by; negative is unknown. If the query has filters on that property there are none.
func (l survey) unsharded(ctx context.Context) int64 {
	if l.query.ShardBy == "" || len(l.query.others()) < len(l.query.Filters) {
		return 0
	}
	var total atomic.Int64
	var group errgroup.Group
	group.SetLimit(sweepParallel)
	next := l.source.spaces(ctx, l.query, nil, nil)
	for n := 0; ; n++ {
		s, ok, err := next()
		if err == nil && ok && n == mostUnsharded {
			err = errUncounted
		}
		if err != nil || !ok {
			if err = cmp.Or(group.Wait(), err); err != nil {
				return -1
			}
			return total.Load()
		}
		q := l.query.in(s)
		group.Go(func() error {
			all, known := l.source.countOne(ctx, scan{query: q.base()}, math.MaxInt32)
			if !known {
				return errUncounted
			}
			seen, known := l.source.count(ctx, q.scans(nil, nil), math.MaxInt32)
			if !known {
				return errUncounted
			}
			total.Add(max(0, all-seen))
			return nil
		})
	}
}

var errUncounted = errors.New("it is not known how many there are")

func (l survey) sample(ctx context.Context, n int) ([]*keyspace.Position, error) {
	sample, err := l.source.sample(ctx, l.query, n, split.MaxSampleBytes*split.MaxFanOut/2)
	if err != nil {
		return nil, fmt.Errorf("sample %q by __scatter__: %w", l.query.Kind, err)
	}
	l.use(int64(len(sample)/queryBatch+1), int64(len(sample)))
	return sample, nil
}

// count counts the entities of the range before a position, or up to most of them.
func (l survey) count(ctx context.Context, before *keyspace.Position, most int) (n int64, known bool) {
	if before == nil {
		before = l.end
	}
	n, known = l.source.count(ctx, l.query.scans(l.start, before), most)
	if known {
		l.use(max(1, (n+999)/1000), 0) // 1,000 of them are billed as a read
	}
	return n, known
}

func (l survey) use(reads, smallOps int64) {
	if l.used != nil {
		atomic.AddInt64(&l.used.Reads, reads) // some calls are made at the same time
		atomic.AddInt64(&l.used.SmallOps, smallOps)
	}
}
