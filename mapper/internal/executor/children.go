package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// enqueueChildren enqueues the tasks of the range's children. It leaves out children whose tasks
// this delivery has already enqueued, and the child with which the delivery continues.
func (d *delivery) enqueueChildren(ctx context.Context) (err error) {
	r, next, waits := d.record, d.state.follow.Next, d.state.follow.Waits
	if waits == nil {
		if waits, err = d.waits(ctx); err != nil {
			return err
		}
	}
	if d.state.beaten {
		if next, err = d.continued(ctx); err != nil {
			return err
		}
	}
	if err := d.x.Queue.EnqueueAll(ctx, d.children(next, waits)); err != nil {
		return fmt.Errorf("enqueue the children of range %s of job %s: %w", r.ID, r.Job, err)
	}
	d.state.enqueued = max(d.state.enqueued, r.Children-r.Recorded)
	return nil
}

// continued returns the child of the range with which another delivery continues; nil if there is
// none. This child must not get a task: otherwise two deliveries would work on the same entities.
// If the other delivery dies, the queue or a sweep finds the child.
func (d *delivery) continued(ctx context.Context) (*record.Range, error) {
	last := d.record.Children - d.record.Recorded - d.record.Retries - 1
	if last < 0 {
		return nil, nil
	}
	child, err := d.x.Store.LoadRange(ctx, d.record.Ref(), record.RangeID(d.record.ID, last))
	if err != nil {
		return nil, fmt.Errorf("load the last child of range %s of job %s: %w", d.record.ID, d.record.Job, err)
	}
	if !child.Continued {
		return nil, nil
	}
	return child, nil
}

// children returns the tasks to enqueue for the range's children. It leaves out three kinds:
// recorded failures, children that already have tasks, and the child next, with which the delivery
// continues. Some children are failed entities that are to be retried. The parameter waits says
// when the tasks of these children are due, by the IDs of their ranges.
func (d *delivery) children(next *record.Range, waits map[string]time.Time) (all []tasks.Task) {
	r := d.record
	for n := d.state.enqueued; n < r.Children-r.Recorded; n++ {
		child := &record.Range{Job: r.Job, Incarnation: r.Incarnation, ID: record.RangeID(r.ID, n)}
		child.NotBefore = waits[child.ID]
		if next == nil || child.ID != next.ID {
			task := body.TaskOf(child, d.job)
			if n-d.state.enqueued < d.state.idle {
				task = body.TaskForIdle(child, d.job)
			}
			task.NewTrace = d.state.newTraces
			all = append(all, task)
		}
	}
	return all
}

// waits returns the times at which the range's failed entities are retried, by the IDs of their
// ranges. It reads these times from the records of the range's children.
func (d *delivery) waits(ctx context.Context) (map[string]time.Time, error) {
	r := d.record
	waits := make(map[string]time.Time)
	for i := r.Children - r.Recorded - r.Retries; i < r.Children-r.Recorded; i++ {
		child, err := d.x.Store.LoadRange(ctx, r.Ref(), record.RangeID(r.ID, i))
		if err != nil {
			return nil, fmt.Errorf("load a child of range %s of job %s: %w", r.ID, r.Job, err)
		}
		waits[child.ID] = child.NotBefore
	}
	return waits, nil
}

// enqueueAgain enqueues a new task for the current range.
func (d *delivery) enqueueAgain(ctx context.Context) error {
	err := d.x.Queue.Enqueue(ctx, body.TaskOf(d.record, d.job))
	if err == nil || errors.Is(err, tasks.ErrExists) {
		return nil
	}
	return fmt.Errorf("enqueue range %s of job %s again: %w", d.record.ID, d.job.ID, err)
}

// handOver enqueues a new task for the current range if this delivery can't finish it. It reports
// whether there is such a task. cause is the error with which the delivery ends. There are two
// cases:
//
//   - The parameter gone is true: the delivery has continued with a later range, and failed there.
//     When its own task is delivered again, it would first have to go through the earlier ranges.
//   - This process drains. The queue would deliver the task again only after a back-off.
func (d *delivery) handOver(ctx context.Context, gone bool, cause error) bool {
	draining := errors.Is(cause, gate.ErrDraining)
	if !gone {
		// The delivery of a new task is a first delivery, and would not show that earlier
		// deliveries may have died.
		if !draining || d.state.redelivered || d.record.State != record.Pending {
			return false
		}
		s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
			r.Generation++
			return nil, nil
		})
		if err != nil || s != ours {
			return s == superseded // superseded means that another delivery has given the range a task
		}
	}
	if err := d.enqueueAgain(ctx); err != nil {
		return false
	}
	if !draining {
		d.x.Log.LogAttrs(ctx, slog.LevelWarn, "range failed, and has a task of its own now",
			slog.String("job", d.job.ID), slog.String("mapper", d.job.Mapper),
			slog.String("range", d.record.ID), slog.Any("error", cause))
	}
	return true
}
