package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

func (e *Engine) start(ctx context.Context, def *definition, q Query, params json.RawMessage, o *StartOptions) (*Job, error) {
	if e == nil || e.client == nil {
		return nil, errNoEngine
	}
	opts, concurrent, err := e.settings(ctx, def.mode, o)
	fail := func(err error) (*Job, error) {
		return nil, fmt.Errorf("mapper: start %s of %q: %w", opts.ID, def.name, err)
	}
	if e.mappers[def.name] != def {
		return fail(fmt.Errorf("%w: it is not in Options.Mappers of this engine", ErrUnknownMapper))
	}
	if err != nil {
		return fail(err)
	}
	if q, err = q.normal(def.mode); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	if q.many() && !opts.Splitting.adaptive() {
		return fail(fmt.Errorf("%w: StartOptions.Splitting is %+v, and those ways of other mappers are over one kind in one namespace", ErrArguments, opts.Splitting))
	}
	if params, err = def.canonical(params); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	query, err := json.Marshal(q)
	if err != nil {
		return fail(err)
	}
	splitting, err := json.Marshal(opts.Splitting)
	if err != nil {
		return fail(err)
	}
	rate, err := json.Marshal(opts.Rate)
	if err != nil {
		return fail(err)
	}
	if opts.Rate == (Rate{}) {
		rate = nil
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	job := &jobRecord{
		ID: opts.ID, Mapper: def.name, Query: query, Params: params, State: string(Running),
		PageSize: int64(opts.PageSize), PageTime: int64(opts.PageTime), Timeout: int64(opts.Timeout), Workers: int64(opts.Workers), Splitting: splitting,
		Concurrent: int64(concurrent), Rate: rate, RampFrom: now,
		Limit: int64(opts.FailureLimit), LimitStep: int64(opts.FailureLimit), LimitShare: opts.FailureShare, Created: now,
		Tolerant: opts.FailureLimit < 0,
		Epoch:    now.UnixMicro(), // another one than that of any job which had the ID before
	}
	root := &rangeRecord{
		Job: job.ID, ID: job.root(), Open: job.ID, State: pending, PageSize: job.PageSize, Created: now,
	}
	created := job
	existing, err := e.started(ctx, job, o)
	if existing == nil && err == nil {
		if job.Masks, err = e.honoursMasks(ctx); err != nil {
			return fail(err)
		}
		q.at = e.snapshot(ctx, q)
		job.Times, err = e.probe(ctx, q)
	}
	if err != nil {
		return fail(err)
	}
	job, err = e.create(ctx, job, root)
	if err != nil {
		return fail(err)
	}
	if State(job.State) == Running {
		if job == created {
			err = e.enqueueAgain(ctx, job, root)
		} else {
			err = e.ensureTask(ctx, job, job.root())
		}
		if err != nil {
			return fail(err)
		}
		if err := e.enqueueSweep(ctx, job, now); err != nil {
			return fail(err)
		}
	}
	return e.Job(opts.ID), nil
}

// started returns the job that has the same ID and the same arguments, or nil: the caller may
// only repeat its start, when the database would not serve the query any more.
func (e *Engine) started(ctx context.Context, job *jobRecord, o *StartOptions) (*jobRecord, error) {
	if o == nil || o.ID == "" {
		return nil, nil
	}
	existing, err := e.loadJob(ctx, job.ID)
	if errors.Is(err, ErrNoSuchJob) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return existing, existing.sameArguments(job)
}

// settings returns the settings of a job, with their defaults, and how many tasks the queue
// delivers at once, or 0 if nobody may know.
func (e *Engine) settings(ctx context.Context, m mode, o *StartOptions) (opts StartOptions, concurrent int, err error) {
	longest := m.longest(e.queue)
	opts = o.withDefaults(longest)
	if concurrent, err = e.concurrency(ctx); err != nil {
		return opts, 0, err
	}
	opts.Workers = cmp.Or(opts.Workers, min(concurrent, maxWorkers), defaultWorkers)
	if err = opts.validate(longest, e.queue.Deadline()); err == nil {
		err = opts.Rate.validate("StartOptions.Rate", int64(max(opts.Workers, concurrent)), e.queue.Deadline())
	}
	if err != nil {
		return opts, 0, fmt.Errorf("%w: %w", ErrArguments, err)
	}
	return opts, concurrent, nil
}

// concurrency returns how many tasks the queue delivers at once, or 0 if nobody may know.
func (e *Engine) concurrency(ctx context.Context) (int, error) {
	n, err := e.queue.Concurrency(ctx)
	if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unimplemented {
		return 0, nil
	}
	return n, err
}

// honoursMasks reports whether a property mask keeps what it does not name.
// Google's classic emulator drops it: there entities are written as a whole. That
// emulator is the one that does not implement aggregations.
func (e *Engine) honoursMasks(ctx context.Context) (bool, error) {
	nothing := datastore.NewQuery(jobKind).Limit(1).KeysOnly().NewAggregationQuery().WithCount("n")
	_, err := e.client.RunAggregationQuery(ctx, nothing)
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	return err == nil, err
}

// create writes a job and its root in one transaction, unless the job exists.
// It returns the job as it stands.
func (e *Engine) create(ctx context.Context, job *jobRecord, root *rangeRecord) (*jobRecord, error) {
	var current *jobRecord
	_, err := e.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		current = job
		existing := &jobRecord{ID: job.ID}
		switch err := recordError(tx.Get(jobKey(job.ID), existing)); {
		case err == nil:
			current = existing
			return existing.sameArguments(job)
		case !errors.Is(err, datastore.ErrNoSuchEntity):
			return err
		}
		_, err := tx.Mutate(job.insert(), datastore.NewInsert(root.key(), root))
		return err
	}, datastore.MaxAttempts(transactionAttempts))
	if err == nil || errors.Is(err, ErrOtherArguments) {
		return current, err
	}
	// The commit may have taken place though its answer was lost.
	existing, lookup := e.loadJob(ctx, job.ID)
	if lookup != nil {
		return nil, err
	}
	return existing, existing.sameArguments(job)
}

// ensureTask makes sure that a pending range has a task.
func (e *Engine) ensureTask(ctx context.Context, job *jobRecord, id string) error {
	r, err := e.loadRange(ctx, job.ID, id)
	if err != nil || r.State != pending {
		return err
	}
	return e.enqueueAgain(ctx, job, r)
}
