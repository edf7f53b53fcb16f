package mapper

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

const retryPath = "replay"

// Retry has the job process its failures again, and nothing that is done: each gets
// as many attempts as at first. The job runs again until they are done, and what else
// was left, if it was paused or had failed; its finalizer takes effect again. A job
// that was aborted or cleaned up is refused with [ErrState].
func (j *Job) Retry(ctx context.Context) error {
	record, err := j.engine.store().UpdateJob(ctx, j.ref(), func(r *record.Job) error {
		if r.Cleaned || r.Cleaning != "" {
			return fmt.Errorf("%w: its records are cleaned up", ErrState)
		}
		switch State(r.State) {
		case Running, Paused, Failed, Succeeded, SucceededWithFailures:
			r.GoOn(time.Now())
			r.Retrying = true
			r.Limit, r.Failures, r.Tried = r.LimitStep, 0, 0 // there are none now
		default:
			return fmt.Errorf("%w: it is %q", ErrState, r.State)
		}
		return nil
	})
	if err == nil {
		err = j.engine.enqueue(ctx, record, retryPath, body.Job{}, time.Time{})
	}
	if err == nil { // should the tasks of the retry be lost
		err = j.engine.enqueueSweep(ctx, record, time.Now())
	}
	if err != nil {
		return fmt.Errorf("mapper: retry %s: %w", j.ID, err)
	}
	return nil
}

// runRetry runs a task of a retry. The job can't complete before all failures
// are pending again.
func (e *Engine) runRetry(ctx context.Context, job *record.Job, t body.Job) error {
	if !t.Current(job) || !job.Retrying {
		return e.sweepAfterRetry(ctx, job, t.Epoch)
	}
	next, err := e.retryPage(ctx, job, t.After)
	if err != nil || next == "" {
		return err
	}
	return e.enqueue(ctx, job, retryPath, body.Job{After: next}, time.Time{})
}

// retryAll does what all tasks of a retry do.
func (e *Engine) retryAll(ctx context.Context, job *record.Job) error {
	next, err := e.retryPage(ctx, job, "")
	for err == nil && next != "" {
		next, err = e.retryPage(ctx, job, next)
	}
	return err
}

// retryPage opens the next failures, and returns where to go on. Behind the last
// ones it ends the retry, and returns nothing.
func (e *Engine) retryPage(ctx context.Context, job *record.Job, after string) (next string, err error) {
	failed, err := e.store().FirstMarked(ctx, "failed", job.Ref(), after, failurePage)
	if err != nil {
		return "", fmt.Errorf("look for failures of job %s: %w", job.ID, err)
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(sweepParallel)
	for _, r := range failed {
		group.Go(func() error {
			if err := e.retry(gctx, job, r); err != nil {
				return fmt.Errorf("retry the failure of range %s of job %s: %w", r.ID, job.ID, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	if len(failed) == failurePage {
		return failed[failurePage-1].ID, nil
	}
	// The sweep of the new epoch enqueues the ranges.
	epoch := job.Epoch
	job, err = e.store().UpdateJob(ctx, job.Ref(), func(j *record.Job) error {
		if j.Epoch != epoch || State(j.State) != Running || !j.Retrying {
			return store.ErrNothing // paused: Resume goes on with the retry
		}
		j.Retrying = false
		j.Epoch++
		return nil
	})
	if err != nil || job.Epoch == epoch {
		return "", err
	}
	return "", e.enqueueFullSweep(ctx, job)
}

// sweepAfterRetry enqueues the sweep of the epoch that a retry has ended with: who
// ended it may have died before that.
func (e *Engine) sweepAfterRetry(ctx context.Context, job *record.Job, epoch int64) error {
	if State(job.State) != Running || job.Retrying || job.Epoch != epoch+1 {
		return nil
	}
	return e.enqueueFullSweep(ctx, job)
}

// retry opens the range of a failure, while the job retries: a delivery that
// is late must not open a job that has ended.
func (e *Engine) retry(ctx context.Context, job *record.Job, seen *record.Range) error {
	return e.store().Transact(ctx, func(tx *datastore.Transaction) error {
		now, err := store.GetJob(tx, job.Ref())
		if err != nil {
			return err
		}
		r := new(record.Range)
		if err := property.IgnoreUndeclared(tx.Get(seen.Key(), r)); err != nil {
			return err
		}
		if State(now.State) != Running || !now.Retrying || now.Epoch != job.Epoch || r.State == record.Pending || r.Failed == "" {
			return store.ErrNothing
		}
		r.Reopen(time.Now().UTC().Truncate(time.Microsecond))
		return store.Write(tx, r.Update())
	})
}
