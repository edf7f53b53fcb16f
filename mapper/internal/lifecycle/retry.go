package lifecycle

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

const retryPath = "replay"

// runRetry runs a task of a retry, which makes the ranges of some of the selected failures pending
// again. The job can't end until all of them are.
func (js *Jobs) runRetry(ctx context.Context, job *record.Job, t body.Job) error {
	if !t.Current(job) || !job.Retrying {
		return js.sweepAfter(ctx, job, t.Epoch)
	}
	next, err := js.ReopenPage(ctx, job, t.After)
	if err != nil || next == "" {
		return err
	}
	return js.enqueue(ctx, job, retryPath, body.Job{After: next}, time.Time{})
}

// retryAll does the rest of a retry in a sweep, because the retry's own task may be lost.
func (js *Jobs) retryAll(ctx context.Context, job *record.Job) error {
	next, err := js.ReopenPage(ctx, job, "")
	for err == nil && next != "" && !js.Gate.IsDraining() {
		next, err = js.ReopenPage(ctx, job, next)
	}
	return err
}

// ReopenPage makes the ranges of the next selected failures pending again, after the range with the
// given ID. It returns the ID after which the next call must continue. After the last failure, it
// ends the retry and returns "".
func (js *Jobs) ReopenPage(ctx context.Context, job *record.Job, after string) (next string, err error) {
	failed, err := js.Store.FirstMarked(ctx, "failed", job.Ref(), after, store.FailurePage)
	if err != nil {
		return "", fmt.Errorf("look for failures of job %s: %w", job.ID, err)
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	for _, r := range failed {
		if job.RetryOf != "" && r.Cause() != job.RetryOf {
			continue
		}
		group.Go(func() error {
			if err := js.Reopen(gctx, job, r); err != nil {
				return fmt.Errorf("retry the failure of range %s of job %s: %w", r.ID, job.ID, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	if len(failed) == store.FailurePage {
		return failed[store.FailurePage-1].ID, nil
	}
	// The sweep of the new epoch enqueues the tasks of these ranges.
	epoch := job.Epoch
	job, err = js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) { return j.EndRetry(epoch), nil })
	if err != nil || job.Epoch == epoch {
		return "", err
	}
	return "", js.enqueueFullSweep(ctx, job)
}

// sweepAfter enqueues the sweep that enqueues the tasks of the retried failures, in the epoch after
// the retry. The delivery that ended the retry may have died before it enqueued this sweep.
func (js *Jobs) sweepAfter(ctx context.Context, job *record.Job, epoch int64) error {
	if job.State != record.Running || job.Retrying || job.Epoch != epoch+1 {
		return nil
	}
	return js.enqueueFullSweep(ctx, job)
}

// Reopen makes the range of a failure pending again. seen is the range's record, which may be
// outdated. If the retry has ended, Reopen does nothing: a late delivery must not open a range of
// an ended job.
func (js *Jobs) Reopen(ctx context.Context, job *record.Job, seen *record.Range) error {
	return js.Store.Transact(ctx, func(tx *datastore.Transaction) error {
		now, err := store.GetJob(tx, job.Ref())
		if err != nil {
			return err
		}
		r := new(record.Range)
		if err := property.IgnoreUndeclared(tx.Get(seen.Key(), r)); err != nil {
			return err
		}
		if !now.Retries(job.Epoch) || r.State == record.Pending || r.Failed == "" {
			return store.ErrNothing
		}
		r.Reopen(time.Now().UTC().Truncate(time.Microsecond))
		return store.Write(tx, r.Update())
	})
}
