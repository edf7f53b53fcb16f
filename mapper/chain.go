package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// enqueue enqueues the job's task for a path. One that exists, or existed, is as
// good.
func (e *Engine) enqueue(ctx context.Context, job *record.Job, path string, t body.Job, at time.Time) error {
	if err := e.queue.Enqueue(ctx, t.Task(job, path, at)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return fmt.Errorf("enqueue a %s of job %s: %w", path, job.ID, err)
	}
	return nil
}

// chain returns the handler of the tasks of a path. The job is as it is found; run
// looks whether the task is of its epoch.
func (e *Engine) chain(run func(context.Context, *record.Job, body.Job) error) http.Handler {
	return e.queue.Handler(e.log, func(ctx context.Context, d tasks.Delivery) error {
		begunAt := time.Now()
		var t body.Job
		if err := json.Unmarshal(d.Body, &t); err != nil {
			return tasks.Drop(fmt.Errorf("the body is not a task of ours: %w", err))
		}
		if !record.ValidJobID(t.Job) || !record.ValidIncarnation(t.Incarnation) || t.After != "" && !record.ValidRangeID(t.After) {
			return tasks.Drop(errors.New("the body is not a task of ours: it names no job, or goes on behind no record"))
		}
		job, err := e.store().LoadJob(ctx, record.Ref{ID: t.Job, Incarnation: t.Incarnation})
		if err == nil {
			t.Queued, t.BegunAt = d, begunAt
			err = run(ctx, job, t)
		}
		if errors.Is(err, ErrNoSuchJob) {
			return nil // it was cleaned up
		}
		return err
	})
}

// inCompany has a task about a job run while no other is solo.
func (e *Engine) inCompany(run func(context.Context, *record.Job, body.Job) error) func(context.Context, *record.Job, body.Job) error {
	return func(ctx context.Context, job *record.Job, t body.Job) error {
		place, err := e.gate.enter(ctx, false)
		if err != nil {
			return err
		}
		defer place.leave()
		return run(ctx, job, t)
	}
}
