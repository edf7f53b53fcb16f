package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/scattermap/scattermap/tasks"
)

// A jobTask is the body of a task that is about a job, and not about one range of
// it. Such tasks are chains: each does a bounded part, and enqueues the next.
type jobTask struct {
	Job         string `json:"job"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	Tick        int64  `json:"tick,omitempty"`  // of a sweep
	After       string `json:"after,omitempty"` // the ID of the record behind which it goes on
	All         bool   `json:"all,omitempty"`   // a sweep of ranges of every age

	queued  tasks.Delivery // as the queue makes it
	begunAt time.Time      // when it came
}

// task returns the job's task for a path. Whoever enqueues it again uses the same
// name, so that there is one; a job that takes the ID of a deleted one has others.
func (j *jobRecord) task(path string, t jobTask, at time.Time) tasks.Task {
	t.Job, t.Incarnation, t.Epoch = j.ID, j.Incarnation, j.Epoch
	body, err := json.Marshal(t)
	if err != nil {
		panic("mapper: a struct of strings does not encode: " + err.Error())
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return tasks.Task{
		ID:   tasks.ID(path, j.ref().String(), number(j.Generation), number(j.Epoch), number(t.Tick), t.After),
		Path: path, Body: body, At: at,
	}
}

// enqueue enqueues the job's task for a path. One that exists, or existed, is as
// good.
func (e *Engine) enqueue(ctx context.Context, job *jobRecord, path string, t jobTask, at time.Time) error {
	if err := e.queue.Enqueue(ctx, job.task(path, t, at)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return fmt.Errorf("enqueue a %s of job %s: %w", path, job.ID, err)
	}
	return nil
}

// chain returns the handler of the tasks of a path. The job is as it is found; run
// looks whether the task is of its epoch.
func (e *Engine) chain(run func(context.Context, *jobRecord, jobTask) error) http.Handler {
	return e.queue.Handler(e.log, func(ctx context.Context, d tasks.Delivery) error {
		begunAt := time.Now()
		var t jobTask
		if err := json.Unmarshal(d.Body, &t); err != nil {
			return tasks.Drop(fmt.Errorf("the body is not a task of ours: %w", err))
		}
		if !jobID.MatchString(t.Job) || !validIncarnation.MatchString(t.Incarnation) || t.After != "" && !validRangeID.MatchString(t.After) {
			return tasks.Drop(errors.New("the body is not a task of ours: it names no job, or goes on behind no record"))
		}
		job, err := e.loadJob(ctx, jobRef{t.Job, t.Incarnation})
		if err == nil {
			t.queued, t.begunAt = d, begunAt
			err = run(ctx, job, t)
		}
		if errors.Is(err, ErrNoSuchJob) {
			return nil // it was cleaned up
		}
		return err
	})
}

// inCompany has a task about a job run while no other is solo.
func (e *Engine) inCompany(run func(context.Context, *jobRecord, jobTask) error) func(context.Context, *jobRecord, jobTask) error {
	return func(ctx context.Context, job *jobRecord, t jobTask) error {
		place, err := e.gate.enter(ctx, false)
		if err != nil {
			return err
		}
		defer place.leave()
		return run(ctx, job, t)
	}
}

// current reports whether a task is of the job's epoch, and the job runs.
func (t jobTask) current(j *jobRecord) bool { return State(j.State) == Running && j.Epoch == t.Epoch }
