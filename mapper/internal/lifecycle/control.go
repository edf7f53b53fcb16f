package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Start has a new job begin, unless there is one with its ID: then that is started again, if its
// arguments are the same. Who has seen it passes it as existing. Start returns the job that there
// is.
//
// If when is not nil it is called in the transaction that would record the new job, and decides
// whether it does.
func (js *Jobs) Start(
	ctx context.Context, created, existing *record.Job, when func(*datastore.Transaction) error,
) (job *record.Job, err error) {
	job, err = existing, errForestalled
	for tries := 0; job == nil && errors.Is(err, errForestalled) && tries < guardAttempts; tries++ {
		if tries > 0 {
			created.Incarnate(js.Random())
		}
		if job, err = js.create(ctx, created, when); err == nil && job.Incarnation == created.Incarnation {
			// As it was created: it may have ended before the answer to that came.
			js.Observer.Changed(ctx, "", created, "started")
		}
	}
	if job != nil {
		err = sameArguments(job, created)
	}
	switch {
	case err != nil || job.State != record.Running:
		return job, err
	case job == created:
		js.LookLater(job)
		return job, js.EnqueueAgain(ctx, job, job.RootRange())
	}
	if err := js.ensureTask(ctx, job, job.Root()); err != nil {
		return job, err
	}
	return job, js.postGuard(ctx, job) // its sweeps may have been lost
}

// create writes a job and its root in one transaction, unless the job exists.
// It returns the job as it stands.
func (js *Jobs) create(
	ctx context.Context, job *record.Job, when func(*datastore.Transaction) error,
) (*record.Job, error) {
	if err := js.postGuard(ctx, job); err != nil {
		return nil, err
	}
	job.History = record.History(nil).With(actOf(ctx, "started", job))
	err := js.Store.Create(ctx, job, when)
	if err == nil {
		return job, nil
	}
	// It may exist, or the commit may have taken place though its answer was lost.
	existing, lookup := js.Store.LoadJob(ctx, record.Ref{ID: job.ID})
	switch {
	case errors.Is(lookup, record.ErrNoSuchJob) && status.Code(err) == codes.AlreadyExists:
		return nil, fmt.Errorf("start job %s: %w", job.ID, errForestalled)
	case errors.Is(lookup, record.ErrNoSuchJob):
		return nil, err
	case lookup != nil:
		return nil, errors.Join(err, lookup)
	}
	return existing, nil
}

// ensureTask makes sure that a pending range has a task.
func (js *Jobs) ensureTask(ctx context.Context, job *record.Job, id string) error {
	r, err := js.Store.LoadRange(ctx, job.Ref(), id)
	if err != nil || r.State != record.Pending {
		return err
	}
	return js.EnqueueAgain(ctx, job, r)
}

// sameArguments says why a start is not this job's: it has other arguments, or the job is about to
// go.
func sameArguments(j, o *record.Job) error {
	if err := j.Queue.Is(string(o.Queue)); err != nil {
		return err
	}
	switch {
	case !j.Erased.IsZero():
		return fmt.Errorf("%w: what a job of this ID was about was erased on %s, and can't be compared: take "+
			"another ID", record.ErrState, j.Erased.Format(time.DateOnly))
	case j.Mapper != o.Mapper:
		return fmt.Errorf("%w: it runs the mapper %q", record.ErrOtherArguments, j.Mapper)
	case string(j.Query) != string(o.Query):
		return fmt.Errorf("%w: its query is %s", record.ErrOtherArguments, j.Query)
	case string(j.Params) != string(o.Params):
		return fmt.Errorf("%w: its params are different", record.ErrOtherArguments)
	case j.Cleaning == "":
		return nil
	}
	if how, err := cleanUpOf(j); err != nil || !how.IncludeJob {
		return err
	}
	return fmt.Errorf("%w: a job of this ID is being cleaned up with its own record, and the ID is free after that",
		record.ErrState)
}

// A change changes the record of a job, and reports whether it has.
type change func(*record.Job) (changed bool, err error)

// Change changes the record of a job, notes in its history who has done what, and why, and has the
// journal say so.
func (js *Jobs) Change(ctx context.Context, ref record.Ref, cause string, f change) (*record.Job, error) {
	var s step
	job, err := js.Store.UpdateJob(ctx, ref, func(j *record.Job) (bool, error) {
		s = step{from: j.State}
		changed, err := f(j)
		if changed && err == nil {
			s.to = j
			j.History = j.History.With(actOf(ctx, cause, j))
		}
		return changed, err
	})
	if err == nil && s.to != nil && s.to.State == s.from {
		js.Observer.Noted(ctx, s.to, cause)
	}
	if lost := err; lost != nil {
		if err = js.settle(ctx, s, cause, lost); err == nil {
			job = s.to // the attempt that took effect, and not the last one
		}
		return job, err
	}
	return job, js.settle(ctx, s, cause, nil)
}

// actOf returns what is done to a job now, by whom and why, as far as the context says.
func actOf(ctx context.Context, what string, job *record.Job) record.Act {
	return record.Act{At: time.Now(), What: what, By: observe.By(ctx), Why: observe.Why(ctx), To: job.State}
}

// A step is what a transaction does to the state of a job.
type step struct {
	from record.JobState
	to   *record.Job // nil: nothing is committed
}

// settle has the journal say that a job is in another state, if a transaction has brought it there,
// which has returned an error or nil. The answer to a commit may be lost: then the record says
// whether it took place.
func (js *Jobs) settle(ctx context.Context, s step, cause string, err error) error {
	if s.to == nil || s.to.State == s.from {
		return err
	}
	if err != nil {
		now, lookup := js.Store.LoadJob(ctx, s.to.Ref())
		if lookup != nil || now.State != s.to.State || now.Epoch != s.to.Epoch || now.Generation != s.to.Generation ||
			!now.Ended.Equal(s.to.Ended) {
			return err
		}
	}
	js.Observer.Changed(ctx, s.from, s.to, cause)
	return nil
}

// owned returns a change of a job that belongs to this engine's queue.
func (js *Jobs) owned(f change) change {
	return func(j *record.Job) (bool, error) {
		if err := j.Queue.Is(js.Queue.Name()); err != nil {
			return false, err
		}
		return f(j)
	}
}

// Pause has a job begin no more pages.
func (js *Jobs) Pause(ctx context.Context, ref record.Ref) error {
	_, err := js.Change(ctx, ref, "paused", js.owned((*record.Job).Pause))
	return err
}

// Abort ends a job for good.
func (js *Jobs) Abort(ctx context.Context, ref record.Ref) error {
	// Its sweeps may have ended, while it was paused.
	abort := func(j *record.Job) (bool, error) { return j.Abort(time.Now()) }
	if err := js.foreseeRetention(ctx, ref, abort); err != nil {
		return err
	}
	_, err := js.Change(ctx, ref, "aborted", js.owned(abort))
	return err
}

// Undo notes by which job one that was read is undone, and takes its open ranges away from pages
// that are still under way: from here on nothing of it changes, as ranges appear only in the commit
// of one that is open. An undo that was noted before, and is gone or was aborted, does not count:
// should it come to life later, its creation finds another note.
func (js *Jobs) Undo(ctx context.Context, job *record.Job, by string) error {
	_, err := js.Change(ctx, job.Ref(), "undone by job "+by, js.owned(func(j *record.Job) (bool, error) {
		return record.Undo(j, by)
	}))
	if err != nil {
		return err
	}
	_, err = js.abandonOpen(ctx, job.Ref(), math.MaxInt)
	return err
}

// EndRate has a job go as fast again as it did before its rate was set until a time, if that has
// come.
func (js *Jobs) EndRate(ctx context.Context, job *record.Job) (*record.Job, error) {
	if !record.RateEnds(job, time.Now()) {
		return job, nil
	}
	return js.Change(ctx, job.Ref(), "its rate is what it was before, as its time is over",
		func(j *record.Job) (bool, error) {
			return record.EndRate(j, time.Now()), nil
		})
}

// Resume has a job go on, and all its open ranges get new tasks.
func (js *Jobs) Resume(ctx context.Context, ref record.Ref) error {
	failed, ref, err := js.failures(ctx, ref)
	if err != nil {
		return err
	}
	job, err := js.updateGuarded(ctx, ref, "resumed", js.owned(func(j *record.Job) (bool, error) {
		return true, j.Resume(failed, time.Now())
	}))
	if err == nil {
		err = js.enqueueEpoch(ctx, job)
	}
	return err
}

// enqueueEpoch enqueues what has a running job go on in a new epoch.
func (js *Jobs) enqueueEpoch(ctx context.Context, job *record.Job) error {
	err := js.enqueueFullSweep(ctx, job)
	if err == nil && job.Retrying {
		err = js.enqueue(ctx, job, retryPath, body.Job{}, time.Time{})
	}
	return err
}

// failures counts the failures of a job that a limit has paused. It returns which job that is.
func (js *Jobs) failures(ctx context.Context, ref record.Ref) (n int64, _ record.Ref, err error) {
	job, err := js.Store.LoadJob(ctx, ref)
	if err != nil {
		return 0, ref, err
	}
	if !job.Limited {
		return 0, job.Ref(), nil
	}
	n, err = js.Store.CountFailures(ctx, job.Ref(), 0)
	return n, job.Ref(), err
}

// Retry has a job process its failures again, or those of a cause.
func (js *Jobs) Retry(ctx context.Context, ref record.Ref, cause string) (err error) {
	s, what := record.Selection{Cause: cause}, "its failures are retried"
	if cause != "" {
		what = "its failures of one cause are retried" // the cause is in the records, and may quote an entity
		job, err := js.Store.LoadJob(ctx, ref)
		if err != nil {
			return err
		}
		if ref = job.Ref(); job.State != record.Aborted {
			if s.Failed, err = js.Store.CountFailures(ctx, ref, 0); err != nil {
				return err
			}
		}
	}
	job, err := js.updateGuarded(ctx, ref, what, js.owned(func(j *record.Job) (bool, error) {
		return true, j.Retry(s, time.Now())
	}))
	if err != nil {
		return err
	}
	return js.enqueue(ctx, job, retryPath, body.Job{}, time.Time{})
}

// CleanUp begins to clean up the records of a job that has ended.
func (js *Jobs) CleanUp(ctx context.Context, ref record.Ref, o CleanUp) error {
	return js.cleanUp(ctx, ref, o, "cleaned up", func(*record.Job) error { return nil })
}

// cleanUp begins to clean up the records of a job for a cause, if it may.
func (js *Jobs) cleanUp(ctx context.Context, ref record.Ref, o CleanUp, cause string,
	may func(*record.Job) error) error {
	if o.ExpireAfter < 0 {
		return setting.Errorf("%w: CleanUpOptions.ExpireAfter has to be at least 0, it is %v", fault.ErrArguments,
			o.ExpireAfter)
	}
	o.IncludeFailures = o.IncludeFailures || o.IncludeJob
	encoded, err := json.Marshal(o)
	if err != nil {
		return err
	}
	job, err := js.updateGuarded(ctx, ref, cause, js.owned(func(j *record.Job) (bool, error) {
		before := j.Retired
		if err := may(j); err != nil {
			return false, err
		}
		changed, err := j.CleanUp(string(encoded))
		return changed || j.Retired != before, err
	}))
	if err != nil {
		return err
	}
	return js.enqueueCleanUp(ctx, job)
}

// Revive makes sure that every job of this engine's queues that runs has a sweep.
func (js *Jobs) Revive(ctx context.Context) error {
	running, err := js.Store.Active(ctx)
	if err != nil {
		return fmt.Errorf("look for running jobs: %w", err)
	}
	var failed []error
	for _, job := range running {
		all := append([]*Jobs{js}, js.Beside...)
		i := slices.IndexFunc(all, func(js *Jobs) bool { return job.Queue.Is(js.Queue.Name()) == nil })
		if i < 0 {
			continue
		}
		failed = append(failed, all[i].reviveSweep(ctx, job, time.Now()))
		all[i].Look(ctx, job)
	}
	failed = append(failed, js.reviveRetention(ctx, time.Now()))
	if js.Revived != nil {
		failed = append(failed, js.Revived(ctx))
	}
	return errors.Join(failed...)
}
