package mapper

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
)

// complete has a job ended if none of its ranges is open: by a task, as several processes
// may see that at the same moment, and only one of them should add up the records. The job
// was read before that look, and so it is in the task: if its epoch has changed since, ranges
// may have appeared that the look did not see, and the job goes on. Otherwise ranges appear
// only in the commit of their parent, which is open itself until then. A sweep makes sure that
// the task is there.
func (e *Engine) complete(ctx context.Context, job *jobRecord, sweep bool) error {
	if State(job.State) != Running || job.Replaying {
		return nil // another delivery has ended it, or the replay looks when it is done
	}
	if open, err := e.hasOpen(ctx, job.ID); err != nil || open {
		return err
	}
	if e.mappers[job.Mapper] == nil {
		return nil // only a build that has the mapper can end the job: it may have a finalizer
	}
	return e.enqueueEnd(ctx, job, sweep)
}

// hasOpen reports whether a range of a job is open.
func (e *Engine) hasOpen(ctx context.Context, job string) (bool, error) {
	open, err := e.client.GetAll(ctx, datastore.NewQuery(rangeKind).FilterField("open", "=", job).KeysOnly().Limit(1), nil)
	if err != nil {
		return false, fmt.Errorf("look for open ranges of job %s: %w", job, err)
	}
	return len(open) > 0, nil
}

// fail ends a job for a reason. Its open ranges stay recorded as they are; their
// tasks find the job ended and leave them. It reports whether it was this call that
// ended it.
func (e *Engine) fail(ctx context.Context, job *jobRecord, reason error) (first bool, err error) {
	err = e.end(ctx, job, func(_ *datastore.Transaction, j *jobRecord) error {
		first = true
		j.State, j.Error, j.Ended = string(Failed), explain(reason), time.Now().UTC().Truncate(time.Microsecond)
		return nil
	})
	return first && err == nil, err
}

// end changes the record of a job that runs, if no ranges have appeared since its
// epoch was read.
func (e *Engine) end(ctx context.Context, job *jobRecord, change func(*datastore.Transaction, *jobRecord) error) error {
	err := e.transact(ctx, func(tx *datastore.Transaction) error {
		j := &jobRecord{ID: job.ID}
		if err := recordError(tx.Get(jobKey(job.ID), j)); err != nil {
			return err
		}
		if State(j.State) != Running || j.Replaying || j.Epoch != job.Epoch {
			return nil
		}
		if err := change(tx, j); err != nil {
			return err
		}
		_, err := tx.Mutate(j.update())
		return err
	})
	if err != nil {
		return fmt.Errorf("end job %s: %w", job.ID, err)
	}
	return nil
}
