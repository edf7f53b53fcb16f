package mapper

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/scattermap/scattermap/billing"
)

// PlanOptions say what a job would be like.
type PlanOptions struct {
	// StartOptions are those of the job.
	StartOptions

	// PerEntity is how long the function takes for an entity. Defaults to 2ms.
	PerEntity time.Duration

	// Visit says that the mapper is a [Visit], which writes no entities.
	Visit bool

	// Writes is how many entities an [Update] writes for each that it is called with.
	// Defaults to 1.
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

// mostPlanned is up to how many entities Plan counts.
const mostPlanned = 1_000_000

// Plan estimates what a job over a query would take, without starting it. It counts up to
// a million entities, and estimates the size of kinds that are larger from a sample; that
// costs up to 11,200 reads, or 0.7 cents in the United States. Estimate.Used says how much
// it was.
func Plan(ctx context.Context, e *Engine, q Query, o *PlanOptions) (*Estimate, error) {
	var opts PlanOptions
	if o != nil {
		opts = *o
	}
	fail := func(err error) (*Estimate, error) { return nil, fmt.Errorf("mapper: plan: %w", err) }
	if e == nil {
		return fail(fmt.Errorf("%w: the engine is nil", ErrArguments))
	}
	m := update
	if opts.Visit {
		m, opts.Writes = visit, 0
	} else if opts.Writes == 0 {
		opts.Writes = 1
	}
	if opts.PerEntity == 0 {
		opts.PerEntity = 2 * time.Millisecond
	}
	if opts.Prices == (billing.Prices{}) {
		opts.Prices = billing.NAM5
	}
	start, _, err := e.settings(ctx, m, &opts.StartOptions)
	switch {
	case err != nil:
		return fail(err)
	case opts.PerEntity < 0:
		return fail(fmt.Errorf("%w: PlanOptions.PerEntity is %v", ErrArguments, opts.PerEntity))
	case !(opts.Writes >= 0) || math.IsInf(opts.Writes, 1):
		return fail(fmt.Errorf("%w: PlanOptions.Writes is %v", ErrArguments, opts.Writes))
	}
	if err := q.validate(); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	est := &Estimate{Workers: start.Workers, Used: billing.Usage{RPCs: make(map[string]int64)}}
	if est.Entities, est.Exact, err = e.size(ctx, q, start, &est.Used); err != nil {
		return fail(err)
	}
	est.expect(start, opts)
	return est, nil
}

// size finds out how many entities a query has.
func (e *Engine) size(ctx context.Context, q Query, start StartOptions, used *billing.Usage) (n int64, exact bool, err error) {
	look := lookAround{engine: e, query: q, page: int64(start.PageSize), used: used}
	n, known, err := look.count(ctx, nil, mostPlanned)
	if err != nil || known && n < mostPlanned {
		return n, true, err
	}
	found, err := look.around(ctx, Splitting{}, int64(start.Workers))
	return found.estimate, false, err
}

// expect fills in what follows from the number of entities.
func (est *Estimate) expect(start StartOptions, o PlanOptions) {
	page := int64(start.PageSize)
	if o.PerEntity > 0 {
		page = max(1, min(page, int64(start.PageTime/o.PerEntity)))
	}
	times := usualTimes
	times.page += time.Duration(page) * o.PerEntity
	m := runModel(virtualKind{n: est.Entities, key: sequentialKey}, int64(start.Workers), page, times)
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
	est.Dollars = o.Prices.Cost(est.Usage)
}

// takes returns how long so many entities and writes take at a rate.
func (r Rate) takes(entities, writes float64) time.Duration {
	var t time.Duration
	for entities > 0 || writes > 0 {
		perSecond, writesPerSecond := r.at(t)
		rest := time.Duration(max(entities/perSecond, writes/writesPerSecond) * float64(time.Second))
		if !r.Ramp || rest <= rampEvery {
			return t + rest
		}
		entities, writes = entities-perSecond*rampEvery.Seconds(), writes-writesPerSecond*rampEvery.Seconds()
		t += rampEvery
	}
	return t
}
