package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/executor"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undo"
)

var errNoEngine = fmt.Errorf("mapper: start: %w: the engine is nil", ErrInvalidArgument)

// StartByName is [Mapper.Start] for one of the engine's mappers, by its name, with parameters in
// JSON. Use it where the mapper is known only by name, such as in command lines and web pages. For
// a mapper without parameters pass {}. If params is empty or null, the error is
// [ErrInvalidArgument].
func (e *Engine) StartByName(
	ctx context.Context, mapper string, q Query, params json.RawMessage, o *StartOptions,
) (*Job, error) {
	if e == nil {
		return nil, errNoEngine
	}
	def, ok := e.mappers[mapper]
	if !ok || undo.Is(mapper) { // undos are started only by Job.Undo
		return nil, fmt.Errorf("mapper: start: %w %q: have %s", ErrUnknownMapper, mapper, e.names())
	}
	if onlyInside(def) {
		return nil, fmt.Errorf("mapper: start: %w: only the service itself starts jobs of %q; you can start %s",
			ErrInvalidArgument, mapper, e.names())
	}
	if start, ok := def.ByName.(starter); ok {
		return start(ctx, e, q, params, o)
	}
	return e.start(ctx, def, q, params, o)
}

func (e *Engine) start(
	ctx context.Context, def *function.Definition, query Query, params json.RawMessage, o *StartOptions,
) (_ *Job, failed error) {
	s, err := e.prepare(def, query, params, o)
	if err != nil {
		return nil, err
	}
	ctx, ended := s.traced(ctx)
	defer func() { ended(failed) }()
	if err := s.findOut(ctx); err != nil {
		return nil, err
	}
	return s.run(ctx, nil)
}

// A starting is a job that is about to start: the arguments of its start, and what has been found
// out for it.
type starting struct {
	engine  *Engine
	on      *ownQueue // the job's queue
	def     *function.Definition
	query   query.Query
	params  json.RawMessage
	opts    StartOptions
	named   bool // whether the caller has chosen the ID
	control *lifecycle.Jobs
	found   lifecycle.Findings
	created *record.Job
}

func (s *starting) fail(err error) error {
	return fmt.Errorf("mapper: start %s of %q: %w", s.opts.ID, s.def.Name, err)
}

func (s *starting) traced(ctx context.Context) (context.Context, func(error)) {
	return s.engine.jobs.Observer.Start(ctx, s.def.Name, s.opts.ID[:min(len(s.opts.ID), 100)])
}

// prepare checks the arguments of a start. It makes no calls of the database or the queue.
func (e *Engine) prepare(
	def *function.Definition, query Query, params json.RawMessage, o *StartOptions,
) (*starting, error) {
	if e == nil || e.client == nil {
		return nil, errNoEngine
	}
	if o != nil && o.DryRun && !record.IsRehearsal(def.Name) {
		if def.Mode != function.Update {
			return nil, fmt.Errorf("mapper: start a rehearsal of %q: %w: only the function of a mapper.Update can "+
				"run without effects; try this job on a small share of the entities", def.Name, ErrInvalidArgument)
		}
		if e.mappers[def.Name] == def {
			def = e.mappers[def.Rehearsal(0).Name]
		}
	}
	on, err := e.queues.forStart(def, o)
	if err != nil {
		return nil, fmt.Errorf("mapper: start a job of %q: %w", def.Name, err)
	}
	deadline := on.queue.DispatchDeadline()
	longest := def.Mode.Longest(deadline)
	s := &starting{engine: e, on: on, def: def, opts: o.withDefaults(longest), named: o != nil && o.ID != "",
		control: on.jobs.Asked()}
	if e.mappers[def.Name] != def {
		return nil, s.fail(fmt.Errorf("%w: it is not among the mappers of this engine", ErrUnknownMapper))
	}
	if s.query = query.inner(); !undo.Is(def.Name) { // the query of an undo selects records
		s.query, err = s.query.Normal(def.Mode.Updates())
	}
	if err = cmp.Or(err, s.opts.validate(longest, deadline)); err == nil {
		s.params, err = def.Canonical(params)
	}
	if err != nil {
		return nil, s.fail(fmt.Errorf("%w: %w", ErrInvalidArgument, err))
	}
	if s.query.Many() && !s.opts.Splitting.strategy().Adaptive() {
		return nil, s.fail(setting.Errorf("%w: StartOptions.Splitting has one of the ways of other mappers, which "+
			"are over one kind in one namespace", ErrInvalidArgument))
	}
	return s, nil
}

// findOut reads from the database and the queue what the start needs to know, and makes the job's
// record. It returns an error if the job can't run with this database and this queue.
func (s *starting) findOut(ctx context.Context) (err error) {
	e := s.engine
	if !undo.Is(s.def.Name) && !names.Owns(ctx) {
		if err := s.query.Foreign(); err != nil {
			return s.fail(fmt.Errorf("%w: %w", ErrInvalidArgument, err))
		}
	}
	if s.found, err = s.control.FindOut(ctx, e.source().Of(ctx, s.query), s.query, s.opts.ID, s.named,
		s.opts.AllowEmpty); err != nil {
		return s.fail(err)
	}
	if err := e.fillIn(&s.opts, s.def.Mode, s.found.Concurrent, s.on.queue.DispatchDeadline()); err != nil {
		return s.fail(err)
	}
	if s.created, err = newJob(s.def, s.query, s.params, s.opts, s.on.queue.Name(), s.found.Concurrent,
		s.on.jobs.Random()); err != nil {
		return s.fail(err)
	}
	s.created.Retain = max(0, cmp.Or(s.opts.Retain, e.retain))
	s.created.Beside = s.opts.AllowOverlap || undo.Is(s.def.Name) || EngineFromContext(ctx) != nil
	if s.found.Existing == nil {
		if err := cmp.Or(s.found.Database(s.created), checkNewID(s.opts.ID)); err != nil {
			return s.fail(err)
		}
	}
	return nil
}

// A turn is a run of a schedule, which a job carries out.
type turn struct {
	schedule string
	begin    func(*datastore.Transaction) error // called in the start's transaction; its error prevents the start
}

// run starts the job. If a job with its ID exists, run returns that job. If t is not nil, the job
// is the run t of a schedule.
func (s *starting) run(ctx context.Context, t *turn) (*Job, error) {
	var when func(*datastore.Transaction) error
	if t != nil {
		s.created.Schedule, when = t.schedule, t.begin
	}
	var first record.First
	if s.found.Existing == nil && !undo.Is(s.def.Name) {
		first = s.on.ranges.First(ctx, s.created)
	}
	job, err := s.control.Start(ctx, s.created, s.found.Existing, first, when)
	if err != nil {
		return nil, s.fail(err)
	}
	return &Job{ID: job.ID, incarnation: job.Incarnation, engine: s.engine}, nil
}

// maxArguments is the largest size of a job's query and parameters together, as JSON in bytes. A
// record has up to 1 MiB. The job's record also needs room for counters (package tally), and for
// the numbers of each kind and namespace (maxSpaceBytes).
const maxArguments = 320 << 10

// newJob returns the record of a job that is about to start. The parameter concurrent is how many
// tasks the queue delivers at the same time; 0 means unknown. The parameter number makes the job's
// incarnation, which tells it from other jobs with the same ID.
func newJob(
	def *function.Definition, q query.Query, params json.RawMessage, opts StartOptions, queue string, concurrent int,
	number uint64,
) (*record.Job, error) {
	now, retries := time.Now().UTC().Truncate(time.Microsecond), opts.Retries.of(def)
	j := &record.Job{
		ID: opts.ID, Mapper: def.Name, Queue: record.Owner(queue), Params: params, State: record.Running,
		PageSize: int64(opts.PageSize), PageTime: int64(opts.PageTime), Timeout: int64(opts.EntityTimeout),
		Workers: int64(opts.ExpectedWorkers), Concurrency: concurrencyOf(opts, def),
		Concurrent: int64(concurrent), RampFrom: now, Background: opts.Background,
		Limit: int64(opts.FailureLimit), LimitStep: int64(opts.FailureLimit), LimitShare: opts.FailureShare,
		Created:  now,
		Tolerant: opts.FailureLimit < 0, AttemptSettings: record.AttemptSettings{Attempts: int64(retries.MaxAttempts),
			BackoffFirst: int64(retries.MinBackoff), BackoffMax: int64(retries.MaxBackoff)},
	}
	for to, v := range map[*[]byte]any{&j.Query: q, &j.Splitting: opts.Splitting, &j.Rate: opts.Rate.limit(),
		&j.Budget: opts.Budget} {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		if string(text) != "{}" { // {} stands for the default
			*to = text
		}
	}
	if n := len(j.Query) + len(j.Params); n > maxArguments {
		return nil, fmt.Errorf("%w: Query and params take %d bytes as JSON, above the maximum of %d",
			ErrInvalidArgument, n,
			maxArguments)
	}
	j.Incarnate(number)
	return j, nil
}

// fillIn sets the default number of workers, and checks the settings that depend on it. The
// parameter concurrent is how many tasks the queue delivers at the same time; 0 means unknown. The
// parameter deadline is the queue's dispatch deadline.
func (e *Engine) fillIn(opts *StartOptions, mode function.Mode, concurrent int, deadline time.Duration) error {
	opts.ExpectedWorkers = cmp.Or(opts.ExpectedWorkers, min(concurrent, maxWorkers), defaultWorkers)
	err := opts.Rate.limit().Validate("StartOptions.Rate", int64(max(opts.ExpectedWorkers, concurrent)),
		deadline)
	if err == nil {
		err = executor.CheckBudget(record.Budget(opts.Budget), opts.PageSize, max(opts.ExpectedWorkers, concurrent),
			mode.Writes(), e.prices)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return nil
}

// adapt changes a job's record for a move of the job to another queue, the parameter to. It returns
// an error if the job can't run in that queue.
func (e *Engine) adapt(ctx context.Context, to *ownQueue, j *record.Job) error {
	def, deadline := e.mappers[j.Mapper], to.queue.DispatchDeadline()
	if def == nil {
		return fmt.Errorf("%w %q: have %s", ErrUnknownMapper, j.Mapper, e.names())
	}
	concurrent, err := lifecycle.Concurrency(ctx, to.queue)
	if err != nil {
		return err
	}
	j.Concurrent = int64(concurrent)
	opts, err := settingsOf(j)
	if err == nil {
		err = cmp.Or(opts.validate(def.Mode.Longest(deadline), deadline),
			opts.Rate.limit().Validate("StartOptions.Rate", j.AtOnce(), deadline))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	return nil
}
