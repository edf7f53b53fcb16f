package mapper

import (
	"context"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// enqueueChildren enqueues the tasks of the children that this delivery has not
// enqueued yet, and does not go on with. The last ones are entities that failed: those
// to try again wait, and those that were recorded have no task.
func (w *work) enqueueChildren(ctx context.Context) error {
	r := w.record
	waits, err := w.waits(ctx)
	if err != nil {
		return err
	}
	var all []tasks.Task
	for ; w.enqueued < r.Children-r.Recorded; w.enqueued++ {
		child := &record.Range{Job: r.Job, Incarnation: r.Incarnation, ID: record.RangeID(r.ID, w.enqueued)}
		child.NotBefore = waits[child.ID]
		if w.next != nil && child.ID == w.next.ID {
			continue
		}
		all = append(all, body.TaskOf(child, w.job))
	}
	if err := w.engine.queue.EnqueueAll(ctx, all); err != nil {
		w.enqueued = 0
		return fmt.Errorf("enqueue the children of range %s of job %s: %w", r.ID, r.Job, err)
	}
	return nil
}

// waits returns until when the range's children wait that have to: as this delivery
// has decided them, or else as the one before it has recorded them.
func (w *work) waits(ctx context.Context) (map[string]time.Time, error) {
	r := w.record
	if r.Retries == 0 || w.waiting != nil {
		return w.waiting, nil
	}
	waits := make(map[string]time.Time)
	for i := r.Children - r.Recorded - r.Retries; i < r.Children-r.Recorded; i++ {
		child, err := w.engine.store().LoadRange(ctx, r.Ref(), record.RangeID(r.ID, i))
		if err != nil {
			return nil, fmt.Errorf("load a child of range %s of job %s: %w", r.ID, r.Job, err)
		}
		waits[child.ID] = child.NotBefore
	}
	return waits, nil
}
