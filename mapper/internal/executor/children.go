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

// enqueueChildren enqueues the tasks of the range's children that were not enqueued in this turn
// yet, and that the delivery does not go on with.
func (c *claim) enqueueChildren(ctx context.Context, queue *tasks.Queue, t *turn) (err error) {
	r, waits := c.record, t.after.waits
	if r.Retries > 0 && waits == nil {
		if waits, err = c.waits(ctx); err != nil {
			return err
		}
	}
	next := t.after.next
	if c.beaten && next == nil {
		if next, err = c.continued(ctx); err != nil {
			return err
		}
	}
	if err := queue.EnqueueAll(ctx, c.children(t.enqueued, next, waits, t.newTraces)); err != nil {
		t.enqueued = 0
		return fmt.Errorf("enqueue the children of range %s of job %s: %w", r.ID, r.Job, err)
	}
	t.enqueued = max(t.enqueued, r.Children-r.Recorded)
	return nil
}

// continued returns the child that the delivery goes on with which has just done the range, if
// there is one. If it had a task, too, two deliveries would go through what is left side by side.
// If that process dies it is found by the queue or a sweep, as in any page.
func (c *claim) continued(ctx context.Context) (*record.Range, error) {
	last := c.record.Children - c.record.Recorded - c.record.Retries - 1
	if last < 0 {
		return nil, nil
	}
	child, err := c.store.LoadRange(ctx, c.record.Ref(), record.RangeID(c.record.ID, last))
	if err != nil {
		return nil, fmt.Errorf("load the last child of range %s of job %s: %w", c.record.ID, c.record.Job, err)
	}
	if !child.Continued {
		return nil, nil
	}
	return child, nil
}

// children returns the tasks of the range's children from the n-th on, but of the one that the
// delivery goes on with. The last children are entities that failed: those to try again wait, as
// waits says, and those that were recorded have no task. They may begin traces of their own.
func (c *claim) children(n int64, next *record.Range, waits map[string]time.Time, newTraces bool) []tasks.Task {
	r := c.record
	var all []tasks.Task
	for ; n < r.Children-r.Recorded; n++ {
		child := &record.Range{Job: r.Job, Incarnation: r.Incarnation, ID: record.RangeID(r.ID, n)}
		child.NotBefore = waits[child.ID]
		if next == nil || child.ID != next.ID {
			task := body.TaskOf(child, c.job)
			task.NewTrace = newTraces
			all = append(all, task)
		}
	}
	return all
}

// waits returns until when the range's children wait that have to, as the delivery has recorded
// them that has committed it.
func (c *claim) waits(ctx context.Context) (map[string]time.Time, error) {
	r := c.record
	waits := make(map[string]time.Time)
	for i := r.Children - r.Recorded - r.Retries; i < r.Children-r.Recorded; i++ {
		child, err := c.store.LoadRange(ctx, r.Ref(), record.RangeID(r.ID, i))
		if err != nil {
			return nil, fmt.Errorf("load a child of range %s of job %s: %w", r.ID, r.Job, err)
		}
		waits[child.ID] = child.NotBefore
	}
	return waits, nil
}

// handOver gives a range that a delivery leaves another task: what is left of the one that it has
// come for, and has gone on with and failed, so that it is tried again with less to walk to; and
// that one itself if this process drains, as the queue would deliver its task again only after a
// back-off. It reports whether there is such a task.
func handOver(ctx context.Context, d *delivery, gone bool, cause error) bool {
	draining := errors.Is(cause, gate.ErrDraining)
	if !gone {
		// a task of its own would not tell of deaths before
		if !draining || d.redelivered || d.record.State != record.Pending {
			return false
		}
		s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
			r.Generation++
			return nil, nil
		})
		if err != nil || s != ours {
			return err == nil && s == superseded // somebody has given it one
		}
	}
	if err := d.x.Queue.Enqueue(ctx, body.TaskOf(d.record, d.job)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return false
	}
	if !draining {
		d.x.Log.LogAttrs(ctx, slog.LevelWarn, "range failed, and has a task of its own now",
			slog.String("job", d.job.ID), slog.String("mapper", d.job.Mapper),
			slog.String("range", d.record.ID), slog.Any("error", cause))
	}
	return true
}
