package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"

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

// A finalizeTask is the body of the task that runs a job's finalizer.
type finalizeTask struct {
	Job   string `json:"job"`
	Epoch int64  `json:"epoch"`
}

// finalizeLater enqueues the finalizer's task. If there was one, and it is lost,
// the finalizer runs here.
func (e *Engine) finalizeLater(ctx context.Context, job *jobRecord, sum totals) error {
	body, err := json.Marshal(finalizeTask{job.ID, job.Epoch})
	if err != nil {
		return err
	}
	task := tasks.Task{ID: tasks.ID(finalizePath, job.ID, strconv.FormatInt(job.Epoch, 10), strconv.FormatInt(job.Generation, 10)), Path: finalizePath, Body: body}
	if err := e.queue.Enqueue(ctx, task); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	if exists, err := e.queue.Exists(ctx, task.ID); err != nil || exists {
		return err
	}
	return e.finalize(ctx, job, sum)
}

// deliverFinalize runs the finalizer's task.
func (e *Engine) deliverFinalize(ctx context.Context, d tasks.Delivery) error {
	var t finalizeTask
	if err := json.Unmarshal(d.Body, &t); err != nil || !jobID.MatchString(t.Job) {
		return tasks.Drop(fmt.Errorf("the body is not a finalizer's: %w", errors.Join(err, errors.New("it names no job"))))
	}
	job, err := e.loadJob(ctx, t.Job)
	if errors.Is(err, ErrNoSuchJob) {
		return tasks.Drop(err)
	}
	if err != nil || State(job.State) != Running || job.Epoch != t.Epoch {
		return err
	}
	if open, err := e.hasOpen(ctx, job.ID); err != nil || open {
		return err
	}
	sum, err := e.fold(ctx, job.ID)
	if err != nil {
		return err
	}
	return e.finalize(ctx, job, sum)
}

// finalize runs the finalizer in the transaction that ends the job.
func (e *Engine) finalize(ctx context.Context, job *jobRecord, sum totals) error {
	def := e.mappers[job.Mapper]
	if def == nil {
		return fmt.Errorf("job %s: %w %q", job.ID, ErrUnknownMapper, job.Mapper)
	}
	var failed error // the function's
	err := e.end(ctx, job, func(tx *datastore.Transaction, j *jobRecord) error {
		failed = nil
		if err := j.succeed(job.Epoch, sum); err != nil || State(j.State) == Running {
			return err
		}
		status, err := j.status(sum)
		if err != nil {
			return err
		}
		a := &attempt{job: j.ID, mode: update, key: jobKey(j.ID)}
		if failed = a.finish(func() error { return def.onDone(ctx, &Done{Status: status, attempt: a}, j.Params) }); failed != nil {
			return failed
		}
		return mutate(tx, &a.effect)
	})
	if failed == nil {
		return err
	}
	if isPermanent(failed) {
		_, err := e.fail(ctx, job, refusal{summary: "the finalizer failed", cause: failed, final: true})
		return err
	}
	_, err = e.alter(ctx, job.ID, func(j *jobRecord) error {
		if State(j.State) == Running {
			j.Error = explain(refusal{summary: "the finalizer failed, and is tried again", cause: failed})
		}
		return nil
	})
	return errors.Join(fmt.Errorf("the finalizer of job %s failed", job.ID), err)
}

// finish runs a finalizer. A panic becomes an error.
func (a *attempt) finish(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return a.run(fn)
}

// succeed marks a job as ended, if no ranges have appeared since its epoch was
// read.
func (j *jobRecord) succeed(epoch int64, sum totals) (err error) {
	if j.Epoch != epoch {
		return nil
	}
	j.State, j.Error, j.Ended = string(Succeeded), "", time.Now().UTC().Truncate(time.Microsecond)
	if sum.Failures > 0 {
		j.State = string(SucceededWithFailures)
	}
	j.Totals, err = json.Marshal(sum)
	return err
}
