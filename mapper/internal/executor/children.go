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
func (d *delivery) enqueueChildren(ctx context.Context) (err error) {
	r, next, waits := d.record, d.turn.follow.Next, d.turn.follow.Waits
	if r.Retries > 0 && waits == nil {
		if waits, err = d.waits(ctx); err != nil {
			return err
		}
	}
	if d.turn.beaten && next == nil {
		if next, err = d.continued(ctx); err != nil {
			return err
		}
	}
	if err := d.x.Queue.EnqueueAll(ctx, d.children(next, waits)); err != nil {
		d.turn.enqueued = 0
		return fmt.Errorf("enqueue the children of range %s of job %s: %w", r.ID, r.Job, err)
	}
	d.turn.enqueued = max(d.turn.enqueued, r.Children-r.Recorded)
	return nil
}

// continued returns the child that the delivery goes on with which has just done the range, if
// there is one. If it had a task, too, two deliveries would go through what is left side by side.
// If that process dies it is found by the queue or a sweep, as in any page.
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

// children returns the tasks of the range's children that have none yet, but of the one that the
// delivery goes on with. The last children are entities that failed: those to try again wait, as
// waits says, and those that were recorded have no task. They may begin traces of their own.
func (d *delivery) children(next *record.Range, waits map[string]time.Time) (all []tasks.Task) {
	r := d.record
	for n := d.turn.enqueued; n < r.Children-r.Recorded; n++ {
		child := &record.Range{Job: r.Job, Incarnation: r.Incarnation, ID: record.RangeID(r.ID, n)}
		child.NotBefore = waits[child.ID]
		if next == nil || child.ID != next.ID {
			task := body.TaskOf(child, d.job)
			task.NewTrace = d.turn.newTraces
			all = append(all, task)
		}
	}
	return all
}

// waits returns until when the range's children wait that have to, as the delivery has recorded
// them that has committed it.
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

// handOver gives a range that a delivery leaves another task: what is left of the one that it has
// come for, and has gone on with and failed, so that it is tried again with less to walk to; and
// that one itself if this process drains, as the queue would deliver its task again only after a
// back-off. It reports whether there is such a task.
func handOver(ctx context.Context, d *delivery, gone bool, cause error) bool {
	draining := errors.Is(cause, gate.ErrDraining)
	if !gone {
		// a task of its own would not tell of deaths before
		if !draining || d.turn.redelivered || d.record.State != record.Pending {
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
