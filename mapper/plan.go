package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/survey"
	"github.com/scattermap/scattermap/tasks"
)

// PlanOptions describe the job that [Mapper.Plan] plans.
type PlanOptions struct {
	// StartOptions are the settings of the job. Splitting must be the default.
	StartOptions

	// TimePerEntity is how long the function takes for an entity, up to StartOptions.EntityTimeout.
	// Defaults to 2 ms.
	TimePerEntity time.Duration

	// WritesPerEntity is how many entities an [Update] writes per call of its function, up to
	// 10,000. Defaults to 1. A [Visit] and a rehearsal write none.
	WritesPerEntity float64

	// CallsPerEntity is how many calls the function announces per entity ([Entity.AwaitCall]), up
	// to 10,000. It has no effect unless Rate limits calls: waiting for calls then ends pages
	// early. Defaults to 1.
	CallsPerEntity float64

	// Params are the parameters of the job as JSON. The plan checks them as a start does, unless
	// they are empty. They do not change the estimate.
	Params json.RawMessage
}

// An Estimate is what [Mapper.Plan] expects of a job.
type Estimate struct {
	Entities int64 `json:"entities"`
	// Exact says that Entities was counted. If Exact is false, Entities is an estimate, with an
	// error of at most 25% in two of three cases.
	Exact bool `json:"exact"`
	// LowerBound says that the count stopped at Entities: there may be more.
	LowerBound bool `json:"at_least,omitempty"`

	Workers int `json:"workers"` // the expected number of tasks that run at once
	// Pages is the number of commits of pages. If a Rate limits calls, it may be twice as large.
	Pages    int64         `json:"pages"`
	Tasks    int64         `json:"tasks"`    // the number of tasks for ranges
	Duration time.Duration `json:"takes_ns"` // about how long the job takes, with the latencies of docs/scale.md

	Usage   billing.Usage `json:"usage"`   // what the job uses; RPCs are not estimated
	Dollars float64       `json:"dollars"` // the cost of Usage

	// Spent is what the plan itself has used to count and to sample. It leaves out a few reads that
	// check whether the database serves the query.
	Spent billing.Usage `json:"used"`
}

// Plan estimates the entities, time and cost of a job, without starting it. The plan itself costs
// the following for each kind in each namespace:
//
//   - Up to a million entities are counted, for up to 1,000 reads.
//   - Larger kinds are estimated from a sample, for about 2,000 more reads. Together this costs up
//     to 0.2 cents in the United States. For billions of entities, the plan may also count more
//     than a million, for one or two cents.
//   - With filters, an ancestor, bounds or ShardBy, a sample says little. The plan then counts up
//     to ten million entities, for up to 11,000 reads, and stops there (Estimate.LowerBound).
//
// Plan looks at up to 1,000 pairs of kind and namespace. If the query has more, the estimate is a
// lower bound. Plan uses the settings of the job's queue. A nil o has all defaults. If the
// database can neither count nor sample, Plan returns an error.
func (m *Mapper[P]) Plan(ctx context.Context, e *Engine, q Query, o *PlanOptions) (*Estimate, error) {
	if m == nil || m.def.Prepare == nil {
		return nil, fmt.Errorf("mapper: plan: %w: %w", ErrInvalidArgument, errNoMapper)
	}
	return e.plan(ctx, &m.def, q, o)
}

// PlanByName is [Mapper.Plan] for one of the engine's mappers, by its name. If the engine has no
// such mapper, the error is [ErrUnknownMapper].
func (e *Engine) PlanByName(ctx context.Context, mapper string, q Query, o *PlanOptions) (*Estimate, error) {
	if e == nil || e.mappers[mapper] == nil {
		return nil, fmt.Errorf("mapper: plan: %w %q: have %s", ErrUnknownMapper, mapper, e.names())
	}
	return e.plan(ctx, e.mappers[mapper], q, o)
}

// checkGiven returns an error if the parameters of a planned job are invalid.
func checkGiven(def *function.Definition, params json.RawMessage) (err error) {
	switch {
	case len(params) == 0:
	case def.Given != nil:
		err = def.Given(params)
	case def.ByName == nil:
		_, err = def.Canonical(params)
	}
	return err
}

// mostEach is the greatest value of PlanOptions.WritesPerEntity and CallsPerEntity.
const mostEach = 10_000

// validate returns an error that names the first invalid option of a plan. The parameter start has
// the settings of the planned job. The parameter longest is the upper limit of its EntityTimeout,
// and deadline is the queue's dispatch deadline.
func (o *PlanOptions) validate(start StartOptions, longest, deadline time.Duration) error {
	err := start.validate(longest, deadline)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	case names.Word(start.ID):
		return checkNewID(start.ID)
	case o.TimePerEntity < 0 || o.TimePerEntity > start.EntityTimeout:
		return setting.Errorf("%w: PlanOptions.TimePerEntity has to be in (0, %v], which is "+
			"StartOptions.EntityTimeout; it is %v", ErrInvalidArgument, start.EntityTimeout, o.TimePerEntity)
	case !(o.WritesPerEntity >= 0 && o.WritesPerEntity <= mostEach): // also NaN
		return setting.Errorf("%w: PlanOptions.WritesPerEntity has to be in [0, %d], it is %v", ErrInvalidArgument,
			mostEach, o.WritesPerEntity)
	case !(o.CallsPerEntity >= 0 && o.CallsPerEntity <= mostEach):
		return setting.Errorf("%w: PlanOptions.CallsPerEntity has to be in [0, %d], it is %v", ErrInvalidArgument,
			mostEach, o.CallsPerEntity)
	case !start.Splitting.strategy().Adaptive():
		return setting.Errorf("%w: StartOptions.Splitting has to be the default for a plan", ErrInvalidArgument)
	}
	return nil
}

func (e *Engine) plan(ctx context.Context, def *function.Definition, query Query, o *PlanOptions) (*Estimate, error) {
	var opts PlanOptions
	if o != nil {
		opts = *o
	}
	fail := func(err error) (*Estimate, error) { return nil, fmt.Errorf("mapper: plan: %w", err) }
	if e == nil || e.client == nil {
		return fail(fmt.Errorf("%w: the engine is nil", ErrInvalidArgument))
	}
	if err := checkGiven(def, opts.Params); err != nil {
		return nil, fmt.Errorf("mapper: plan a job of %q: %w: %w", def.Name, ErrInvalidArgument, err)
	}
	m := def.Mode
	if opts.DryRun { // a rehearsal writes nothing
		m = function.Rehearse
	}
	if m != function.Update {
		opts.WritesPerEntity = 0
	} else if opts.WritesPerEntity == 0 {
		opts.WritesPerEntity = 1
	}
	opts.TimePerEntity = cmp.Or(opts.TimePerEntity, 2*time.Millisecond)
	on, err := e.queues.forStart(def, &opts.StartOptions)
	if err != nil {
		return fail(err)
	}
	deadline := on.queue.DispatchDeadline()
	longest := m.Longest(deadline)
	start := opts.withDefaults(longest)
	if err := opts.validate(start, longest, deadline); err != nil {
		return fail(err)
	}
	q, err := query.inner().Normal(m.Updates())
	if err == nil {
		err = q.Foreign()
	}
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrInvalidArgument, err))
	}
	concurrent, err := lifecycle.Concurrency(ctx, on.queue)
	if err == nil {
		err = e.fillIn(&start, m, concurrent, deadline)
	}
	if err != nil {
		return fail(err)
	}
	src := e.source().Of(ctx, q)
	if q.Times, err = src.Probe(ctx, q, start.AllowEmpty); err != nil {
		return fail(err)
	}
	job := &estimate.Job{
		Query: q, PageSize: int64(start.PageSize), PageTime: start.PageTime, Workers: int64(start.ExpectedWorkers),
		AtOnce: int64(max(start.ExpectedWorkers, concurrent)),
		Rate:   start.Rate.limit(), Deadline: deadline, Update: m.Updates(),
		Writes: opts.WritesPerEntity, Calls: cmp.Or(opts.CallsPerEntity, 1),
		PerEntity: max(1, opts.TimePerEntity/time.Duration(max(1, concurrencyOf(start, def)))), Prices: e.prices,
		Parallel: tasks.Parallel,
	}
	size, err := survey.SizeOf(ctx, src, job)
	if err != nil {
		return fail(err)
	}
	est, err := estimate.ForecastOf(ctx, job, size)
	if err != nil {
		return fail(err)
	}
	return (*Estimate)(est), nil
}
