package lifecycle

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Pause has a job begin no more pages.
func (js *Jobs) Pause(ctx context.Context, ref record.Ref) error {
	_, err := js.Store.UpdateJob(ctx, ref, (*record.Job).Pause)
	return err
}

// Abort ends a job for good.
func (js *Jobs) Abort(ctx context.Context, ref record.Ref) error {
	_, err := js.Store.UpdateJob(ctx, ref, func(j *record.Job) (bool, error) { return j.Abort(time.Now()) })
	return err
}

// Resume has a job go on, and all its open ranges get new tasks.
func (js *Jobs) Resume(ctx context.Context, ref record.Ref) error {
	failed, ref, err := js.failures(ctx, ref)
	if err != nil {
		return err
	}
	job, err := js.Store.UpdateJob(ctx, ref, func(j *record.Job) (bool, error) { return true, j.Resume(failed, time.Now()) })
	if err == nil {
		err = js.enqueueFullSweep(ctx, job)
	}
	if err == nil && job.Retrying {
		err = js.enqueue(ctx, job, retryPath, body.Job{}, time.Time{})
	}
	return err
}

// failures counts the failures of a job that a limit has paused. It returns which job that is.
func (js *Jobs) failures(ctx context.Context, ref record.Ref) (n int64, _ record.Ref, err error) {
	job, err := js.Store.LoadJob(ctx, ref)
	if err != nil {
		return 0, ref, err
	}
	if !job.Limited {
		return 0, job.Ref(), nil
	}
	n, err = js.Store.CountFailures(ctx, job.Ref(), 0)
	return n, job.Ref(), err
}
