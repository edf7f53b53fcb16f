package mapper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/tasks"
)

// MaxAttempts is how often a mapper's function is tried on an entity that it
// returns an error for, and how often a page is tried that fails as a whole, see
// [Update].
const MaxAttempts = 5

// A work is one delivery of a range's task.
type work struct {
	engine *Engine
	job    *jobRecord
	query  Query
	mode   mode
	apply  entityFunc
	task   rangeTask

	// record is the range as this delivery knows it. Transactions read it anew.
	record   *rangeRecord
	refusals int64 // of the record when this delivery began
	enqueued int64 // of its children, the first

	slow map[string]error // by key: entities that took too long in this delivery
}

// run does what a task asks for:
//
//  1. load the job and the range;
//  2. look at the keys, and cut what lies behind the page into children;
//  3. a large range: record the children and enqueue them, before its page;
//  4. process the page and commit it with the record, in one transaction;
//  5. enqueue the children that came of the page;
//  6. see whether the job is complete.
//
// A delivery that finds the range done goes to 5: the one before may have died
// there. 6 is for ranges with children, too: those of 3 may have ended before
// their parent.
func (e *Engine) run(ctx context.Context, t rangeTask, redelivered bool) error {
	w, err := e.load(ctx, t)
	if err != nil || w == nil {
		return err
	}
	if w.record.State == pending && redelivered {
		err = w.recordAttempt(ctx)
	}
	for w.record.State == pending && (err == nil || errors.Is(err, errChanged)) {
		err = w.process(ctx) // changed: with what it has become
	}
	if err != nil && !errors.Is(err, errDone) && !errors.Is(err, errSuperseded) {
		err = w.giveUp(ctx, err)
	}
	switch {
	case errors.Is(err, errSuperseded):
		return nil
	case err != nil && !errors.Is(err, errDone):
		return err
	case State(w.job.State) != Running:
		return nil // this task has ended or paused it
	}
	if err := w.enqueueChildren(ctx); err != nil {
		return err
	}
	if err := w.limitFailures(ctx); err != nil || State(w.job.State) != Running {
		return err
	}
	return e.complete(ctx, w.job)
}

// load reads the job and the range of a task. It returns no work if there is
// nothing to do.
func (e *Engine) load(ctx context.Context, t rangeTask) (*work, error) {
	w := &work{engine: e, task: t, job: &jobRecord{ID: t.Job}, record: new(rangeRecord)}
	missing, err := lookup(
		func(keys []*datastore.Key, dst any) error { return e.client.GetMulti(ctx, keys, dst) },
		[]*datastore.Key{jobKey(t.Job), rangeKey(t.Job, t.Range)}, []any{w.job, w.record})
	if err != nil {
		return nil, fmt.Errorf("load range %s of job %s: %w", t.Range, t.Job, err)
	}
	if missing[0] || missing[1] {
		return nil, tasks.Drop(fmt.Errorf("there is no range %s of a job %s", t.Range, t.Job))
	}
	if State(w.job.State) != Running || w.record.State == pending && w.record.Generation != t.Generation {
		return nil, nil
	}
	def := e.mappers[w.job.Mapper]
	if def == nil {
		// Another build may have it: the queue tries again.
		return nil, fmt.Errorf("job %s: %w %q", t.Job, ErrUnknownMapper, w.job.Mapper)
	}
	w.mode, w.refusals = def.mode, w.record.Refusals
	if w.query, err = w.job.query(); err != nil {
		return nil, fmt.Errorf("job %s: query: %w", t.Job, err)
	}
	if w.apply, err = def.prepare(w.job.Params); err != nil {
		return nil, fmt.Errorf("job %s: %w", t.Job, err)
	}
	return w, nil
}

// process does a pending range.
func (w *work) process(ctx context.Context) error {
	p, err := w.plan(ctx)
	if err != nil {
		return err
	}
	if len(p.children) > 0 && !w.record.Cut {
		if err := w.recordSplit(ctx, p); err != nil {
			return err
		}
		if err := w.enqueueChildren(ctx); err != nil {
			return err
		}
		p.children = nil
	}
	err = w.processPage(ctx, p)
	if refused := new(commitRefusal); errors.As(err, refused) && len(p.keys) > 0 {
		return w.narrow(ctx, p, *refused)
	}
	return err
}

// narrow deals with a page whose commit the database has refused, because of
// what the function wrote for one of its entities: it halves the page, which is
// then planned anew, until that entity is alone and recorded as a failure.
//
// If that goes on for much of what the job has processed, it is the function that
// is at fault.
func (w *work) narrow(ctx context.Context, p page, cause commitRefusal) error {
	if len(p.keys) > 1 {
		return w.change(ctx, func(_ *datastore.Transaction, r *rangeRecord) error {
			r.PageSize = int64(len(p.keys) / 2)
			return nil
		})
	}
	o := &outcome{reached: 1, failures: []failure{{key: p.keys[0], err: cause, permanent: true}}}
	if err := w.change(ctx, func(tx *datastore.Transaction, r *rangeRecord) error { return w.settle(tx, r, p, o) }); err != nil {
		return err
	}
	sum, _, err := w.engine.glance(ctx, w.job.ID)
	if err != nil {
		return err
	}
	if tooMany(int(sum.Failures), int(sum.Failures+sum.Processed)) {
		summary := fmt.Sprintf("%d of %d entities failed so far, as the database refuses what the function writes", sum.Failures, sum.Failures+sum.Processed)
		return w.fail(ctx, refusal{summary: summary, cause: cause, final: true})
	}
	return nil
}

// giveUp decides what becomes of a task that failed. The queue tries it again,
// unless that is pointless: then the job fails, and keeps what it has recorded.
// Whose range another delivery has done meanwhile has nothing to say.
func (w *work) giveUp(ctx context.Context, cause error) error {
	cause = fmt.Errorf("job %s: range %s: %w", w.job.ID, w.record.ID, cause)
	if !hopeless(cause) && !refused(cause) {
		return cause
	}
	switch err := w.recordRefusal(ctx); {
	case errors.Is(err, errDone), errors.Is(err, errSuperseded):
		return err
	case err != nil:
		return errors.Join(cause, err)
	}
	// An entity that is alone is recorded as a failure by its last attempt. After a
	// Resume a range has as many attempts again.
	var r refusal
	if alone := w.record.Alone && errors.As(cause, &r); !hopeless(cause) && (alone || w.record.Refusals%MaxAttempts != 0) {
		return cause
	}
	return w.fail(ctx, cause)
}

// fail ends the job.
func (w *work) fail(ctx context.Context, cause error) error {
	first, err := w.engine.fail(ctx, w.job, cause)
	if err != nil {
		return err
	}
	if first {
		w.engine.log.LogAttrs(ctx, slog.LevelError, "job failed", slog.String("job", w.job.ID), slog.String("range", w.record.ID))
	}
	w.job.State = string(Failed)
	return nil
}
