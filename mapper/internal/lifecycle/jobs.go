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

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/tasks"
)

// Jobs controls the jobs of one queue. It also handles the tasks that are about a whole job and not
// about one range.
type Jobs struct {
	Store    store.Store
	Queue    *tasks.Queue
	Mappers  map[string]*function.Definition // the engine's mappers by name
	Log      *slog.Logger                    // receives errors, see observe.Limited
	Observer *observe.Observer
	Gate     *gate.Gate
	Random   func() uint64 // returns a random number that is different at each call
	Prices   billing.Prices

	// Serves reports whether this process handles tasks, which needs the jobs' mappers. Otherwise
	// it only controls jobs, whose tasks another process handles. nil: it only controls jobs.
	Serves func() bool

	Revived func(context.Context) error // called at the end of Revive; nil: nothing is called
	Beside  []*Jobs                     // the Jobs of the engine's other queues, which Revive also handles
	Portion Portion
}

// Asked returns the Jobs with short timeouts, for interactive callers: see store.Store.Asked.
func (js *Jobs) Asked() *Jobs {
	asked := *js
	asked.Store = js.Store.Asked()
	return &asked
}

// Handlers returns the handlers of tasks about whole jobs, by the last element of their paths.
func (js *Jobs) Handlers() map[string]http.Handler {
	return map[string]http.Handler{
		sweepPath: js.chain(sweepPath, js.inCompany(func(ctx context.Context, job *record.Job, t body.Job) error {
			js.Observer.Flush(ctx)
			return js.runSweep(ctx, job, t)
		})),
		retryPath:    js.chain(retryPath, js.inCompany(js.runRetry)),
		finalizePath: js.chain(finalizePath, js.runEnd),
		cleanupPath:  js.chain(cleanupPath, js.inCompany(js.runCleanUp)),
		retainPath:   js.chain(retainPath, js.inCompany(js.runRetention)),
		revivePath: js.Handler(revivePath, func(ctx context.Context, _ tasks.Delivery) error {
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

// enqueue enqueues a task of the job for a path, due at the given time. If the queue has a task
// with this name, or recently had one, this is no error.
func (js *Jobs) enqueue(ctx context.Context, job *record.Job, path string, t body.Job, at time.Time) error {
	if err := js.Queue.Enqueue(ctx, t.Task(job, path, at)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return fmt.Errorf("enqueue a %s of job %s: %w", path, job.ID, err)
	}
	return nil
}

// enqueueSweep enqueues the job's next regular sweep after now.
func (js *Jobs) enqueueSweep(ctx context.Context, job *record.Job, now time.Time) error {
	tick, at := nextTick(job, now)
	return js.enqueue(ctx, job, sweepPath, body.Job{Tick: tick}, at)
}

// enqueueFullSweep enqueues a sweep that runs at once and checks ranges of every age.
func (js *Jobs) enqueueFullSweep(ctx context.Context, job *record.Job) error {
	return js.enqueue(ctx, job, sweepPath, allRanges, time.Time{})
}

var allRanges = body.Job{All: true}

// fullSweep returns the task for a sweep that checks all ranges of a job, whatever their age.
func fullSweep(job *record.Job) tasks.Task { return allRanges.Task(job, sweepPath, time.Time{}) }

// EnqueueAgain enqueues the task of a pending range, unless the queue already has it.
func (js *Jobs) EnqueueAgain(ctx context.Context, job *record.Job, r *record.Range) error {
	task := body.TaskOf(r, job)
	if err := js.Queue.Enqueue(ctx, task); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	if exists, err := js.Queue.Exists(ctx, task); err != nil || exists {
		return err
	}
	// The task is gone, but its name is still taken, so the range needs a new generation. If the
	// task has just succeeded, the range is no longer pending.
	stale := r.Generation
	r, err := js.Store.UpdateRange(ctx, r.Key(), func(r *record.Range) bool {
		if r.State != record.Pending || r.Generation != stale {
			return false
		}
		r.Generation++
		r.Lost = true
		return true
	})
	if err != nil || r == nil || r.State != record.Pending {
		return err
	}
	if err := js.Queue.Enqueue(ctx, body.TaskOf(r, job)); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	return nil
}

// ShowBuild sets or removes the job's error that this build does not have the job's mapper.
func (js *Jobs) ShowBuild(ctx context.Context, job *record.Job, missing bool) error {
	if seen := *job; !seen.NeedsBuild(missing) {
		return nil
	}
	_, err := js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		return j.NeedsBuild(missing), nil
	})
	return err
}

// Handler returns the handler of a path. It calls run for each delivery. Once this process drains,
// it refuses deliveries.
func (js *Jobs) Handler(path string, run func(context.Context, tasks.Delivery) error) http.Handler {
	return js.Queue.Handler(js.Log, func(ctx context.Context, d tasks.Delivery) (err error) {
		leave, err := js.Gate.Admit()
		if err == nil {
			defer leave()
			ctx, ended := js.Observer.Delivery(ctx, path, d)
			defer func() { ended(err) }()
			err = run(ctx, d)
		}
		if errors.Is(err, gate.ErrDraining) {
			err = tasks.Redeliver(err)
		}
		return err
	})
}

// chain returns the handler of tasks about a whole job. It decodes the task, reads the job's
// record, and calls run with both. The function run must check the task's epoch.
func (js *Jobs) chain(path string, run func(context.Context, *record.Job, body.Job) error) http.Handler {
	return js.Handler(path, func(ctx context.Context, d tasks.Delivery) error {
		begunAt := time.Now()
		var t body.Job
		if err := json.Unmarshal(d.Body, &t); err != nil {
			return tasks.Drop(fmt.Errorf("the body is no task of scattermap: %w", err))
		}
		if !record.ValidJobID(t.Job) || !record.ValidIncarnation(t.Incarnation) || t.After != "" &&
			!record.ValidRangeID(t.After) || t.Link < 0 {
			return tasks.Drop(errors.New("the body is no task of scattermap: it names no job, or no range to " +
				"continue after"))
		}
		t.Queued, t.BegunAt = d, begunAt
		job, err := js.Store.LoadJob(ctx, record.Ref{ID: t.Job, Incarnation: t.Incarnation})
		if t.Guard != 0 && t.Epoch == 0 && errors.Is(err, record.ErrNoSuchJob) {
			job, err = js.refuseStart(ctx, t)
		}
		if err == nil {
			job, err = js.refuseMove(ctx, job, t)
		}
		takes := false
		if err == nil {
			js.Observer.Job(ctx, job)
			takes, err = job.Queue.Takes(d.Queue, js.Queue.Name())
		}
		if takes {
			err = run(ctx, job, t)
		}
		if errors.Is(err, record.ErrNoSuchJob) {
			return nil // the job was cleaned up
		}
		return err
	})
}

// inCompany returns a function that calls run after it has passed the gate. So run may run at the
// same time as other tasks, but not as an exclusive one.
func (js *Jobs) inCompany(
	run func(context.Context, *record.Job, body.Job) error,
) func(context.Context, *record.Job, body.Job) error {
	return func(ctx context.Context, job *record.Job, t body.Job) error {
		place, err := js.Gate.Enter(ctx, false)
		if err != nil {
			return err
		}
		defer place.Leave()
		return run(ctx, job, t)
	}
}

// NewDelivery returns a unique name for a delivery that writes a crash mark ([record.CrashMark]).
func (js *Jobs) NewDelivery() string { return strconv.FormatUint(js.Random(), 36) }

// Insist calls takeAway until it succeeds. The function takeAway removes a crash mark
// ([record.CrashMark]). A mark that remains would count as a death of this process. Insist repeats
// the call because the database may not answer for a while.
func (js *Jobs) Insist(ctx context.Context, takeAway func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), record.EndTime(js.Queue.DispatchDeadline()))
	defer cancel()
	for wait := time.Second; takeAway(ctx) != nil; wait = min(2*wait, 30*time.Second) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
