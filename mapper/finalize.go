package mapper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Done is a job that is done, in the hands of its finalizer. It belongs to one
// attempt.
type Done struct {
	// Status is how the job stands, with exact numbers; its State is the one that it
	// will end with.
	Status *Status

	attempt *function.Attempt
}

// Put saves an entity together with the end of the job.
func (d *Done) Put(key *datastore.Key, src any) { d.attempt.Put(key, src) }

// Delete deletes an entity together with the end of the job.
func (d *Done) Delete(key *datastore.Key) { d.attempt.Delete(key) }

// finalize runs the finalizer. The first delivery of its task does so in company. The ones after
// that are suspected, as the finalizer may have killed the process of the one before: they leave a
// mark, and run while the process does nothing else.
func (e *Engine) finalize(ctx context.Context, job *record.Job, t body.Job, def *function.Definition, sum record.Totals) error {
	solo := t.Queued.Retries > 0 || job.Suspected()
	place, err := e.gate.enter(ctx, solo)
	if err != nil {
		return fmt.Errorf("wait for other tasks: %w", err)
	}
	defer place.leave()
	if !solo {
		return e.runFinalizer(ctx, job, def, sum)
	}
	delivery := e.newDelivery()
	err = e.finalizeSolo(ctx, job, t, record.CrashMark{Delivery: delivery, At: t.BegunAt.UTC().Truncate(time.Microsecond), Task: t.Queued.TaskID, Try: int64(t.Queued.Retries), Alone: place.alone}, def, sum)
	if err != nil { // it stays alone until its mark, if it has left one, is gone
		e.insist(ctx, func(ctx context.Context) error {
			_, err := e.store().UpdateJob(ctx, job.Ref(), func(j *record.Job) error {
				if !j.Alive(delivery) {
					return store.ErrNothing
				}
				return nil
			})
			if errors.Is(err, ErrNoSuchJob) { // nor the mark
				return nil
			}
			return err
		})
	}
	return err
}

// finalizeSolo runs the finalizer under a mark. If it fails the mark may be there, whatever the
// error: the answer to the commit that wrote it may have been lost.
func (e *Engine) finalizeSolo(ctx context.Context, job *record.Job, t body.Job, m record.CrashMark, def *function.Definition, sum record.Totals) error {
	job, err := e.beginFinalizer(ctx, job, t, m)
	if err != nil || !t.Current(job) {
		return err
	}
	if n := job.Died(time.Now()); n >= MaxAttempts {
		_, err = e.fail(ctx, job, fmt.Errorf("the process died %d times while it did nothing but the finalizer", n))
		return err
	}
	return e.runFinalizer(ctx, job, def, sum)
}

// beginFinalizer leaves a mark in the job's record.
func (e *Engine) beginFinalizer(ctx context.Context, job *record.Job, t body.Job, m record.CrashMark) (*record.Job, error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return e.store().UpdateJob(ctx, job.Ref(), func(j *record.Job) error {
		if !t.Current(j) || j.Begun == m.Delivery {
			return store.ErrNothing
		}
		if died := j.Begin(m, now, e.queue.Deadline()); died != nil {
			j.Die(*died, now, e.queue.Deadline())
		}
		if j.Error == "" { // one that has failed says so
			j.Error = "the finalizer is tried again: a delivery of its task did not come to its end"
		}
		return nil
	})
}

// runFinalizer runs the finalizer in the transaction that ends the job.
func (e *Engine) runFinalizer(ctx context.Context, job *record.Job, def *function.Definition, sum record.Totals) error {
	var failed error // the function's
	ready := false   // all that is left is the commit
	err := e.end(ctx, job, func(tx *datastore.Transaction, j *record.Job) error {
		failed, ready = nil, false
		if err := j.Succeed(sum, time.Now()); err != nil {
			return err
		}
		var effect *function.Effect
		if effect, failed = e.runOnDone(ctx, def, j, sum); failed != nil {
			return failed
		}
		ready = true
		j.Finalizes, j.Finalized = true, j.Epoch
		return mutate(tx, effect)
	})
	if refused := new(fault.CommitRefusal); failed == nil && ready && errors.As(fault.AsCommitRefusal(err), refused) {
		failed = fault.Permanent(fmt.Errorf("the database refuses what it writes: %w", refused))
	}
	if failed == nil {
		return err
	}
	if fault.IsPermanent(failed) {
		_, err := e.fail(ctx, job, fmt.Errorf("the finalizer failed: %w", failed))
		return err
	}
	_, err = e.store().UpdateJob(ctx, job.Ref(), func(j *record.Job) error {
		if State(j.State) != Running || j.Epoch != job.Epoch {
			return store.ErrNothing
		}
		j.Error = fault.Text(fmt.Errorf("the finalizer failed, and is tried again: %w", failed))
		return nil
	})
	return errors.Join(fmt.Errorf("the finalizer of job %s failed", job.ID), err)
}

// runOnDone runs a finalizer, and returns what it asks for. A panic becomes an error.
func (e *Engine) runOnDone(ctx context.Context, def *function.Definition, j *record.Job, sum record.Totals) (*function.Effect, error) {
	a := function.NewAttempt(j.Ref(), function.Update, record.JobKey(j.ID))
	var failed error
	err := function.Calls(ctx, function.MaxInTransaction, &e.gate.strays, func(r *function.Runner) {
		r.Call(func(ctx context.Context) {
			defer function.Recovered(&failed)
			failed = a.Run(func() error { return def.OnDone(ctx, a, j, sum) })
		})
	})
	switch {
	case errors.Is(err, function.ErrTimeout):
		return nil, fmt.Errorf("it took more than %v", function.MaxInTransaction)
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, failed
	}
	return a.Effect()
}
