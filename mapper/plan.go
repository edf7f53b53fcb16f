package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	queries "github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/survey"
	"github.com/scattermap/scattermap/tasks"
)

// PlanOptions say what a job would be like.
type PlanOptions struct {
	// StartOptions are those of the job. Splitting has to be the default.
	StartOptions

	// TimePerEntity is how long the function takes for an entity, up to StartOptions.EntityTimeout.
	// Defaults to 2ms.
	TimePerEntity time.Duration

	// WritesPerEntity is how many entities an [Update] writes for each that it is called with, up
	// to 10,000. Defaults to 1. A [Visit] and a dry run write none.
	WritesPerEntity float64

	// Params are the parameters of the job, as JSON, which are checked as a start does. They change
	// no estimate. Empty ones are not checked.
	Params json.RawMessage
}

// An Estimate is what [Mapper.Plan] expects of a job.
type Estimate struct {
	Entities int64 `json:"entities"`
	// the entities were counted; otherwise it is an estimate, within 25% two times in three
	Exact bool `json:"exact"`
	// it is no estimate: there are as many, or more, as they were counted no further
	LowerBound bool `json:"at_least,omitempty"`

	Workers  int           `json:"workers"`  // tasks at once
	Pages    int64         `json:"pages"`    // that the job commits
	Tasks    int64         `json:"tasks"`    // of its ranges, without sweeps
	Duration time.Duration `json:"takes_ns"` // if calls take what they take in docs/scale.md

	Usage   billing.Usage `json:"usage"`   // what the job uses; RPCs are not estimated
	Dollars float64       `json:"dollars"` // what that costs

	// Spent is what the plan itself has used to count and to sample. To see whether the database
	// serves the query takes a few reads more.
	Spent billing.Usage `json:"used"`
}

// Plan estimates what a job of the mapper over a query would take, without starting it. It counts
// up to a million entities, and estimates the size of kinds that are larger from a sample. That
// costs up to 1,000 reads for the first, and some 2,000 more for the second: up to 0.2 cents in the
// United States, and a cent or two for kinds of billions, where it may have to count anew. With
// filters, an ancestor, bounds or ShardBy a sample says little: it counts up to ten millions, which
// costs 11,000 reads, and no further. All this is for each kind in each namespace, up to 1,000 of
// them: a query over more has at least what these have. Estimate.Spent says how much it was. If the
// database neither counts nor has samples, that is an error.
func (m *Mapper[P]) Plan(ctx context.Context, e *Engine, q Query, o *PlanOptions) (*Estimate, error) {
	if m == nil || m.def.Prepare == nil {
		return nil, fmt.Errorf("mapper: plan: %w: %w", ErrInvalidArgument, errNoMapper)
	}
	return e.plan(ctx, &m.def, q, o)
}

// PlanByName is [Mapper.Plan] for a job of one of the engine's mappers, by its name.
func (e *Engine) PlanByName(ctx context.Context, mapper string, q Query, o *PlanOptions) (*Estimate, error) {
	if e == nil || e.mappers[mapper] == nil {
		return nil, fmt.Errorf("mapper: plan: %w %q", ErrUnknownMapper, mapper)
	}
	return e.plan(ctx, e.mappers[mapper], q, o)
}

// checkGiven returns what is wrong with the parameters of a start by name, if there are any.
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

// mostWrites is the most that PlanOptions.WritesPerEntity can be.
const mostWrites = 10_000

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
	if opts.DryRun { // which writes as little as a Visit
		m = function.Visit
	}
	if m == function.Visit {
		opts.WritesPerEntity = 0
	} else if opts.WritesPerEntity == 0 {
		opts.WritesPerEntity = 1
	}
	opts.TimePerEntity = cmp.Or(opts.TimePerEntity, 2*time.Millisecond)
	longest := m.Longest(e.queue.DispatchDeadline())
	start := opts.withDefaults(longest)
	err := start.validate(longest, e.queue.DispatchDeadline())
	switch {
	case err != nil:
		return fail(fmt.Errorf("%w: %w", ErrInvalidArgument, err))
	case opts.TimePerEntity < 0 || opts.TimePerEntity > start.EntityTimeout:
		return fail(setting.Errorf("%w: PlanOptions.TimePerEntity has to be in (0, %v], which is "+
			"StartOptions.EntityTimeout; it is %v",
			ErrInvalidArgument,
			start.EntityTimeout, opts.TimePerEntity))
	case !(opts.WritesPerEntity >= 0 && opts.WritesPerEntity <= mostWrites): // not a number, too
		return fail(setting.Errorf("%w: PlanOptions.WritesPerEntity has to be in [0, %d], it is %v", ErrInvalidArgument,
			mostWrites,
			opts.WritesPerEntity))
	case !start.Splitting.strategy().Adaptive():
		return fail(setting.Errorf("%w: StartOptions.Splitting has to be the default for a plan", ErrInvalidArgument))
	}
	q, err := query.inner().Normal(m == function.Update)
	if err == nil {
		err = queries.Foreign(q)
	}
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrInvalidArgument, err))
	}
	concurrent, err := lifecycle.Concurrency(ctx, e.queue)
	if err == nil {
		err = e.fillIn(&start, m, concurrent, e.queue.DispatchDeadline())
	}
	if err != nil {
		return fail(err)
	}
	src := e.source().Of(ctx, q)
	if q.Times, err = source.Probe(ctx, src, q, start.AllowEmpty); err != nil {
		return fail(err)
	}
	job := &estimate.Job{
		Query: q, PageSize: int64(start.PageSize), PageTime: start.PageTime, Workers: int64(start.ExpectedWorkers),
		AtOnce: int64(max(start.ExpectedWorkers, concurrent)),
		Rate:   start.Rate.limit(), Deadline: e.queue.DispatchDeadline(), Update: m == function.Update,
		Writes:    opts.WritesPerEntity,
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
