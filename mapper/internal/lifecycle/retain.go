package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A job's retention is how long its records are kept after its end. Then it is cleaned up
// automatically. The job's record has an index entry with this time (record.Job.Retires), and a
// task is enqueued for it. The queue accepts tasks only for the next 30 days, so a chain of tasks
// may be necessary.
//
// The transaction that starts the clean-up decides by the record. So it does no harm if a task
// comes early, late, twice or never. If a task is lost, Revive finds the job by the index.

const (
	retainPath = "retain"

	// retainAhead is how far in the future a task of an automatic clean-up may be due. Cloud Tasks
	// allows 30 days [its quotas page].
	retainAhead = 29 * 24 * time.Hour

	// retainAgain is the time until an automatic clean-up that was refused is tried again.
	retainAgain = 24 * time.Hour

	// retainSoon is the time until the next task if a task comes too early. This happens if the
	// queue's clock is ahead of this one.
	retainSoon = time.Minute

	// retainMost is the largest number of due jobs of a queue that one call of Revive handles.
	retainMost = 1000
)

// planRetention enqueues the task that cleans up a job when its retention ends. The task's name
// contains this time, so several calls enqueue only one task.
func (js *Jobs) planRetention(ctx context.Context, job *record.Job) error {
	return js.enqueueRetention(ctx, job, 0, time.Now())
}

// enqueueRetention enqueues the next task of an automatic clean-up. The parameter after is the Unix
// time at which the last task was due, or 0 if there was none. The next task is due later than
// that.
func (js *Jobs) enqueueRetention(ctx context.Context, job *record.Job, after int64, now time.Time) error {
	due := job.DueAt()
	if due.IsZero() {
		return nil
	}
	at := due.Add(time.Second).Unix() // a second later, so that it is not too early
	if most := now.Add(retainAhead); due.After(most) {
		// at the start of a day, so that several callers enqueue only one task for a day
		at = most.Truncate(24 * time.Hour).Unix()
	}
	// This time gives another name, because the name of its own time may be taken.
	if soon := now.Truncate(retainSoon).Add(2 * retainSoon).Unix(); at <= now.Unix() {
		at = soon
	}
	if at <= after {
		at = after + int64(retainSoon/time.Second)
	}
	return js.enqueue(ctx, job, retainPath, body.Job{Tick: at}, time.Unix(at, 0))
}

// retryRetention enqueues a task that tries an automatic clean-up again, at the given time, because
// it was refused. All calls for the same day enqueue only one task.
func (js *Jobs) retryRetention(ctx context.Context, job *record.Job, at time.Time) error {
	return js.enqueue(ctx, job, retainPath, body.Job{Tick: at.Truncate(retainAgain).Unix()}, at)
}

// foreseeRetention enqueues the task of the automatic clean-up for a change f that is about to end
// a job. It does this before the commit, because the process may die right after it. If the commit
// fails, the task finds that the job has not ended.
func (js *Jobs) foreseeRetention(ctx context.Context, ref record.Ref, f change) error {
	seen, err := js.Store.LoadJob(ctx, ref)
	if err != nil {
		return err
	}
	if err := seen.Queue.Is(js.Queue.Name()); err != nil {
		return err
	}
	next := *seen
	if changed, err := f(&next); err != nil || !changed {
		return err
	}
	return js.planRetention(ctx, &next)
}

// errNotDue says that the job's records must be kept for longer, because its retention was
// prolonged.
var errNotDue = fmt.Errorf("%w: it is kept for longer", record.ErrState)

// runRetention runs a task of an automatic clean-up: it cleans up a job whose retention is over.
func (js *Jobs) runRetention(ctx context.Context, job *record.Job, t body.Job) error {
	now := time.Now()
	if job.Cleaning != "" || !job.Due(now) {
		return js.enqueueRetention(ctx, job, t.Tick, now) // if the job has not ended, this enqueues no task
	}
	err := js.cleanUp(ctx, job.Ref(), CleanUp{IncludeFailures: true},
		"cleaned up, as its retention of "+record.Days(job.Retain)+" says", func(j *record.Job) error {
			if !j.Due(now) {
				return errNotDue
			}
			j.Retire(now)
			return nil
		})
	switch {
	case errors.Is(err, errNotDue): // the change that prolonged the retention has enqueued a task
		return nil
	case errors.Is(err, record.ErrState): // for example, because an undo needs the records
		return js.retryRetention(ctx, job, now.Add(retainAgain))
	}
	return err
}

// reviveRetention enqueues tasks for jobs whose automatic clean-up is due, in all queues of the
// engine.
func (js *Jobs) reviveRetention(ctx context.Context, now time.Time) error {
	var failed []error
	for _, js := range append([]*Jobs{js}, js.Beside...) {
		due, err := js.Store.Due(ctx, record.Owner(js.Queue.Name()), now, retainMost)
		if err != nil {
			return fmt.Errorf("look for jobs to clean up: %w", err)
		}
		for _, job := range due {
			failed = append(failed, js.retryRetention(ctx, job, now))
		}
	}
	return errors.Join(failed...)
}

// Retain sets how long a job's records are kept after its end. 0 means without limit.
func (js *Jobs) Retain(ctx context.Context, ref record.Ref, d time.Duration) error {
	set := func(j *record.Job) (bool, error) {
		if err := j.CheckRecords(); err != nil {
			return false, err
		}
		before := j.Retain
		j.Retain = d
		return d != before, nil
	}
	if err := js.foreseeRetention(ctx, ref, set); err != nil {
		return err
	}
	text := "its records are kept until somebody cleans them up"
	if d > 0 {
		text = "its records are kept for " + record.Days(d)
	}
	_, err := js.Change(ctx, ref, text, js.owned(set))
	return err
}
