package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/tasks"
)

// Jobs carries out what becomes of whole jobs, by tasks that are about a job and not about one of its
// ranges.
type Jobs struct {
	Store   store.Store
	Queue   *tasks.Queue
	Mappers map[string]*function.Definition // by name
	Log     *slog.Logger
	Gate    *gate.Gate
	Random  func() uint64 // a number that nobody else draws
}

// Handlers returns what serves the tasks, by the last element of their path.
func (js *Jobs) Handlers() map[string]http.Handler {
	return map[string]http.Handler{
		sweepPath:    js.chain(js.inCompany(js.runSweep)),
		retryPath:    js.chain(js.inCompany(js.runRetry)),
		finalizePath: js.chain(js.runEnd),
		cleanupPath:  js.chain(js.inCompany(js.runCleanup)),
		revivePath: js.Queue.Handler(js.Log, func(ctx context.Context, _ tasks.Delivery) error {
			place, err := js.Gate.Enter(ctx, false)
			if err != nil {
				return err
			}
			defer place.Leave()
			return js.Revive(ctx)
		}),
	}
}

const revivePath = "revive"

// enqueue enqueues the job's task for a path. One that exists, or existed, is as
// good.
func (js *Jobs) enqueue(ctx context.Context, job *record.Job, path string, t body.Job, at time.Time) error {
	if err := js.Queue.Enqueue(ctx, t.Task(job, path, at)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return fmt.Errorf("enqueue a %s of job %s: %w", path, job.ID, err)
	}
	return nil
}

// chain returns the handler of the tasks of a path. The job is as it is found; run
// looks whether the task is of its epoch.
func (js *Jobs) chain(run func(context.Context, *record.Job, body.Job) error) http.Handler {
	return js.Queue.Handler(js.Log, func(ctx context.Context, d tasks.Delivery) error {
		begunAt := time.Now()
		var t body.Job
		if err := json.Unmarshal(d.Body, &t); err != nil {
			return tasks.Drop(fmt.Errorf("the body is not a task of ours: %w", err))
		}
		if !record.ValidJobID(t.Job) || !record.ValidIncarnation(t.Incarnation) || t.After != "" && !record.ValidRangeID(t.After) {
			return tasks.Drop(errors.New("the body is not a task of ours: it names no job, or goes on behind no record"))
		}
		job, err := js.Store.LoadJob(ctx, record.Ref{ID: t.Job, Incarnation: t.Incarnation})
		if err == nil {
			t.Queued, t.BegunAt = d, begunAt
			err = run(ctx, job, t)
		}
		if errors.Is(err, record.ErrNoSuchJob) {
			return nil // it was cleaned up
		}
		return err
	})
}

// inCompany has a task about a job run while no other is solo.
func (js *Jobs) inCompany(run func(context.Context, *record.Job, body.Job) error) func(context.Context, *record.Job, body.Job) error {
	return func(ctx context.Context, job *record.Job, t body.Job) error {
		place, err := js.Gate.Enter(ctx, false)
		if err != nil {
			return err
		}
		defer place.Leave()
		return run(ctx, job, t)
	}
}

// NewDelivery returns a name for a delivery that leaves a mark.
func (js *Jobs) NewDelivery() string { return strconv.FormatUint(js.Random(), 36) }

// Insist takes a mark away. While the database is out of reach it waits: this must not look like
// a death, and nothing else can be done.
func (js *Jobs) Insist(ctx context.Context, takeAway func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), record.EndTime(js.Queue.Deadline()))
	defer cancel()
	for wait := fault.FirstDelay; takeAway(ctx) != nil; wait = min(2*wait, 30*time.Second) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
