package lifecycle

import (
	"context"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Move moves a job to this queue. Tasks in the old queue are superseded, and the job's open ranges
// get tasks in this queue. An ended job gets the task of its automatic clean-up. The function adapt
// changes the record for this queue, or returns why the job can't run here.
func (js *Jobs) Move(ctx context.Context, ref record.Ref, adapt func(*record.Job) error) error {
	job, err := js.Store.LoadJob(ctx, ref)
	if err != nil {
		return err
	}
	owner := record.Owner(js.Queue.Name())
	if job.Queue == owner {
		return nil
	}
	if err := adapt(job); err != nil {
		return err
	}
	// An ended job has no guard, so its task must be there even if this process dies at the commit.
	if err := js.planRetention(ctx, job); err != nil {
		return err
	}
	job, err = js.updateGuarded(ctx, job.Ref(), record.Moved, func(j *record.Job) (bool, error) {
		j.Concurrent = job.Concurrent
		return owner.Move(j), nil
	})
	switch {
	case err != nil:
		return err
	case job.Cleaning != "":
		return js.enqueueCleanUp(ctx, job)
	case job.Over():
		return js.planRetention(ctx, job) // it may have ended meanwhile
	case job.State == record.Paused:
		return nil
	}
	return js.enqueueEpoch(ctx, job)
}
