package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/tasks"
)

// A sweep looks at the open ranges of a job, and enqueues lost tasks. A task may be lost because it
// was purged, deleted or given up by the queue. Or it was never enqueued, because a process died
// after it had recorded the range. A sweep also notices that a job is complete.
//
// The sweeps of a job are a chain of tasks: each enqueues the next one. Their names contain the
// job's epoch and their tick. Ticks are at fixed times, so reviving a chain that still exists
// enqueues no second chain. A chain ends when the epoch is raised, or when the job stops running.
// The change that raises the epoch starts another chain.

const (
	sweepPath = "sweep"

	// sweepEvery is the time between two sweeps of a job. So it is also how long a lost task may be
	// missing. A sweep costs a query and a task.
	sweepEvery = 2 * time.Minute

	// sweepAge is the least age of a range whose task a sweep checks. Before, the delivery that
	// recorded the range may be about to enqueue its task.
	sweepAge = time.Minute

	// sweepRanges is the number of ranges that one task of a sweep checks.
	sweepRanges = 500
)

// nextTick returns the number and the time of the job's first regular sweep after now. The sweeps
// of different jobs are at different times.
func nextTick(j *record.Job, now time.Time) (tick int64, at time.Time) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(j.ID)) // never fails
	phase := time.Duration(h.Sum64() % uint64(sweepEvery)).Truncate(time.Second)
	tick = (now.UnixNano()-int64(phase))/int64(sweepEvery) + 1
	return tick, time.Unix(0, tick*int64(sweepEvery)+int64(phase))
}

// latest returns now, or the time for which a sweep was enqueued if that is later. The queue's
// clock may be ahead of this process' clock.
func latest(j *record.Job, now time.Time, t body.Job) time.Time {
	const most = 100 // limits a forged tick: no clock is further ahead
	tick, at := nextTick(j, now)
	if ahead := t.Tick - tick; 0 <= ahead && ahead < most {
		return at.Add(time.Duration(ahead) * sweepEvery)
	}
	return now
}

// runSweep runs a task of a sweep, which looks for lost tasks of a job, and enqueues them again. If
// the task is the guard of a change that is not committed yet, runSweep first makes that commit
// fail.
func (js *Jobs) runSweep(ctx context.Context, job *record.Job, t body.Job) error {
	job, err := js.refuseCommit(ctx, job, t)
	if err != nil {
		return err
	}
	now := time.Now()
	if job.Cleaning != "" && job.Epoch == t.Epoch {
		return js.sweepCleanUp(ctx, job, latest(job, now, t))
	}
	if !t.Current(job) {
		if err := js.planRetention(ctx, job); err != nil {
			return err
		}
		return js.sweepAfter(ctx, job, t.Epoch)
	}
	if t.After == "" { // before the following steps, because they may fail for a long time
		if err := js.enqueueSweep(ctx, job, latest(job, now, t)); err != nil {
			return err
		}
	}
	if job, err = js.EndRate(ctx, job); err != nil {
		return err
	}
	if err := js.ShowBuild(ctx, job, js.Mappers[job.Mapper] == nil); err != nil {
		return err
	}
	if job.Retrying { // the retry's own task may be lost
		return js.retryAll(ctx, job)
	}
	return js.sweepOpen(ctx, job, t, now)
}

// sweepOpen enqueues the lost tasks of the next open ranges. If more ranges remain, it enqueues
// another task for them. Otherwise it checks whether the job is complete.
func (js *Jobs) sweepOpen(ctx context.Context, job *record.Job, t body.Job, now time.Time) error {
	open, err := js.Store.FirstMarked(ctx, "open", job.Ref(), t.After, sweepRanges)
	if err != nil {
		return fmt.Errorf("look for open ranges of job %s: %w", job.ID, err)
	}
	if t.After == "" {
		js.Observer.Looked(job, open, now)
	}
	if err := js.calm(ctx, job, open); err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	for _, r := range open {
		if t.All || now.Sub(r.Created) >= sweepAge {
			group.Go(func() error { return js.EnqueueAgain(gctx, job, r) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(open) == sweepRanges {
		t.After = open[len(open)-1].ID
		return js.enqueue(ctx, job, sweepPath, t, time.Time{})
	}
	return js.Complete(ctx, job, true)
}

// calm clears Job.Trouble, the text that a page is being retried, unless one of the given ranges is
// being retried. A sweep has read these ranges.
func (js *Jobs) calm(ctx context.Context, job *record.Job, open []*record.Range) error {
	if job.Trouble == "" || slices.ContainsFunc(open, func(r *record.Range) bool {
		return r.RefusalsIn(job) > 0 || !r.LaterFrom.IsZero()
	}) {
		return nil
	}
	_, err := js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (changed bool, err error) {
		if j.State != record.Running || j.Trouble != job.Trouble {
			return false, nil
		}
		j.Trouble = ""
		return true, nil
	})
	return err
}

// reviveSweep enqueues the next sweep of a job, unless the queue has it. If the sweep's name can't
// be used because the task was purged, it tries the names of later sweeps.
func (js *Jobs) reviveSweep(ctx context.Context, job *record.Job, now time.Time) error {
	const most = 100 // more than the number of purges between two ticks
	for range most {
		tick, at := nextTick(job, now)
		task := body.Job{Tick: tick}.Task(job, sweepPath, at)
		if err := js.Queue.Enqueue(ctx, task); !errors.Is(err, tasks.ErrExists) {
			return err
		}
		if exists, err := js.Queue.Exists(ctx, task); err != nil || exists {
			return err
		}
		now = at
	}
	return fmt.Errorf("all names of the sweeps of job %s until %v are taken", job.ID, now)
}
