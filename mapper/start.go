package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

var errNoEngine = fmt.Errorf("mapper: start: %w: the engine is nil", ErrArguments)

// StartNamed starts a job by the name of its mapper and with parameters in
// JSON, for callers that don't have the mapper's value: command lines, pages,
// schedules. No parameters are written as {}.
func (e *Engine) StartNamed(ctx context.Context, mapper string, q Query, params json.RawMessage, o *StartOptions) (*Job, error) {
	if e == nil {
		return nil, errNoEngine
	}
	def, ok := e.mappers[mapper]
	if !ok {
		return nil, fmt.Errorf("mapper: start: %w %q: have %s", ErrUnknownMapper, mapper, e.names())
	}
	return e.start(ctx, def, q, params, o)
}

func (e *Engine) start(ctx context.Context, def *function.Definition, query Query, params json.RawMessage, o *StartOptions) (*Job, error) {
	if e == nil || e.client == nil {
		return nil, errNoEngine
	}
	longest := def.Mode.Longest(e.queue.Deadline())
	opts := o.withDefaults(longest)
	fail := func(err error) (*Job, error) {
		return nil, fmt.Errorf("mapper: start %s of %q: %w", opts.ID, def.Name, err)
	}
	if e.mappers[def.Name] != def {
		return fail(fmt.Errorf("%w: it is not in Options.Mappers of this engine", ErrUnknownMapper))
	}
	q, err := query.inner().Normal(def.Mode == function.Update)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	if err := opts.validate(longest, e.queue.Deadline()); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	if q.Many() && !opts.Splitting.strategy().Adaptive() {
		return fail(fmt.Errorf("%w: StartOptions.Splitting is %+v, and those ways of other mappers are over one kind in one namespace", ErrArguments, opts.Splitting))
	}
	if params, err = def.Canonical(params); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	found := e.findOut(ctx, q, o)
	concurrent, err := found.concurrent.value, found.concurrent.err
	if err != nil {
		return fail(err)
	}
	if err := e.fillIn(&opts, concurrent); err != nil {
		return fail(err)
	}
	created, err := newJob(def, q, params, opts, e.queue.Name(), concurrent, e.jobs.Random())
	if err != nil {
		return fail(err)
	}
	job := found.existing.value
	if job == nil {
		err = found.database(created)
	}
	if err == nil {
		job, err = e.jobs.Start(ctx, created, job)
	}
	if err != nil {
		return fail(err)
	}
	return &Job{ID: job.ID, incarnation: job.Incarnation, engine: e}, nil
}

// maxArguments leaves room in a job's record, which has up to 1 MiB, for its counters
// (of package tally) and its spaces (maxSpaceBytes).
const maxArguments = 320 << 10

// newJob returns the record of a new job.
func newJob(def *function.Definition, q query.Query, params json.RawMessage, opts StartOptions, queue string, concurrent int, number uint64) (*record.Job, error) {
	now, retries := time.Now().UTC().Truncate(time.Microsecond), opts.Retries.of(def)
	j := &record.Job{
		ID: opts.ID, Mapper: def.Name, Queue: record.Owner(queue), Params: params, State: record.Running,
		PageSize: int64(opts.PageSize), PageTime: int64(opts.PageTime), Timeout: int64(opts.Timeout), Workers: int64(opts.Workers),
		Concurrent: int64(concurrent), RampFrom: now,
		Limit: int64(opts.FailureLimit), LimitStep: int64(opts.FailureLimit), LimitShare: opts.FailureShare, Created: now,
		Tolerant: opts.FailureLimit < 0, AttemptSettings: record.AttemptSettings{Attempts: int64(retries.Attempts), BackoffFirst: int64(retries.First), BackoffMax: int64(retries.Max)},
	}
	var err error
	if j.Query, err = json.Marshal(q); err != nil {
		return nil, err
	}
	if n := len(j.Query) + len(j.Params); n > maxArguments {
		return nil, fmt.Errorf("%w: Query and params take %d bytes as JSON, above the maximum of %d", ErrArguments, n, maxArguments)
	}
	if j.Splitting, err = json.Marshal(opts.Splitting); err != nil {
		return nil, err
	}
	if opts.Rate != (Rate{}) {
		if j.Rate, err = json.Marshal(opts.Rate); err != nil {
			return nil, err
		}
	}
	j.Incarnate(number)
	return j, nil
}

// Findings are what a job's start has to find out.
type findings struct {
	concurrent answer[int]         // see [Engine.concurrency]
	existing   answer[*record.Job] // nil: there is none with the ID, or none was asked for
	masks      answer[bool]        // see source.honoursMasks
	times      answer[bool]        // see source.probe
}

// An answer is what one call of several at once has returned.
type answer[T any] struct {
	value T
	err   error
}

func answerOf[T any](value T, err error) answer[T] { return answer[T]{value, err} }

// findOut finds out all at once what a job's start has to know of the queue and the database,
// so that it takes as long as the slowest of these calls. A start that is repeated needs only
// one of them.
func (e *Engine) findOut(ctx context.Context, q query.Query, o *StartOptions) (found findings) {
	ctx, cancel := context.WithTimeout(ctx, source.Patience)
	defer cancel()
	src := e.source().Of(ctx, q)
	var group sync.WaitGroup
	group.Go(func() { found.concurrent = answerOf(e.concurrency(ctx)) })
	group.Go(func() { found.masks = answerOf(source.HonoursMasks(ctx, src)) })
	group.Go(func() { found.times = answerOf(source.Probe(ctx, src, q, o != nil && o.AllowEmpty)) })
	if o != nil && o.ID != "" {
		group.Go(func() {
			if found.existing = answerOf(e.store().LoadJob(ctx, record.Ref{ID: o.ID})); errors.Is(found.existing.err, ErrNoSuchJob) {
				found.existing.err = nil
			}
		})
	}
	group.Wait()
	return found
}

// database sets what a new job has to know of the database. If its job exists already, the caller
// may repeat its start when the database would not serve the query any more: this is for others.
func (f findings) database(job *record.Job) error {
	job.Masks, job.Times = f.masks.value, f.times.value
	return source.Unanswered(cmp.Or(f.existing.err, f.masks.err, f.times.err))
}

// fillIn sets and checks the settings of a job that depend on how many tasks the queue delivers
// at once, or 0 if nobody may know.
func (e *Engine) fillIn(opts *StartOptions, concurrent int) error {
	opts.Workers = cmp.Or(opts.Workers, min(concurrent, maxWorkers), defaultWorkers)
	err := opts.Rate.limit().Validate("StartOptions.Rate", int64(max(opts.Workers, concurrent)), e.queue.Deadline())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArguments, err)
	}
	return nil
}

// adapt fits a job that was started in another queue to the engine's, or says why it can't run there.
func (e *Engine) adapt(ctx context.Context, j *record.Job) error {
	def, deadline := e.mappers[j.Mapper], e.queue.Deadline()
	if def == nil {
		return fmt.Errorf("%w %q: have %s", ErrUnknownMapper, j.Mapper, e.names())
	}
	concurrent, err := e.concurrency(ctx)
	if err != nil {
		return err
	}
	j.Concurrent = int64(concurrent)
	opts, err := settingsOf(j)
	if err == nil {
		err = cmp.Or(opts.validate(def.Mode.Longest(deadline), deadline), opts.Rate.limit().Validate("StartOptions.Rate", j.AtOnce(), deadline))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArguments, err)
	}
	return nil
}

// concurrency returns how many tasks the queue delivers at once, or 0 if nobody may know.
func (e *Engine) concurrency(ctx context.Context) (int, error) {
	n, err := e.queue.Concurrency(ctx)
	if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unimplemented {
		return 0, nil
	}
	return n, err
}
