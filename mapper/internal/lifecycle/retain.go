package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A job is cleaned up when its retention has come to its end. The record of such a job is listed
// by the time (record.Job.Retires), and a task waits for that: a chain of them, as the queue takes
// tasks for up to 30 days. What counts is the record, in the transaction that begins the clean-up:
// a task may come early, late, twice or never, and a revival finds what is listed.

const (
	retainPath = "retain"

	// retainAhead is how far ahead a task is enqueued [the quotas page of Cloud Tasks: 30 days].
	retainAhead = 29 * 24 * time.Hour

	// retainAgain is how long a clean-up that was refused waits for the next attempt.
	retainAgain = 24 * time.Hour

	// retainSoon is how much later a task comes that is early: the queue's clock may be ahead of
	// this one.
	retainSoon = time.Minute

	// retainMost is how many jobs that are due one revival looks at in a queue.
	retainMost = 1000
)

// planRetention enqueues the task for a job that will be cleaned up. There may be one: it has the
// same name.
func (js *Jobs) planRetention(ctx context.Context, job *record.Job) error {
	return js.enqueueRetention(ctx, job, 0, time.Now())
}

// enqueueRetention enqueues the next task of the chain, behind one of a time in seconds.
func (js *Jobs) enqueueRetention(ctx context.Context, job *record.Job, after int64, now time.Time) error {
	due := record.DueAt(job)
	if due.IsZero() {
		return nil
	}
	at := due.Add(time.Second).Unix() // not before it
	if most := now.Add(retainAhead); due.After(most) {
		at = most.Truncate(24 * time.Hour).Unix() // of all that plan it on one day there is one
	}
	if soon := now.Truncate(retainSoon).Add(2 * retainSoon).Unix(); at <= now.Unix() { // its name may be taken
		at = soon
	}
	if at <= after {
		at = after + int64(retainSoon/time.Second)
	}
	return js.enqueue(ctx, job, retainPath, body.Job{Tick: at}, time.Unix(at, 0))
}

// retryRetention enqueues the task that tries again on the day of a time. There is one a day,
// whoever asks for it.
func (js *Jobs) retryRetention(ctx context.Context, job *record.Job, at time.Time) error {
	return js.enqueue(ctx, job, retainPath, body.Job{Tick: at.Truncate(retainAgain).Unix()}, at)
}

// foreseeRetention enqueues the task for a job that a change is about to end, before that is
// committed: who makes the change may die behind it. If nothing is committed the task finds a job
// that has not ended.
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

// errNotDue says that a job is kept for longer by now.
var errNotDue = fmt.Errorf("%w: it is kept for longer", record.ErrState)

// runRetention cleans up a job that is due.
func (js *Jobs) runRetention(ctx context.Context, job *record.Job, t body.Job) error {
	now := time.Now()
	if job.Cleaning != "" || !record.Due(job, now) {
		return js.enqueueRetention(ctx, job, t.Tick, now) // none, if it goes on
	}
	err := js.cleanUp(ctx, job.Ref(), CleanUp{IncludeFailures: true},
		"cleaned up, as its retention of "+record.Days(job.Retain)+" says", func(j *record.Job) error {
			if !record.Due(j, now) {
				return errNotDue
			}
			record.Retire(j, now)
			return nil
		})
	switch {
	case errors.Is(err, errNotDue): // who has changed that has seen to its task
		return nil
	case errors.Is(err, record.ErrState): // it is being undone, say
		return js.retryRetention(ctx, job, now.Add(retainAgain))
	}
	return err
}

// reviveRetention enqueues the tasks of jobs that are due, in the engine's queues.
func (js *Jobs) reviveRetention(ctx context.Context, now time.Time) error {
	var failed []error
	for _, js := range append([]*Jobs{js}, js.Beside...) {
		due, err := store.Due(ctx, js.Store, record.Owner(js.Queue.Name()), now, retainMost)
		if err != nil {
			return fmt.Errorf("look for jobs to clean up: %w", err)
		}
		for _, job := range due {
			failed = append(failed, js.retryRetention(ctx, job, now))
		}
	}
	return errors.Join(failed...)
}

// Retain has the records of a job be kept for so long after its end; 0: until somebody cleans them
// up.
func (js *Jobs) Retain(ctx context.Context, ref record.Ref, d time.Duration) error {
	set := func(j *record.Job) (bool, error) {
		if err := record.CheckRecords(j); err != nil {
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
