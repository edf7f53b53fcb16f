package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/tasks"
)

// A Done is a job that is done, in the hands of its finalizer. It belongs to one
// attempt.
type Done struct {
	// Status is how the job stands, with exact numbers; its State is the one that it
	// will end with.
	Status *Status

	attempt *attempt
}

// Put saves an entity together with the end of the job.
func (d *Done) Put(key *datastore.Key, src any) { d.attempt.put(key, src) }

// Delete deletes an entity together with the end of the job.
func (d *Done) Delete(key *datastore.Key) { d.attempt.delete(key) }

const finalizePath = "finalize"

// enqueueEnd enqueues the task that ends a job. If there was one, only a sweep sees whether it is
// lost: then another one needs another name. Who may not ask the queue takes it for lost: of two
// such tasks one ends the job.
func (e *Engine) enqueueEnd(ctx context.Context, job *jobRecord, sweep bool) error {
	task := job.task(finalizePath, jobTask{}, time.Time{})
	if err := e.queue.Enqueue(ctx, task); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	if !sweep {
		return nil
	}
	switch exists, err := e.queue.Exists(ctx, task.ID); {
	case status.Code(err) == codes.PermissionDenied:
	case err != nil || exists:
		return err
	}
	stale := job.Generation
	job, err := e.alter(ctx, job.ID, func(j *jobRecord) error {
		if State(j.State) != Running || j.Generation != stale {
			return errNothing
		}
		j.Generation++
		return nil
	})
	if err != nil || State(job.State) != Running {
		return err
	}
	return e.enqueue(ctx, job, finalizePath, jobTask{}, time.Time{})
}

// runEnd ends a job none of whose ranges is open: it adds up the records, and runs the
// mapper's finalizer, if it has one.
func (e *Engine) runEnd(ctx context.Context, job *jobRecord, t jobTask) error {
	if !t.current(job) {
		return nil
	}
	def := e.mappers[job.Mapper]
	if def == nil {
		return fmt.Errorf("job %s: %w %q", job.ID, ErrUnknownMapper, job.Mapper)
	}
	open, err := e.hasOpen(ctx, job.ID)
	if err != nil || open {
		return err
	}
	if def.onDone != nil && t.redelivered && job.Error == "" { // who fails leaves an error
		if job, err = e.alter(ctx, job.ID, func(j *jobRecord) error {
			if !t.current(j) || j.Error != "" {
				return errNothing
			}
			j.Error = "the finalizer was cut off, or its process died, and it is tried again"
			return nil
		}); err != nil || !t.current(job) {
			return err
		}
	}
	sum, err := e.fold(ctx, job.ID)
	if err != nil {
		return err
	}
	if def.onDone == nil {
		return e.end(ctx, job, func(_ *datastore.Transaction, j *jobRecord) error { return j.succeed(sum) })
	}
	return e.finalize(ctx, job, def, sum)
}

// finalize runs the finalizer in the transaction that ends the job.
func (e *Engine) finalize(ctx context.Context, job *jobRecord, def *definition, sum totals) error {
	var failed error // the function's
	ready := false   // all that is left is the commit
	err := e.end(ctx, job, func(tx *datastore.Transaction, j *jobRecord) error {
		failed, ready = nil, false
		if err := j.succeed(sum); err != nil {
			return err
		}
		status, err := j.status(sum)
		if err != nil {
			return err
		}
		var effect *effect
		if effect, failed = runOnDone(ctx, def, j, status); failed != nil {
			return failed
		}
		ready = true
		j.Finalizes, j.Finalized = true, j.Epoch
		return mutate(tx, effect)
	})
	if refused := new(commitRefusal); failed == nil && ready && errors.As(asCommitRefusal(err), refused) {
		failed = Permanent(fmt.Errorf("the database refuses what it writes: %w", refused))
	}
	if failed == nil {
		return err
	}
	if isPermanent(failed) {
		_, err := e.fail(ctx, job, refusal{summary: "the finalizer failed", cause: failed, final: true})
		return err
	}
	_, err = e.alter(ctx, job.ID, func(j *jobRecord) error {
		if State(j.State) != Running {
			return errNothing
		}
		j.Error = explain(refusal{summary: "the finalizer failed, and is tried again", cause: failed})
		return nil
	})
	return errors.Join(fmt.Errorf("the finalizer of job %s failed", job.ID), err)
}

// runOnDone runs a finalizer, and returns what it asks for. A panic becomes an error.
func runOnDone(ctx context.Context, def *definition, j *jobRecord, status *Status) (*effect, error) {
	a := &attempt{job: j.ID, mode: update, key: jobKey(j.ID)}
	var failed error
	err := runCalls(ctx, maxInTransaction, func(r *runner) {
		r.call(func(ctx context.Context) {
			defer recovered(&failed)
			failed = a.run(func() error { return def.onDone(ctx, &Done{Status: status, attempt: a}, j.Params) })
		})
	})
	switch {
	case errors.Is(err, errTimeout):
		return nil, fmt.Errorf("it took more than %v", maxInTransaction)
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, failed
	}
	return a.bounded()
}

// succeed marks a job as ended. Its finalizer, if it has one, comes in addition.
func (j *jobRecord) succeed(sum totals) (err error) {
	j.Finalizes = false
	j.State, j.Error, j.Ended = string(Succeeded), "", time.Now().UTC().Truncate(time.Microsecond)
	if sum.Failures > 0 {
		j.State = string(SucceededWithFailures)
	}
	j.Totals, err = json.Marshal(sum)
	return err
}
