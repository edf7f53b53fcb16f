package lifecycle

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
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/tasks"
)

// EndSmall ends a job without a task for this, if the job has few records and no open range. The
// caller has just ended a range. EndSmall returns true if the job has ended. If it returns false,
// the job has not ended or this is unknown, and the caller continues with Complete.
//
// The caller must have read the job's record, with its version, before this call. Ranges are
// created only in the commit of an open range, or together with a change of the job's record. So if
// no range is open, and the job's record is unchanged at the commit, the query has missed no range.
func (js *Jobs) EndSmall(ctx context.Context, job *record.Job) (ended bool) {
	def := js.Mappers[job.Mapper]
	if !job.EndsAtOnce() || job.Queue.Is(js.Queue.Name()) != nil || def == nil || def.OnDone != nil ||
		def.Forget != nil {
		return false
	}
	place, err := js.Gate.Enter(ctx, false)
	if err != nil {
		return false
	}
	defer place.Leave()
	l, all, err := js.Store.FoldFew(ctx, job, cmp.Or(js.Portion.Records, portionRecords))
	if err != nil || !all || l.Pending > 0 || l.Err() != nil || l.Lost != nil {
		return false
	}
	next := *job
	if err := next.Succeed(l.Totals, time.Now()); err != nil {
		return false
	}
	next.NoteEnd()
	err = js.Store.Replace(ctx, &next)
	switch status.Code(err) {
	case codes.Aborted, codes.FailedPrecondition, codes.NotFound: // another client has changed or ended the job
		return false
	}
	return js.settle(ctx, transition{job.State, &next}, "", err) == nil
}

// Complete enqueues the task that ends a job, if no range of the job is open. Several processes may
// call it at the same time, and the task makes sure that only one adds up the records. The
// parameter sweep says whether the caller is a sweep, see enqueueEnd.
//
// The caller must have read the job before this call. The task contains the epoch that was read. If
// the epoch is raised later, there may be ranges that the query has missed, so the task then does
// nothing. In the same epoch, ranges are created only in the commit of their parent, and the parent
// is open until then. If the task is lost, a sweep calls Complete again.
func (js *Jobs) Complete(ctx context.Context, job *record.Job, sweep bool) error {
	if job.State != record.Running || job.Retrying {
		return nil // another delivery has ended the job, or a retry is under way and calls Complete at its end
	}
	if job.Queue.Is(js.Queue.Name()) != nil {
		return nil // the job was moved to another queue
	}
	if open, err := js.Store.HasOpen(ctx, job.Ref()); err != nil || open {
		return err
	}
	if js.Mappers[job.Mapper] == nil {
		return nil // the mapper may have a finalizer, so only a build with this mapper may end the job
	}
	return js.enqueueEnd(ctx, job, sweep)
}

const finalizePath = "finalize"

// enqueueEnd enqueues the task that ends a job. The queue may refuse the task, because it has a
// task of this name, or recently had one. If the parameter sweep is false, enqueueEnd then does
// nothing more. If a sweep is the caller, enqueueEnd checks whether the earlier task is lost. If
// so, it enqueues a task with another name.
//
// If this process lacks the permission to ask the queue, the job's record decides:
//
//   - If the record has no error, the earlier task counts as lost. If the task is not lost, there
//     are two tasks, but only one of them ends the job.
//   - If the record has an error, the earlier task counts as being retried, so nothing is enqueued.
//     If that task was purged or given up, a sweep enqueues it again when Cloud Tasks releases its
//     name, within a day. Resume does so at once.
func (js *Jobs) enqueueEnd(ctx context.Context, job *record.Job, sweep bool) error {
	t, err := js.lastLink(ctx, job)
	if err != nil {
		return err
	}
	task := t.Task(job, finalizePath, time.Time{})
	if err := js.Queue.Enqueue(ctx, task); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	if !sweep {
		return nil
	}
	switch exists, err := js.Queue.Exists(ctx, task); {
	case status.Code(err) == codes.PermissionDenied && job.Error == "":
	case status.Code(err) == codes.PermissionDenied:
		return nil
	case err != nil || exists:
		return err
	}
	stale := job.Generation
	job, err = js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) { return j.LoseEnd(stale), nil })
	if err != nil || job.State != record.Running {
		return err
	}
	return js.enqueue(ctx, job, finalizePath, t, time.Time{})
}

// runEnd ends a job that has no open range. It adds up the records, and runs the mapper's
// finalizer. If there are many records, this takes several deliveries.
func (js *Jobs) runEnd(ctx context.Context, job *record.Job, t body.Job) error {
	if !t.Current(job) {
		return nil
	}
	def := js.Mappers[job.Mapper]
	if def == nil {
		return fmt.Errorf("job %s: %w %q", job.ID, function.ErrUnknownMapper, job.Mapper)
	}
	open, err := js.Store.HasOpen(ctx, job.Ref())
	if err != nil || open {
		return err
	}
	if len(job.Closing) > 0 {
		return finalizer{Jobs: js, def: def}.runClosed(ctx, job, t)
	}
	place, err := js.Gate.Enter(ctx, false)
	if err != nil {
		return err
	}
	goesOn := func(j *record.Job) bool { return j.MayEnd(job.Epoch) && len(j.Closing) == 0 }
	l, err := js.addUp(ctx, job, finalizePath, t, goesOn)
	place.Leave()
	if err != nil || l == nil {
		return err
	}
	sum := l.Totals
	if wrong := cmp.Or(l.Err(), l.Lost); wrong != nil {
		return js.failAtEnd(ctx, job, wrong, sum)
	}
	if def.Forget != nil && sum.Failures == 0 {
		return finalizer{Jobs: js, def: def}.close(ctx, job, t, l)
	}
	if def.OnDone == nil {
		return js.end(ctx, job, "", func(_ *datastore.Transaction, j *record.Job) error {
			return j.Succeed(sum, time.Now())
		})
	}
	return finalizer{Jobs: js, def: def, sum: sum}.run(ctx, job, t)
}

// Fail ends a job as failed. The records of its open ranges do not change. Their tasks find that
// the job has ended.
func (js *Jobs) Fail(ctx context.Context, job *record.Job, reason error) error {
	return js.fail(ctx, job, reason, func(*record.Job) error { return nil })
}

// failAtEnd ends a job as failed that has no open ranges. Its totals are sum.
func (js *Jobs) failAtEnd(ctx context.Context, job *record.Job, reason error, sum record.Totals) error {
	return js.fail(ctx, job, reason, func(j *record.Job) error { return sum.RecordIn(j) })
}

func (js *Jobs) fail(ctx context.Context, job *record.Job, reason error, besides func(*record.Job) error) error {
	return js.end(ctx, job, fault.Summary(reason), func(_ *datastore.Transaction, j *record.Job) error {
		j.Fail(fault.Brief(fault.Text(reason)), errors.Is(reason, tally.Err), time.Now())
		return besides(j)
	})
}

// end calls change on the record of a running job, to end the job. The parameter cause is the
// reason that the observer is told; empty: the job has succeeded. If the job's epoch was raised
// after the caller read it, end changes nothing. If the job is an undo that may have missed
// records, the undo fails instead.
func (js *Jobs) end(
	ctx context.Context, job *record.Job, cause string, change func(*datastore.Transaction, *record.Job) error,
) error {
	var s transition
	said := cause
	err := js.Store.Transact(ctx, func(tx *datastore.Transaction) error {
		s = transition{}
		j, err := store.GetJob(tx, job.Ref())
		if err != nil {
			return err
		}
		if !j.MayEnd(job.Epoch) {
			return nil
		}
		from := j.State
		if err := change(tx, j); err != nil {
			return err
		}
		why := cause
		if j.State != record.Failed {
			incomplete, err := store.Incomplete(tx, j)
			if err != nil {
				return err
			}
			if incomplete != nil {
				why = fault.Summary(incomplete)
				j.Fail(fault.Text(incomplete), false, time.Now())
			}
		}
		j.NoteEnd()
		s, said = transition{from, j}, why
		if err := store.EndDraft(tx, j); err != nil {
			return err
		}
		_, err = tx.Mutate(j.Update())
		return err
	})
	if err = js.settle(ctx, s, said, err); err != nil {
		return fmt.Errorf("end job %s: %w", job.ID, err)
	}
	return nil
}
