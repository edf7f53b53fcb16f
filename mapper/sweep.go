package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/tasks"
)

// A sweep looks at the open ranges of a job, and enqueues those whose task is
// lost: purged, deleted, given up by the queue, or never created because a
// process died between recording and enqueueing. It also notices that the job is
// complete.
//
// The sweeps of a job are a chain of tasks, named by the job, its epoch and a
// tick, of which each enqueues the next. A chain ends with the job's epoch or when
// the job is not running; whoever raises the epoch starts another.

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

	// sweepParallel is how many of them it looks at at once.
	sweepParallel = 16
)

// A sweepTask is the body of a sweep's task.
type sweepTask struct {
	Job   string `json:"job"`
	Epoch int64  `json:"epoch"`
	Tick  int64  `json:"tick"`
	After string `json:"after,omitempty"` // the ID of the last range that was looked at in this tick
	All   bool   `json:"all,omitempty"`   // ranges of every age
}

func (e *Engine) enqueueSweep(ctx context.Context, job *jobRecord, t sweepTask, at time.Time) error {
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	err = e.queue.Enqueue(ctx, tasks.Task{
		ID:   tasks.ID(sweepPath, job.ID, strconv.FormatInt(t.Epoch, 10), strconv.FormatInt(t.Tick, 10), t.After),
		Path: sweepPath, Body: body, At: at,
	})
	if err != nil && !errors.Is(err, tasks.ErrExists) {
		return fmt.Errorf("enqueue a sweep of job %s: %w", job.ID, err)
	}
	return nil
}

// deliverSweep runs the task of a sweep.
func (e *Engine) deliverSweep(ctx context.Context, d tasks.Delivery) error {
	var t sweepTask
	if err := json.Unmarshal(d.Body, &t); err != nil || !jobID.MatchString(t.Job) {
		return tasks.Drop(fmt.Errorf("the body is not a sweep of ours: %w", errors.Join(err, errors.New("it names no job"))))
	}
	job, err := e.loadJob(ctx, t.Job)
	if errors.Is(err, ErrNoSuchJob) {
		return tasks.Drop(err)
	}
	if err != nil || State(job.State) != Running || job.Epoch != t.Epoch {
		return errors.Join(err, e.sweepAfterReplay(ctx, job, t.Epoch))
	}
	if job.Replaying { // still: its tasks may be lost
		next, err := e.replayPage(ctx, job, "")
		for err == nil && next != "" {
			next, err = e.replayPage(ctx, job, next)
		}
		return err
	}
	return e.sweep(ctx, job, t, time.Now())
}

// sweep looks at the next open ranges, and enqueues the next task of the chain.
func (e *Engine) sweep(ctx context.Context, job *jobRecord, t sweepTask, now time.Time) error {
	open, err := e.openRanges(ctx, job.ID, t.After, sweepRanges)
	if err != nil {
		return fmt.Errorf("look for open ranges of job %s: %w", job.ID, err)
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(sweepParallel)
	for _, r := range open {
		if t.All || now.Sub(r.Created) >= sweepAge {
			group.Go(func() error { return e.revive(gctx, job, r) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(open) == sweepRanges {
		t.After = open[len(open)-1].ID
		return e.enqueueSweep(ctx, job, t, time.Time{})
	}
	if err := e.complete(ctx, job); err != nil {
		return err
	}
	return e.enqueueSweep(ctx, job, sweepTask{Job: t.Job, Epoch: t.Epoch, Tick: t.Tick + 1}, now.Add(sweepEvery))
}

// openRanges returns the first open ranges behind one, in the order of their IDs.
func (e *Engine) openRanges(ctx context.Context, job, after string, limit int) ([]*rangeRecord, error) {
	return e.marked(ctx, "open", job, after, limit)
}

// marked returns the first ranges with one of the two marks of a job.
func (e *Engine) marked(ctx context.Context, mark, job, after string, limit int) ([]*rangeRecord, error) {
	q := datastore.NewQuery(rangeKind).FilterField(mark, "=", job).Order("__key__").Limit(limit)
	if after != "" {
		q = q.FilterField("__key__", ">", rangeKey(job, after))
	}
	var all []*rangeRecord
	err := e.each(ctx, q, func(r *rangeRecord) error {
		all = append(all, r)
		return nil
	})
	return all, err
}
