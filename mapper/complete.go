package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/tasks"
)

// complete has a job ended if none of its ranges is open: by a task, as several processes
// may see that at the same moment, and only one of them should add up the records. The job
// was read before that look, and so it is in the task: if its epoch has changed since, ranges
// may have appeared that the look did not see, and the job goes on. Otherwise ranges appear
// only in the commit of their parent, which is open itself until then. A sweep makes sure that
// the task is there.
func (e *Engine) complete(ctx context.Context, job *record.Job, sweep bool) error {
	if State(job.State) != Running || job.Retrying {
		return nil // another delivery has ended it, or the retry looks when it is done
	}
	if open, err := e.store().HasOpen(ctx, job.Ref()); err != nil || open {
		return err
	}
	if e.mappers[job.Mapper] == nil {
		return nil // only a build that has the mapper can end the job: it may have a finalizer
	}
	return e.enqueueEnd(ctx, job, sweep)
}

const finalizePath = "finalize"

// enqueueEnd enqueues the task that ends a job. If there was one, only a sweep sees whether it is
// lost: then another one needs another name. Who may not ask the queue takes it for lost, as of two
// such tasks one ends the job; but not if it has left an error, and so is tried again. If that
// one is purged, or given up by the queue, a sweep enqueues it anew once Cloud Tasks has released
// its name, after up to a day, or Resume does at once.
func (e *Engine) enqueueEnd(ctx context.Context, job *record.Job, sweep bool) error {
	task := body.Job{}.Task(job, finalizePath, time.Time{})
	if err := e.queue.Enqueue(ctx, task); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	if !sweep {
		return nil
	}
	switch exists, err := e.queue.Exists(ctx, task.ID); {
	case status.Code(err) == codes.PermissionDenied && job.Error == "":
	case status.Code(err) == codes.PermissionDenied:
		return nil
	case err != nil || exists:
		return err
	}
	stale := job.Generation
	job, err := e.store().UpdateJob(ctx, job.Ref(), func(j *record.Job) error {
		if State(j.State) != Running || j.Generation != stale {
			return store.ErrNothing
		}
		j.Generation++
		j.Solo = true // the deliveries of the task that is lost may have died of its finalizer
		return nil
	})
	if err != nil || State(job.State) != Running {
		return err
	}
	return e.enqueue(ctx, job, finalizePath, body.Job{}, time.Time{})
}

// runEnd ends a job none of whose ranges is open: it adds up the records, and runs the
// mapper's finalizer, if it has one.
func (e *Engine) runEnd(ctx context.Context, job *record.Job, t body.Job) error {
	if !t.Current(job) {
		return nil
	}
	def := e.mappers[job.Mapper]
	if def == nil {
		return fmt.Errorf("job %s: %w %q", job.ID, ErrUnknownMapper, job.Mapper)
	}
	open, err := e.store().HasOpen(ctx, job.Ref())
	if err != nil || open {
		return err
	}
	place, err := e.gate.enter(ctx, false)
	if err != nil {
		return err
	}
	l, err := e.store().Fold(ctx, job)
	place.leave()
	if err != nil {
		return err
	}
	if wrong := cmp.Or(l.Err(), l.Lost); wrong != nil {
		_, err := e.fail(ctx, job, wrong)
		return err
	}
	sum := l.Totals
	if def.OnDone == nil {
		return e.end(ctx, job, func(_ *datastore.Transaction, j *record.Job) error { return j.Succeed(sum, time.Now()) })
	}
	return e.finalize(ctx, job, t, def, sum)
}

// fail ends a job for a reason. Its open ranges stay recorded as they are; their
// tasks find the job ended and leave them. It reports whether it was this call that
// ended it.
func (e *Engine) fail(ctx context.Context, job *record.Job, reason error) (first bool, err error) {
	err = e.end(ctx, job, func(_ *datastore.Transaction, j *record.Job) error {
		first = true
		j.CountersLost = errors.Is(reason, tally.Err)
		j.State, j.Error, j.Ended = string(Failed), fault.Text(reason), time.Now().UTC().Truncate(time.Microsecond)
		return nil
	})
	return first && err == nil, err
}

// end changes the record of a job that runs, if no ranges have appeared since its
// epoch was read.
func (e *Engine) end(ctx context.Context, job *record.Job, change func(*datastore.Transaction, *record.Job) error) error {
	err := e.store().Transact(ctx, func(tx *datastore.Transaction) error {
		j, err := store.GetJob(tx, job.Ref())
		if err != nil {
			return err
		}
		if State(j.State) != Running || j.Retrying || j.Epoch != job.Epoch {
			return nil
		}
		if err := change(tx, j); err != nil {
			return err
		}
		_, err = tx.Mutate(j.Update())
		return err
	})
	if err != nil {
		return fmt.Errorf("end job %s: %w", job.ID, err)
	}
	return nil
}
