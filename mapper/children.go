package mapper

import (
	"context"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/tasks"
)

// enqueueChildren enqueues the tasks of the children that this delivery has not
// enqueued yet. The last ones are entities to try again, which wait a little.
func (w *work) enqueueChildren(ctx context.Context) error {
	r := w.record
	now := time.Now()
	var all []tasks.Task
	for ; w.enqueued < r.Children; w.enqueued++ {
		child := &rangeRecord{Job: r.Job, ID: rangeID(r.ID, w.enqueued)}
		at := time.Time{}
		if w.enqueued >= r.Children-r.Retries {
			at = now.Add(retryDelay)
		}
		all = append(all, child.task(w.job, at))
	}
	if err := w.engine.queue.EnqueueAll(ctx, all); err != nil {
		w.enqueued = 0
		return fmt.Errorf("enqueue the children of range %s of job %s: %w", r.ID, r.Job, err)
	}
	return nil
}

// retryDelay is how long an entity that failed waits for its second attempt:
// long enough for a conflict or a hiccup of a service to pass. The ones after
// that are up to the queue's back-off.
const retryDelay = time.Second
