package lifecycle

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

// A finalizer is the end of a job with the totals sum. It runs the mapper's finalizer, or the
// mapper's function Forget (close.go).
type finalizer struct {
	*Jobs
	def      *function.Definition
	sum      record.Totals
	delivery string // the name of this delivery, if it has written a crash mark (record.CrashMark); otherwise empty
}

// run runs the finalizer. The first delivery of the task runs at the same time as other tasks.
// Later deliveries run exclusively and with a crash mark ([record.CrashMark]), because the
// finalizer may have killed the process of an earlier delivery.
func (fi finalizer) run(ctx context.Context, job *record.Job, t body.Job) error {
	exclusive := t.Queued.RetryCount > 0 || job.Suspected()
	place, err := fi.Gate.Enter(ctx, exclusive)
	if err != nil {
		return fmt.Errorf("wait for other tasks: %w", err)
	}
	defer place.Leave()
	if !exclusive {
		return fi.commit(ctx, job)
	}
	delivery := fi.NewDelivery()
	fi.delivery = delivery
	err = fi.runExclusively(ctx, job, t, record.CrashMark{
		Delivery: delivery, At: t.BegunAt.UTC().Truncate(time.Microsecond),
		Task: t.Queued.TaskID, Try: int64(t.Queued.RetryCount), Quiet: place.Quiet})
	if err != nil { // until the mark is removed, the process does nothing else
		fi.Insist(ctx, func(ctx context.Context) error {
			_, err := fi.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
				return j.Alive(delivery), nil
			})
			if errors.Is(err, record.ErrNoSuchJob) { // the job and its mark no longer exist
				return nil
			}
			return err
		})
	}
	return err
}

// runExclusively runs the finalizer while the process does nothing else, and while the job's record
// has the crash mark m. After any error, the record may have the mark, because the answer to the
// commit that wrote it may be lost.
func (fi finalizer) runExclusively(ctx context.Context, job *record.Job, t body.Job, m record.CrashMark) error {
	job, err := fi.begin(ctx, job, t, m)
	if err != nil || !t.Current(job) {
		return err
	}
	if n := job.Died(time.Now()); n >= record.MaxDeaths {
		died := fmt.Errorf("the process died %d times while it did nothing but the finalizer", n)
		return fi.failAtEnd(ctx, job, fault.Summarized(died.Error(), died), fi.sum)
	}
	if job.Doomed() {
		return fmt.Errorf("the process seems to have died %d times while it did nothing but the finalizer, which "+
			"waits until that is certain", len(job.Deaths))
	}
	return fi.commit(ctx, job)
}

// begin writes the crash mark m into the job's record, and returns the record.
func (fi finalizer) begin(ctx context.Context, job *record.Job, t body.Job, m record.CrashMark) (*record.Job, error) {
	return fi.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		return j.BeginFinalizer(t.Epoch, m, time.Now().UTC().Truncate(time.Microsecond), fi.Queue.DispatchDeadline()),
			nil
	})
}

// commit runs the finalizer in the transaction that ends the job.
func (fi finalizer) commit(ctx context.Context, job *record.Job) error {
	var failed error // the finalizer's error
	ready := false   // whether only the commit remains
	if fi.def.Forget != nil && len(job.Closing) > 0 {
		failed, err := fi.forget(ctx, job)
		if errors.Is(failed, ErrWaits) {
			return errors.Join(err, fi.wait(ctx, job, failed))
		}
		return fi.retry(ctx, job, failed, err)
	}
	err := fi.end(ctx, job, "", func(tx *datastore.Transaction, j *record.Job) error {
		failed, ready = nil, false
		if err := j.Succeed(fi.sum, time.Now()); err != nil {
			return err
		}
		var effect *function.Effect
		if effect, failed = fi.call(ctx, j); failed != nil {
			return failed
		}
		ready = true
		j.Finalizes, j.Finalized = true, j.Epoch
		return store.Mutate(tx, effect)
	})
	if refused := new(fault.CommitRefusal); ready && errors.As(fault.AsCommitRefusal(err), refused) {
		failed = fault.Permanent(fmt.Errorf("the database refuses what it writes: %w", refused))
	}
	return fi.retry(ctx, job, failed, err)
}

// forgetEvery is the time until a function Forget that has to wait is called again.
const forgetEvery = 30 * time.Second

// wait enqueues a task that calls the function Forget again, because the function waits for the
// clean-up of other jobs. The parameter why is the reason, which the job's status then shows. If
// several deliveries wait, all enqueue a task with the same name, so there is only one task.
func (fi finalizer) wait(ctx context.Context, job *record.Job, why error) error {
	_, err := fi.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		text := "waits to end: " + fault.Brief(fault.Text(why))
		changed := fi.delivery != "" && j.Alive(fi.delivery) // the delivery ends normally, so this is no death
		if j.State != record.Running || j.Epoch != job.Epoch || j.Error == text {
			return changed, nil
		}
		j.Error = text
		return true, nil
	})
	if err != nil {
		return err
	}
	first := *job // the same generation for all deliveries, because it is in the task's name
	first.Generation = 0
	at := time.Now().Truncate(forgetEvery).Add(2 * forgetEvery)
	return fi.enqueue(ctx, &first, finalizePath, body.Job{Tick: at.Unix()}, at)
}

// retry handles the error failed of a finalizer. A permanent error fails the job. After any other
// error, the queue runs the finalizer again. If failed is nil, retry returns err.
func (fi finalizer) retry(ctx context.Context, job *record.Job, failed, err error) error {
	if failed == nil {
		return err
	}
	if fault.IsPermanent(failed) {
		return fi.failAtEnd(ctx, job,
			fault.Summarized("the finalizer failed", fmt.Errorf("the finalizer failed: %w", failed)), fi.sum)
	}
	_, err = fi.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		if j.State != record.Running || j.Epoch != job.Epoch {
			return false, nil
		}
		j.Error = fault.Brief(fault.Text(fmt.Errorf("the finalizer failed, and is tried again: %w", failed)))
		return true, nil
	})
	return errors.Join(fmt.Errorf("the finalizer of job %s failed", job.ID), err)
}

// call runs the finalizer, and returns its puts and deletes. A panic becomes an error.
func (fi finalizer) call(ctx context.Context, j *record.Job) (*function.Effect, error) {
	a := function.NewAttempt(j.Ref(), function.Update, record.JobKey(j.ID))
	var failed error
	err := function.Calls(ctx, function.MaxInTransaction, &fi.Gate.Strays, func(r *function.Runner) {
		r.Call(func(ctx context.Context) {
			defer function.Recovered(&failed)
			failed = a.Run(func() error { return fi.def.OnDone(ctx, a, j, fi.sum) })
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
