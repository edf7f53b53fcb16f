package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/splitsim"
	"github.com/scattermap/scattermap/mapper/internal/survey"
	"github.com/scattermap/scattermap/tasks"
)

// PlanOptions say what a job would be like.
type PlanOptions struct {
	// StartOptions are those of the job. Splitting has to be the default.
	StartOptions

	// PerEntity is how long the function takes for an entity, up to StartOptions.Timeout.
	// Defaults to 2ms.
	PerEntity time.Duration

	// Visit says that the mapper is a [Visit], which writes no entities.
	Visit bool

	// Writes is how many entities an [Update] writes for each that it is called with, up to
	// 10,000. Defaults to 1.
	Writes float64

	// Prices are what Google charges. Defaults to [billing.NAM5].
	Prices billing.Prices
}

// An Estimate is what [Plan] expects of a job.
type Estimate struct {
	Entities int64 `json:"entities"`
	Exact    bool  `json:"exact"`              // the entities were counted; otherwise it is an estimate, within 25% two times in three
	AtLeast  bool  `json:"at_least,omitempty"` // it is no estimate: there are as many, or more, as they were counted no further

	Workers int           `json:"workers"` // tasks at once
	Pages   int64         `json:"pages"`   // that the job commits
	Tasks   int64         `json:"tasks"`   // of its ranges, without sweeps
	Takes   time.Duration `json:"takes"`   // nanoseconds, if calls take what they take in docs/scale.md

	Usage   billing.Usage `json:"usage"`   // what the job uses; RPCs are not estimated
	Dollars float64       `json:"dollars"` // what that costs

	// Used is what the plan itself has used to count and to sample. To see whether the database
	// serves the query takes a few reads more.
	Used billing.Usage `json:"used"`
}

// mostPlanned is up to how many entities Plan counts, and mostWrites the most that
// PlanOptions.Writes can be.
const (
	mostPlanned = 1_000_000
	mostWrites  = 10_000
)

// Plan estimates what a job over a query would take, without starting it. It counts up to
// a million entities, and estimates the size of kinds that are larger from a sample. That
// costs up to 1,000 reads for the first, and some 2,000 more for the second: up to 0.2 cents
// in the United States, and a cent or two for kinds of billions, where it may have to count
// anew. With filters, an ancestor, bounds or ShardBy a sample says little: it counts up to ten
// millions, which costs 11,000 reads, and no further. All this is for each kind in each
// namespace. Estimate.Used says how much it was. If the database neither counts nor has
// samples, that is an error.
func Plan(ctx context.Context, e *Engine, query Query, o *PlanOptions) (*Estimate, error) {
	var opts PlanOptions
	if o != nil {
		opts = *o
	}
	fail := func(err error) (*Estimate, error) { return nil, fmt.Errorf("mapper: plan: %w", err) }
	if e == nil || e.client == nil {
		return fail(fmt.Errorf("%w: the engine is nil", ErrArguments))
	}
	m := function.Update
	if opts.Visit {
		m, opts.Writes = function.Visit, 0
	} else if opts.Writes == 0 {
		opts.Writes = 1
	}
	opts.PerEntity = cmp.Or(opts.PerEntity, 2*time.Millisecond)
	if opts.Prices == (billing.Prices{}) {
		opts.Prices = billing.NAM5
	}
	longest := m.Longest(e.queue.Deadline())
	start := opts.withDefaults(longest)
	err := start.validate(longest, e.queue.Deadline())
	switch {
	case err != nil:
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	case opts.PerEntity < 0 || opts.PerEntity > start.Timeout:
		return fail(fmt.Errorf("%w: PlanOptions.PerEntity has to be in (0, %v], the Timeout; it is %v", ErrArguments, start.Timeout, opts.PerEntity))
	case !(opts.Writes >= 0 && opts.Writes <= mostWrites): // not a number, too
		return fail(fmt.Errorf("%w: PlanOptions.Writes has to be in [0, %d], it is %v", ErrArguments, mostWrites, opts.Writes))
	case !start.Splitting.strategy().Adaptive():
		return fail(fmt.Errorf("%w: StartOptions.Splitting has to be the default for a plan, it is %+v", ErrArguments, start.Splitting))
	}
	q, err := query.inner().Normal(m == function.Update)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	concurrent, err := e.concurrency(ctx)
	if err == nil {
		err = e.fillIn(&start, concurrent)
	}
	if err != nil {
		return fail(err)
	}
	src := e.source().Of(ctx, q)
	if q.Times, err = source.Probe(ctx, src, q); err != nil {
		return fail(err)
	}
	usual := int64(start.PageSize)
	if start.Rate != (Rate{}) {
		usual = int64(start.Rate.limit().Page(start.PageSize, opts.Writes, int64(max(start.Workers, concurrent)), 0, pace.WaitWithin(e.queue.Deadline())))
	}
	page := max(1, min(usual, int64(start.PageTime/opts.PerEntity)))
	est := &Estimate{Workers: start.Workers}
	least, err := est.size(ctx, src, q, start, page)
	if err != nil {
		return fail(err)
	}
	if err := est.expect(ctx, q, start, opts, page, usual, least); err != nil {
		return fail(err)
	}
	return est, nil
}

// size finds out how many entities a query has: in each of its spaces. It returns how many pages
// that takes at least, as none has entities of two spaces.
func (est *Estimate) size(ctx context.Context, src source.Source, q query.Query, start StartOptions, page int64) (least int64, err error) {
	var mu sync.Mutex
	est.Exact = true
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	for next := src.Spaces(gctx, q, nil, nil); ; {
		s, ok, err := next()
		if err != nil || !ok {
			err = cmp.Or(group.Wait(), err)
			return least, err
		}
		group.Go(func() error {
			part, err := sizeIn(gctx, src, q.In(s), start)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			est.Entities += part.Entities
			least += (part.Entities + page - 1) / page
			est.Exact, est.AtLeast = est.Exact && part.Exact, est.AtLeast || part.AtLeast
			est.Used.Reads += part.Used.Reads
			est.Used.SmallOps += part.Used.SmallOps
			return nil
		})
	}
}

// sizeIn finds out how many entities a query over one space has.
func sizeIn(ctx context.Context, src source.Source, q query.Query, start StartOptions) (est Estimate, err error) {
	look := survey.Survey{Source: src, Query: q, Page: int64(start.PageSize), Refine: true, Used: &est.Used}
	n, known := look.Count(ctx, nil, mostPlanned)
	if known && n < mostPlanned {
		est.Entities, est.Exact = n, true
		return est, nil
	}
	found, err := look.Run(ctx, split.Strategy{}, int64(start.Workers))
	if est.Entities = max(n, found.Estimate); err == nil && est.Entities == 0 {
		err = errors.New("the database neither counts entities nor has samples of them, so their number is not known")
	}
	est.AtLeast = known && (found.Estimate <= n || !q.Plain() && est.Entities >= split.MostCounted)
	return est, err
}

// mostModelled is how many pages are modelled one by one: of more, a part.
const mostModelled = 1_000_000

// expect fills in what follows from the number of entities, for pages of a size, and at least so
// many of them; usual is their size if the function is fast.
func (est *Estimate) expect(ctx context.Context, q query.Query, start StartOptions, o PlanOptions, page, usual, least int64) error {
	times := splitsim.UsualTimes(tasks.Parallel)
	times.Page += time.Duration(page) * o.PerEntity
	part := 1 + est.Entities/page/mostModelled
	m, err := splitsim.Run(ctx, splitsim.VirtualKind{N: est.Entities / part, Key: splitsim.SequentialKey}, int64(start.Workers), page, usual, times)
	if err != nil {
		return err
	}
	m.Pages, m.Tasks = m.Pages*part, m.Tasks*part
	if q.Many() { // the model knows one space only
		m.Pages, m.Tasks = max(m.Pages, least), max(m.Tasks, min(int64(start.Workers), least/split.FewPages))
	}
	est.Pages, est.Tasks = m.Pages, m.Tasks
	est.Takes = m.Takes(int64(start.Workers))
	if n := float64(est.Entities); start.Rate != (Rate{}) {
		est.Takes = max(est.Takes, start.Rate.limit().Takes(n, n*o.Writes+float64(pace.RecordWrites*m.Pages)))
	}
	est.Usage = billing.Usage{
		Reads:    est.Entities + 3*m.Pages + m.Tasks, // of the entities; of the records, and the queries for keys; of jobs
		SmallOps: est.Entities,
		Writes:   int64(float64(est.Entities)*o.Writes) + pace.RecordWrites*m.Pages,
		TaskOps:  2 * (m.Tasks + 1), // the last one ends the job
	}
	if q.KeysOnly {
		est.Usage.Reads -= est.Entities
	}
	est.Dollars = o.Prices.Cost(est.Usage)
	return nil
}
