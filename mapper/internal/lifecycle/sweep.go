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

// A sweep looks at the open ranges of a job, and enqueues those whose task
// is lost: purged, deleted, given up by the queue, or never created because a process died between
// recording and enqueueing. It also notices that the job is complete.
//
// The sweeps of a job are a chain of tasks, of which each enqueues the next. They
// are named by the job's epoch and their tick, and ticks are at fixed times: who
// revives a chain that is alive meets it. A chain ends with the epoch or when the
// job is not running; whoever raises the epoch starts another.

const (
	sweepPath = "sweep"

	// sweepEvery is the time between two sweeps of a job: what a lost task costs at
	// most, while a sweep costs a query and a task.
	sweepEvery = 2 * time.Minute

	// sweepAge is how old a range is before a sweep looks for its task: the delivery
	// that has recorded it is about to enqueue it.
	sweepAge = time.Minute

	// sweepRanges is how many ranges one task looks at.
	sweepRanges = 500
)

// nextTick returns the number of the job's first tick after a time, and when it
// is. The ticks of different jobs are at different times.
func nextTick(j *record.Job, now time.Time) (tick int64, at time.Time) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(j.ID)) // never fails
	phase := time.Duration(h.Sum64() % uint64(sweepEvery)).Truncate(time.Second)
	tick = (now.UnixNano()-int64(phase))/int64(sweepEvery) + 1
	return tick, time.Unix(0, tick*int64(sweepEvery)+int64(phase))
}

// latest returns the later one of now and a sweep's own tick: the queue's clock may
// be ahead of this one.
func latest(j *record.Job, now time.Time, t body.Job) time.Time {
	const most = 100 // what is further ahead is no clock's fault
	tick, at := nextTick(j, now)
	if ahead := t.Tick - tick; 0 <= ahead && ahead < most {
		return at.Add(time.Duration(ahead) * sweepEvery)
	}
	return now
}

// runSweep runs the task of a sweep.
func (js *Jobs) runSweep(ctx context.Context, job *record.Job, t body.Job) error {
	job, err := js.forestallEpoch(ctx, job, t)
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
	if t.After == "" { // first of all, as what follows may fail for long
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
	if job.Retrying { // still: its tasks may be lost
		return js.retryAll(ctx, job)
	}
	return js.sweepOpen(ctx, job, t, now)
}

// sweepOpen looks at the next open ranges.
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

// calm has the job's status no longer say that something is tried again, if none of the ranges that
// a sweep looks at is.
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

// reviveSweep enqueues the next sweep of a job, unless there is one. If it was
// purged its name is taken: then the one after that, which may have been purged, too.
func (js *Jobs) reviveSweep(ctx context.Context, job *record.Job, now time.Time) error {
	const most = 100 // purges within a tick
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
