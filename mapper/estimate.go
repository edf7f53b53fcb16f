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
	Exact    bool  `json:"exact"` // the entities were counted; otherwise it is an estimate, within 25% two times in three

	Workers int           `json:"workers"` // tasks at once
	Pages   int64         `json:"pages"`
	Tasks   int64         `json:"tasks"`
	Takes   time.Duration `json:"takes"` // nanoseconds, if calls take what they take in docs/scale.md

	Usage   billing.Usage `json:"usage"`   // what the job uses; RPCs are not estimated
	Dollars float64       `json:"dollars"` // what that costs

	Used billing.Usage `json:"used"` // what the plan itself has used
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
// anew. Estimate.Used says how much it was. If the database neither counts nor has samples,
// that is an error.
func Plan(ctx context.Context, e *Engine, q Query, o *PlanOptions) (*Estimate, error) {
	var opts PlanOptions
	if o != nil {
		opts = *o
	}
	fail := func(err error) (*Estimate, error) { return nil, fmt.Errorf("mapper: plan: %w", err) }
	if e == nil || e.client == nil {
		return fail(fmt.Errorf("%w: the engine is nil", ErrArguments))
	}
	m := update
	if opts.Visit {
		m, opts.Writes = visit, 0
	} else if opts.Writes == 0 {
		opts.Writes = 1
	}
	opts.PerEntity = cmp.Or(opts.PerEntity, 2*time.Millisecond)
	if opts.Prices == (billing.Prices{}) {
		opts.Prices = billing.NAM5
	}
	start, _, err := e.settings(ctx, m, &opts.StartOptions)
	switch {
	case err != nil:
		return fail(err)
	case opts.PerEntity < 0 || opts.PerEntity > start.Timeout:
		return fail(fmt.Errorf("%w: PlanOptions.PerEntity has to be in (0, %v], the Timeout; it is %v", ErrArguments, start.Timeout, opts.PerEntity))
	case !(opts.Writes >= 0 && opts.Writes <= mostWrites): // not a number, too
		return fail(fmt.Errorf("%w: PlanOptions.Writes has to be in [0, %d], it is %v", ErrArguments, mostWrites, opts.Writes))
	case !start.Splitting.adaptive():
		return fail(fmt.Errorf("%w: StartOptions.Splitting has to be the default for a plan, it is %+v", ErrArguments, start.Splitting))
	}
	if q, err = q.normal(m); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	q.at = e.snapshot(ctx, q)
	if q.times, err = e.probe(ctx, q); err != nil {
		return fail(err)
	}
	est := &Estimate{Workers: start.Workers, Used: billing.Usage{RPCs: make(map[string]int64)}}
	if est.Entities, est.Exact, err = e.size(ctx, q, start, &est.Used); err != nil {
		return fail(err)
	}
	if err := est.expect(ctx, q, start, opts); err != nil {
		return fail(err)
	}
	return est, nil
}

// size finds out how many entities a query has.
func (e *Engine) size(ctx context.Context, q Query, start StartOptions, used *billing.Usage) (n int64, exact bool, err error) {
	if q.many() {
		return e.sizeOfMany(ctx, q, used)
	}
	look := lookAround{engine: e, query: q, page: int64(start.PageSize), refine: true, used: used}
	n, known := look.count(ctx, nil, mostPlanned)
	if known && n < mostPlanned {
		return n, true, nil
	}
	found, err := look.around(ctx, Splitting{}, int64(start.Workers))
	if n = max(n, found.estimate); err == nil && n == 0 {
		err = errors.New("the database neither counts entities nor has samples of them, so their number is not known")
	}
	return n, false, err
}

// sizeOfMany counts the entities of a query in each of its spaces.
func (e *Engine) sizeOfMany(ctx context.Context, q Query, used *billing.Usage) (n int64, exact bool, err error) {
	var mu sync.Mutex
	exact = true
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(sweepParallel)
	next := e.spaces(gctx, q, nil, nil)
	for {
		s, ok, err := next()
		if err != nil || !ok {
			err = cmp.Or(group.Wait(), err) // before n is read
			return n, exact, err
		}
		group.Go(func() error {
			q := q.in(s)
			count, known := e.count(gctx, q.scans(nil, nil), mostPlanned)
			if !known {
				return errors.New("the database does not count entities, so the number of those of several kinds or namespaces is not known")
			}
			mu.Lock()
			defer mu.Unlock()
			n += count
			exact = exact && count < mostPlanned
			used.Reads += max(1, (count+999)/1000)
			return nil
		})
	}
}

// expect fills in what follows from the number of entities.
func (est *Estimate) expect(ctx context.Context, q Query, start StartOptions, o PlanOptions) error {
	page := max(1, min(int64(start.PageSize), int64(start.PageTime/o.PerEntity)))
	times := usualTimes
	times.page += time.Duration(page) * o.PerEntity
	m, err := runModel(ctx, virtualKind{n: est.Entities, key: sequentialKey}, int64(start.Workers), page, times)
	if err != nil {
		return err
	}
	est.Pages, est.Tasks = m.pages, m.tasks
	est.Takes = m.takes(int64(start.Workers))
	if n := float64(est.Entities); start.Rate != (Rate{}) {
		est.Takes = max(est.Takes, start.Rate.takes(n, n*o.Writes+float64(recordWrites*m.pages)))
	}
	est.Usage = billing.Usage{
		Reads:    est.Entities + 3*m.pages + m.tasks, // of the entities; of the records, and the queries for keys; of jobs
		SmallOps: est.Entities,
		Writes:   int64(float64(est.Entities)*o.Writes) + recordWrites*m.pages,
		TaskOps:  2 * m.tasks,
	}
	if q.KeysOnly {
		est.Usage.Reads -= est.Entities
	}
	est.Dollars = o.Prices.Cost(est.Usage)
	return nil
}

// takes returns how long so many entities and writes take at a rate.
func (r Rate) takes(entities, writes float64) time.Duration {
	var t time.Duration
	for entities > 0 || writes > 0 {
		perSecond, writesPerSecond := r.at(t)
		rest := time.Duration(min(max(entities/perSecond, writes/writesPerSecond), maxTakes.Seconds()) * float64(time.Second))
		if !r.Ramp || rest <= rampEvery {
			return t + rest
		}
		entities, writes = entities-perSecond*rampEvery.Seconds(), writes-writesPerSecond*rampEvery.Seconds()
		t += rampEvery
	}
	return t
}
