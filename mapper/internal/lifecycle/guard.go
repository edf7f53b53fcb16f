package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A guard is a sweep that is enqueued before a commit that makes a job run, or starts its clean-up,
// in a new epoch. If the process dies right after the commit, the guard is the job's only task.
//
// The guard and the commit race to change the job's record:
//
//   - If the commit comes first, the guard sweeps the job.
//   - If the guard comes first, it makes the commit fail. It takes the new epoch, or inserts a
//     record in place of a new job's root, or raises RefusedMoves for a move to its queue. The
//     process that wanted to commit then tries again with a new guard.
//
// So in both cases the guard has an effect at once, and need not wait for the commit.

const (
	// guardDelay is the time until a guard runs. A guard is a sweep that is enqueued before a
	// commit. Usually, the commit takes effect before this time.
	guardDelay = time.Minute

	// guardAttempts is the largest number of attempts of a change whose commits fail, because its
	// guard or another change was first.
	guardAttempts = 5
)

// errOvertaken says that a guard, or another change of the job, has come before the commit.
var errOvertaken = fmt.Errorf("%w: somebody else changed it during each attempt, so try again", record.ErrState)

// postGuard enqueues the guard of a change that is about to be committed. The guard is a sweep that
// runs after the commit, in the epoch of the given record. If the process dies after the commit,
// the guard enqueues the change's tasks. Its name has a random number. Otherwise it could be the
// name of a purged guard, and the queue would refuse it.
func (js *Jobs) postGuard(ctx context.Context, job *record.Job) error {
	tick, at := nextTick(job, time.Now().Add(guardDelay))
	return js.enqueue(ctx, job, sweepPath, body.Job{Tick: tick, Guard: max(1, js.Random())}, at)
}

// updateGuarded changes a job by f, which may start a new epoch, so that the job needs new tasks.
// It first enqueues a guard (postGuard). So even if this process dies after the commit, the job has
// a sweep. It returns the job's record. The text cause is the entry in the job's history.
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
			// the guard is for another epoch
			if err == nil && changed && (j.Epoch != next.Epoch || j.RefusedMoves != next.RefusedMoves) {
				return false, errOvertaken
			}
			return changed, err
		})
		if err == nil {
			js.LookLater(job)
		}
		if !errors.Is(err, errOvertaken) {
			return job, err
		}
	}
	return nil, fmt.Errorf("change job %s: %w", ref.ID, errOvertaken)
}

// refuseCommit is called by a guard. If the commit for which the guard was enqueued has not come
// yet, it raises the job's epoch to the commit's one, so that the commit fails. It returns the
// job's record.
func (js *Jobs) refuseCommit(ctx context.Context, job *record.Job, t body.Job) (*record.Job, error) {
	if t.Guard == 0 {
		return job, nil
	}
	return js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		return j.AdvanceEpoch(t.Epoch), nil
	})
}

// refuseMove is called by the guard of a move of the job to this queue. If the move is not
// committed yet, it changes the job's record, so that the commit fails. It returns the job's
// record.
func (js *Jobs) refuseMove(ctx context.Context, job *record.Job, t body.Job) (*record.Job, error) {
	own := record.Owner(js.Queue.Name())
	if t.Guard == 0 || job.Queue.Is(string(own)) == nil || t.Queued.Queue != "" && t.Queued.Queue != string(own) {
		return job, nil
	}
	return js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) { return own.RefuseMoves(j), nil })
}

// refuseStart is called by the guard of a start. If the job does not exist yet, it makes the
// job's creation fail. If the job exists by now, it returns the job.
func (js *Jobs) refuseStart(ctx context.Context, t body.Job) (*record.Job, error) {
	ref := record.Ref{ID: t.Job, Incarnation: t.Incarnation}
	if err := js.Store.BlockStart(ctx, ref, time.Now()); err != nil {
		return nil, fmt.Errorf("block the start of job %s: %w", t.Job, err)
	}
	return js.Store.LoadJob(ctx, ref)
}
