package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Survey estimates how many entities a range of a job has, and where they lie in the order of
// keys, by samples and counts.
type Survey struct {
	Source source.Source
	Query  query.Query
	Start  *keyspace.Position // the start of the range; nil: the start of the query
	End    *keyspace.Position
	Space  keyspace.Space // the kind and namespace of the range, if the query has several
	Page   int64
	// Refine asks for further calls that improve the estimate. It is for callers without a job, in
	// which later counts would correct the estimate.
	Refine bool
	// Brief makes the survey return ErrLong if a few rounds of short calls are not enough for the
	// range.
	Brief bool
	Used  *billing.Usage // the cost of the survey's calls is added to it; may be nil

	// CountPieces returns the pieces (parts of the range) with their entities counted. It may be
	// nil.
	CountPieces func(pieces []split.Piece) []split.Piece

	// Next reads the entities of the range's first page, and one entity more. If it is nil, the
	// survey finds only the entity after the page.
	Next func() ([]*keyspace.Position, error)
}

// A Found is the result of a survey of a range.
type Found struct {
	Samples  []*keyspace.Position
	Estimate int64         // number of entities; 0: unknown
	Exact    bool          // whether Estimate was counted
	Pieces   []split.Piece // parts of the range, if the survey has counted their entities
}

// ErrLong is the error of a survey with Brief set that has not found out how large the range is.
var ErrLong = errors.New("the survey takes longer")

// sized is how many sampled entities are read to estimate the mean size of an entity in bytes.
const sized = 16

// Run makes the survey, with few calls compared with the processing of the range. If the range has
// only one page, Run makes only the first round: it reads a sample, and the keys of the page.
// Otherwise it makes two more calls, or counts the entities between samples. If the database can't
// count, Run only samples.
func (sv Survey) Run(ctx context.Context, sp split.Strategy, workers int64) (found Found, err error) {
	size := sp.SampleSize(workers)
	if found, settled, err := sv.runByCounts(ctx, workers); settled || err != nil {
		return found, err
	}
	if !sv.Query.Plain() {
		return sv.runSome(ctx, size)
	}
	var ranks []split.Rank
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		found.Samples, err = sv.inside(gctx, size)
		return err
	})
	group.Go(func() (err error) {
		ranks, found.Exact, err = sv.ranks(gctx)
		return err
	})
	if err := group.Wait(); err != nil {
		return found, err
	}
	if found.Exact {
		found.Estimate = ranks[len(ranks)-1].Before
		found.Exact = sp.Adaptive() && found.Estimate > 0
		return found, nil
	}
	if sv.Brief {
		return found, ErrLong
	}
	if len(found.Samples) == 0 && sp.Adaptive() && !sv.Refine {
		n, known := sv.Count(ctx, nil, split.MostCounted)
		found.Estimate, found.Exact = n, known && 0 < n && n < split.MostCounted
		return found, nil
	}
	if found.Estimate = sv.estimate(ctx, found.Samples, ranks); found.Estimate == 0 && len(found.Samples) > 0 &&
		!sv.Source.Counts() {
		found.Estimate = sv.Page * int64(len(found.Samples)+1) // the first page has no sample
	}
	more := split.SamplesFor(found.Estimate, sv.Page, workers)
	if len(found.Samples) < size || more <= size || !sp.Adaptive() {
		return found, nil
	}
	if found.Samples, err = sv.inside(ctx, more); err != nil {
		return found, err
	}
	found.Estimate = sv.estimate(ctx, found.Samples, ranks)
	return found, nil
}

// ranks returns positions in the range, each with the number of entities before it. If exact is
// true, the last of them is the end of the range.
func (sv Survey) ranks(ctx context.Context) (ranks []split.Rank, exact bool, err error) {
	first, err := sv.first(ctx)
	if err != nil {
		return nil, false, err
	}
	ranks = []split.Rank{first}
	if first.At == nil || !sv.Source.Counts() && !sv.Refine {
		return ranks, first.At == nil && sv.Next != nil, nil
	}
	var group sync.WaitGroup
	last := split.Rank{Before: split.RankPages * sv.Page}
	sv.use(1, 0)
	group.Go(func() {
		last.At, err = sv.Source.Find(ctx, sv.Query.Scans(sv.Start, sv.End), last.Before)
	})
	most := split.CountedPages * sv.Page
	n, known := sv.Count(ctx, nil, int(most))
	group.Wait()
	switch {
	case known && n < most:
		return []split.Rank{{Before: n}}, true, nil
	case err == nil:
		ranks = append(ranks, last)
	}
	return ranks, false, nil // after an error, the first rank is enough
}

// first returns the position after the range's first page, with the number of entities before it.
// If the range has at most one page, it returns no position, and the number of the range's
// entities.
func (sv Survey) first(ctx context.Context) (r split.Rank, err error) {
	r.Before = sv.Page
	if sv.Next == nil {
		sv.use(1, 0)
		r.At, err = sv.Source.Find(ctx, sv.Query.Scans(sv.Start, sv.End), sv.Page)
		return r, err
	}
	at, err := sv.Next()
	if err != nil {
		return r, err
	}
	if r.Before = min(sv.Page, int64(len(at))); r.Before < int64(len(at)) {
		r.At = at[r.Before]
	}
	return r, nil
}

// runSome surveys a range if the query selects only some entities of a kind, or is not in the order
// of keys. Then samples of the kind do not show how many entities there are. They only serve as
// places for cuts, and the entities between them are counted.
func (sv Survey) runSome(ctx context.Context, size int) (found Found, err error) {
	first, err := sv.first(ctx)
	if err != nil || first.At == nil {
		found.Estimate, found.Exact = first.Before, sv.Next != nil && first.Before > 0
		return found, err
	}
	few := int(split.RankPages * sv.Page)
	n, known := int64(0), false
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		n, known = sv.Count(gctx, nil, few)
		return nil
	})
	group.Go(func() (err error) {
		if sv.Query.ShardBy != "" {
			found.Samples, err = sv.values(gctx, size)
		} else {
			found.Samples, err = sv.inside(gctx, size)
		}
		return err
	})
	switch err := group.Wait(); {
	case err != nil:
		return found, err
	case known && n < int64(few):
		found.Estimate = n
		found.Exact = n > 0
	case sv.Brief:
		return found, ErrLong
	case known && sv.Refine:
		n, _ := sv.Count(ctx, nil, split.MostCounted)
		found.Estimate = max(n, int64(few))
	case known && len(found.Samples) == 0:
		n, _ := sv.Count(ctx, nil, int(split.FarPages*sv.Page))
		found.Estimate = max(n, int64(few))
	case known:
		found.Estimate = split.MostCountedPieces // the largest size for which the parts are counted
	default:
		found.Estimate = split.EstimateFrom(found.Samples, []split.Rank{first})
	}
	return found, nil
}

// bounds returns positions that limit where the range's entities are: at low or after it, and
// before high. A nil position is no limit.
func (sv Survey) bounds() (low, high *keyspace.Position) {
	low, high = sv.Query.Bounds()
	if sv.Start != nil && sv.Start.Space() == sv.Query.Space() && (low == nil || keyspace.Compare(low, sv.Start) < 0) {
		low = sv.Start
	}
	if sv.End != nil && sv.End.Space() == sv.Query.Space() && (high == nil || keyspace.Compare(sv.End, high) < 0) {
		high = sv.End
	}
	return low, high
}

// inside reads a sample of the kind, and returns the positions in it that are inside the range and
// the query.
func (sv Survey) inside(ctx context.Context, size int) ([]*keyspace.Position, error) {
	all, err := sv.sample(ctx, size)
	low, high := sv.bounds()
	return slices.DeleteFunc(all, func(p *keyspace.Position) bool {
		return low != nil && keyspace.Compare(p, low) <= 0 || high != nil && keyspace.Compare(p, high) >= 0 ||
			sv.Query.Ancestor != nil && !keyspace.Below(p.Key, sv.Query.Ancestor)
	}), err
}

// values returns positions between the first and the last value of the property in ShardBy, with
// values that are spread evenly. No entities need to be there.
func (sv Survey) values(ctx context.Context, size int) ([]*keyspace.Position, error) {
	low, high := sv.bounds()
	var err error
	if low == nil || !low.Valued {
		sv.use(1, 0)
		if low, err = sv.Source.Find(ctx, sv.Query.Scans(sv.Start, sv.End), 0); err != nil || low == nil {
			return nil, err
		}
	}
	if high == nil || !high.Valued {
		sv.use(1, 0)
		if high, err = sv.last(ctx); err != nil || high == nil {
			return nil, err
		}
	}
	var samples []*keyspace.Position
	for _, v := range keyspace.Spread(low.Value, high.Value, size) {
		samples = append(samples, &keyspace.Position{Namespace: sv.Query.Namespace, Kind: sv.Query.Kind, Valued: true,
			Value: v})
	}
	return samples, nil
}

// last returns the position of the query's last entity in the order of the property in ShardBy. If
// the database lacks the index for this, last ignores the query's filters and returns the last
// entity of the kind.
func (sv Survey) last(ctx context.Context) (last *keyspace.Position, err error) {
	q := sv.Query
	s := query.Scan{Query: q.Base().Order("-" + names.Field(q.ShardBy)), Property: q.ShardBy, Times: q.Times}
	if last, err = sv.Source.First(ctx, s, 0); status.Code(err) != codes.FailedPrecondition {
		return last, err
	}
	s.Query = datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("-" + names.Field(q.ShardBy))
	return sv.Source.First(ctx, s, 0)
}

// estimate estimates how many entities the range has. It uses sampled positions, and known
// positions with the number of entities before them. If these are not enough, or the kind is too
// large to count its parts later, it counts the entities before one of the samples.
func (sv Survey) estimate(ctx context.Context, samples []*keyspace.Position, known []split.Rank) int64 {
	if rough := split.EstimateFrom(samples, known); rough > 0 && rough <= split.MostCountedPieces && !sv.Refine {
		return rough
	}
	most := int64(split.MostAwaited)
	if sv.Refine {
		most = split.MostCounted
	}
	return split.EstimateBy(samples, known, most, func(before *keyspace.Position) (int64, bool) {
		return sv.Count(ctx, before, int(most))
	})
}

// EntitySize estimates the mean size of the entities in bytes. It returns 0 if that is unknown. It
// reads some of the sampled entities. If the query has ShardBy, it reads the first entities
// instead.
func (sv Survey) EntitySize(ctx context.Context, sample []*keyspace.Position) (int64, error) {
	var stored []wire.Stamp
	var err error
	if sv.Query.ShardBy == "" {
		var some []*keyspace.Position
		for i := 0; i < len(sample); i += (len(sample) + sized - 1) / sized {
			some = append(some, sample[i])
		}
		stored, err = source.EntityReader(sv.Source.Stored(ctx))(some)
	} else if scans := sv.Query.Scans(sv.Start, sv.End); len(scans) > 0 {
		var some *datastore.Query
		if some, err = sv.Source.At.Query(scans[0].Query.Limit(sized)); err == nil {
			taking, taken := wire.Taking(ctx)
			var none []datastore.PropertyList
			_, err = sv.Source.Client.GetAll(taking, some, &none)
			stored = taken.Of
		}
	}
	if err != nil || len(stored) == 0 {
		return 0, err
	}
	sv.use(int64(len(stored)), 0)
	bytes := int64(0)
	for _, s := range stored {
		bytes += int64(keyspace.EntitySize(s.Entity))
	}
	return max(1, bytes/int64(len(stored))), nil
}

// mostUnsharded is the largest number of pairs of kind and namespace in which Unsharded counts
// entities. If a job has more, Unsharded returns that the number is unknown, because a job waits
// for it.
const mostUnsharded = 100

// Unsharded returns how many entities of the query's kinds lack the property in ShardBy, so that
// the job does not process them. It returns a negative number if that is unknown, and 0 if the
// query has filters on this property.
func (sv Survey) Unsharded(ctx context.Context) int64 {
	if sv.Query.ShardBy == "" || len(sv.Query.Others()) < len(sv.Query.Filters) {
		return 0
	}
	var total atomic.Int64
	var group errgroup.Group
	group.SetLimit(source.Parallel)
	next := sv.Source.Spaces(ctx, sv.Query, nil, nil)
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
		q := sv.Query.In(s)
		group.Go(func() error {
			all, known := sv.Source.CountOne(ctx, query.Scan{Query: q.Base()}, math.MaxInt32)
			if !known {
				return errUncounted
			}
			seen, known := sv.Source.Count(ctx, q.Scans(nil, nil), math.MaxInt32)
			if !known {
				return errUncounted
			}
			total.Add(max(0, all-seen))
			return nil
		})
	}
}

var errUncounted = errors.New("it is not known how many there are")

func (sv Survey) sample(ctx context.Context, n int) ([]*keyspace.Position, error) {
	sample, err := sv.Source.Sample(ctx, sv.Query, n, split.MaxSampleBytes*split.MaxFanOut/2)
	if err != nil {
		return nil, fmt.Errorf("sample %q by __scatter__: %w", sv.Query.Kind, err)
	}
	sv.use(int64(len(sample)/query.Batch+1), int64(len(sample)))
	return sample, nil
}

// Count returns how many entities of the range come before a position, but at most most. A nil
// position stands for the end of the range. The bool is false if the number is unknown.
func (sv Survey) Count(ctx context.Context, before *keyspace.Position, most int) (n int64, known bool) {
	if before == nil {
		before = sv.End
	}
	n, known = sv.Source.Count(ctx, sv.Query.Scans(sv.Start, before), most)
	if known {
		sv.use(max(1, (n+999)/1000), 0) // 1,000 counted entities are billed as one read
	}
	return n, known
}

func (sv Survey) use(reads, smallOps int64) {
	if sv.Used != nil {
		atomic.AddInt64(&sv.Used.Reads, reads) // some calls run at the same time
		atomic.AddInt64(&sv.Used.SmallOps, smallOps)
	}
}
