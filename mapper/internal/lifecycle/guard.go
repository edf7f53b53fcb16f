package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A guard is a sweep that is enqueued before the commit with which a job begins to run, or to be
// cleaned up, in an epoch: so whoever makes that commit may die at any moment, and the job has a
// task. Of the commit and the guard, the first one to change the record decides. If the commit
// comes first, the guard sweeps the job. If the guard comes first it makes the commit impossible:
// it takes the epoch away from it, or for a job that does not exist yet, the record of the root;
// or, for one that is about to be moved to its queue, it is counted in the record. Then whoever
// wanted to commit begins anew, with another guard, if that process is still there. So no guard is
// lost, and none has to wait.

const (
	// guardDelay is how long a commit has at least before its guard comes.
	guardDelay = time.Minute

	// guardAttempts is how often a commit is tried that is too late.
	guardAttempts = 5
)

// errForestalled says that a guard, or another change of the job, came before a commit.
var errForestalled = fmt.Errorf("%w: it was changed by somebody else each time", record.ErrState)

// postGuard enqueues the guard of the epoch that a record has, which is about to be committed. No
// two guards have one name: the task of one that was purged would be taken for this one.
func (js *Jobs) postGuard(ctx context.Context, job *record.Job) error {
	tick, at := nextTick(job, time.Now().Add(guardDelay))
	return js.enqueue(ctx, job, sweepPath, body.Job{Tick: tick, Guard: max(1, js.Random())}, at)
}

// updateGuarded changes a job in a way that may have it run in another epoch. It returns the job.
func (js *Jobs) updateGuarded(ctx context.Context, ref record.Ref, cause string, f change) (*record.Job, error) {
	for range guardAttempts {
		seen, err := js.Store.LoadJob(ctx, ref)
		if err != nil {
			return nil, err
		}
		next := *seen
		if _, err := f(&next); err != nil {
			return nil, err
		}
		if next.HasTasks() {
			if err := js.postGuard(ctx, &next); err != nil {
				return nil, err
			}
		}
		job, err := js.Change(ctx, seen.Ref(), cause, func(j *record.Job) (bool, error) {
			changed, err := f(j)
			// the guard is of another one
			if err == nil && changed && (j.Epoch != next.Epoch || j.Forestalled != next.Forestalled) {
				return false, errForestalled
			}
			return changed, err
		})
		if err == nil {
			js.LookLater(job)
		}
		if !errors.Is(err, errForestalled) {
			return job, err
		}
	}
	return nil, fmt.Errorf("change job %s: %w", ref.ID, errForestalled)
}

// forestallEpoch takes its epoch away from a commit that has not come before its guard. It returns
// the job, whose epoch that is by now.
func (js *Jobs) forestallEpoch(ctx context.Context, job *record.Job, t body.Job) (*record.Job, error) {
	if t.Guard == 0 {
		return job, nil
	}
	return js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		return record.Forestall(j, t.Epoch), nil
	})
}

// forestallMove has the move of a job to this engine's queue be refused if it comes later than its
// guard. It returns the job.
func (js *Jobs) forestallMove(ctx context.Context, job *record.Job, t body.Job) (*record.Job, error) {
	own := record.Owner(js.Queue.Name())
	if t.Guard == 0 || job.Queue.Is(string(own)) == nil || t.Queued.Queue != "" && t.Queued.Queue != string(own) {
		return job, nil
	}
	return js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) { return own.Forestall(j), nil })
}

// forestallStart takes the record of its root away from the start of a job that is not there when
// its guard comes. It returns the job if it is there by now.
func (js *Jobs) forestallStart(ctx context.Context, t body.Job) (*record.Job, error) {
	ref := record.Ref{ID: t.Job, Incarnation: t.Incarnation}
	if err := js.Store.Forestall(ctx, ref, time.Now()); err != nil {
		return nil, fmt.Errorf("forestall the start of job %s: %w", t.Job, err)
	}
	return js.Store.LoadJob(ctx, ref)
}
