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
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// Start starts a new job, or returns the existing job with its ID. If the existing job has the same
// arguments, Start also makes sure that it has tasks. The argument existing is that job, if the
// caller has read it, or nil.
//
// The commit that creates the job also records its first ranges. If when is not nil, it is called
// in that transaction. If it returns an error, nothing is created.
func (js *Jobs) Start(
	ctx context.Context, created, existing *record.Job, first record.First, when func(*datastore.Transaction) error,
) (job *record.Job, err error) {
	job, err = existing, errOvertaken
	for tries := 0; job == nil && errors.Is(err, errOvertaken) && tries < guardAttempts; tries++ {
		if tries > 0 {
			created.Incarnate(js.Random())
		}
		if job, err = js.create(ctx, created, first, when); err == nil && job.Incarnation == created.Incarnation {
			// The state at the start: the job may have ended before the answer came.
			js.Observer.Changed(ctx, "", created, "started")
			js.Observer.CutOff(ctx, job.Mapper, map[string]int64{observe.AtStart: max(0, int64(len(first.Pieces))-1)})
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
		root, children := first.Ranges(job)
		return job, js.enqueueRanges(ctx, job, append([]*record.Range{root}, children...), job.Workers)
	}
	if err := js.ensureTasks(ctx, job); err != nil {
		return job, err
	}
	return job, js.postGuard(ctx, job) // its sweeps may have been lost
}

// create writes a job and its first ranges in one transaction. If a job with its ID exists, create
// returns that one.
func (js *Jobs) create(
	ctx context.Context, job *record.Job, first record.First, when func(*datastore.Transaction) error,
) (*record.Job, error) {
	if err := js.postGuard(ctx, job); err != nil {
		return nil, err
	}
	job.History = record.History(nil).With(actOf(ctx, "started", job))
	err := js.Store.Create(ctx, job, first, when)
	if err == nil {
		return job, nil
	}
	// It may exist; or the commit took effect, and its answer was lost.
	existing, lookup := js.Store.LoadJob(ctx, record.Ref{ID: job.ID})
	switch {
	case errors.Is(lookup, record.ErrNoSuchJob) && status.Code(err) == codes.AlreadyExists:
		return nil, fmt.Errorf("start job %s: %w", job.ID, errOvertaken)
	case errors.Is(lookup, record.ErrNoSuchJob):
		return nil, err
	case lookup != nil:
		return nil, errors.Join(err, lookup)
	}
	return existing, nil
}

// enqueueRanges enqueues the tasks of ranges. The first idle of them are for idle workers. If a
// task with a range's name exists, that counts as enqueued.
func (js *Jobs) enqueueRanges(
	ctx context.Context, job *record.Job, ranges []*record.Range, idle int64,
) error {
	all := make([]tasks.Task, 0, len(ranges))
	for i, r := range ranges {
		if int64(i) < idle {
			all = append(all, body.TaskForIdle(r, job))
		} else {
			all = append(all, body.TaskOf(r, job))
		}
	}
	return js.Queue.EnqueueAll(ctx, all)
}

// ensureTasks makes sure that the job's first ranges have tasks, because the start that recorded
// them may have died. In a job older than some minutes it checks only the root, because sweeps have
// checked the others.
func (js *Jobs) ensureTasks(ctx context.Context, job *record.Job) error {
	root, err := js.ensureTask(ctx, job, job.Root())
	if err != nil || time.Since(job.Created) > 2*sweepEvery {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(tasks.Parallel)
	for _, child := range root.FirstChildren() {
		group.Go(func() error {
			_, err := js.ensureTask(ctx, job, child.ID)
			return err
		})
	}
	return group.Wait()
}

// ensureTask makes sure that a range has a task if it is pending. It returns the range's record.
func (js *Jobs) ensureTask(ctx context.Context, job *record.Job, id string) (*record.Range, error) {
	r, err := js.Store.LoadRange(ctx, job.Ref(), id)
	if err != nil || r.State != record.Pending {
		return r, err
	}
	return r, js.EnqueueAgain(ctx, job, r)
}

// sameArguments returns an error if an existing job j can't be returned for the start of o: it has
// other arguments, or is being deleted.
func sameArguments(j, o *record.Job) error {
	if err := j.Queue.Is(string(o.Queue)); err != nil {
		return err
	}
	switch {
	case !j.Erased.IsZero():
		return fmt.Errorf("%w: a job with this ID existed, whose query and parameters were erased on %s and can't be "+
			"compared: use another ID", record.ErrState, j.Erased.Format(time.DateOnly))
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
	return fmt.Errorf("%w: a job with this ID is being deleted; the ID is free after that", record.ErrState)
}

// A change is a function that changes the record of a job, and reports whether it has changed
// anything.
type change func(*record.Job) (changed bool, err error)

// Change changes the record of a job by f, and returns the record. It adds an entry to the job's
// history, with the cause, the caller and the caller's reason. It also informs the observer.
func (js *Jobs) Change(ctx context.Context, ref record.Ref, cause string, f change) (*record.Job, error) {
	var s transition
	job, err := js.Store.UpdateJob(ctx, ref, func(j *record.Job) (bool, error) {
		s = transition{from: j.State}
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

// actOf returns a new entry of a job's history. The context says who acts and why; the history of
// an erased job does not keep that.
func actOf(ctx context.Context, what string, job *record.Job) record.Act {
	act := record.Act{At: time.Now(), What: what, To: job.State}
	if job.Erased.IsZero() {
		act.By, act.Why = observe.By(ctx), observe.Why(ctx)
	}
	return act
}

// A transition is a change of a job's state that a transaction makes.
type transition struct {
	from record.JobState
	to   *record.Job // the job after the change; nil: there is no change
}

// settle tells the observer about a change of a job's state, after the transaction. The transaction
// has returned err. If err is an error, the commit may have taken effect nevertheless, so settle
// reads the record.
func (js *Jobs) settle(ctx context.Context, s transition, cause string, err error) error {
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

// owned returns f with a check: it fails if the job does not belong to this queue.
func (js *Jobs) owned(f change) change {
	return func(j *record.Job) (bool, error) {
		if err := j.Queue.Is(js.Queue.Name()); err != nil {
			return false, err
		}
		return f(j)
	}
}

// Pause pauses a running job: its tasks start no more pages.
func (js *Jobs) Pause(ctx context.Context, ref record.Ref) error {
	_, err := js.Change(ctx, ref, "paused", js.owned((*record.Job).Pause))
	return err
}

// Abort ends a job permanently. If the job is an erasure (mapper.Mapper.Forget) that has deleted
// its records, query, parameters and other texts are removed from its record, as at its normal end.
func (js *Jobs) Abort(ctx context.Context, ref record.Ref) error {
	// If the job is paused, its sweeps may have ended.
	abort := func(j *record.Job) (changed bool, err error) {
		closing := len(j.Closing) > 0
		if changed, err = j.Abort(time.Now()); !changed || !closing {
			return changed, err
		}
		if j.Redact(record.Subject{}, js.salt(), time.Now()) == nil {
			return true, nil
		}
		j.Totals = nil // they can't be read
		return true, j.Redact(record.Subject{}, js.salt(), time.Now())
	}
	if err := js.foreseeRetention(ctx, ref, abort); err != nil {
		return err
	}
	_, err := js.Change(ctx, ref, "aborted", js.owned(abort))
	return err
}

// Undo records that the job with the ID by undoes a job. It also abandons the job's open ranges,
// whose pages may still be under way. New ranges are created only in the commit of an open range,
// so after this call the job's records don't change.
//
// An earlier undo that was deleted or aborted is replaced. If its creation commits later, that
// fails, because it finds another ID.
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

// EndRate restores the job's previous rate, if its temporary rate is over. It returns the job's
// record.
func (js *Jobs) EndRate(ctx context.Context, job *record.Job) (*record.Job, error) {
	if !record.RateEnds(job, time.Now()) {
		return job, nil
	}
	return js.Change(ctx, job.Ref(), "its rate is what it was before, as its time is over",
		func(j *record.Job) (bool, error) {
			return j.EndRate(time.Now()), nil
		})
}

// Resume makes a job run, and gives all its open ranges new tasks.
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

// enqueueEpoch enqueues the tasks that a running job needs in a new epoch: a sweep, and a task that
// goes on with a retry.
func (js *Jobs) enqueueEpoch(ctx context.Context, job *record.Job) error {
	err := js.enqueueFullSweep(ctx, job)
	if err == nil && job.Retrying {
		err = js.enqueue(ctx, job, retryPath, body.Job{}, time.Time{})
	}
	return err
}

// failures counts the failures of a job if a failure limit has paused it; otherwise it returns 0.
// It also returns the job's ID and incarnation.
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

// Retry makes a job run to process its failures again: all, or only those with a cause.
func (js *Jobs) Retry(ctx context.Context, ref record.Ref, cause string) (err error) {
	s, what := record.Selection{Cause: cause}, "its failures are retried"
	if cause != "" {
		what = "its failures of one cause are retried" // the cause may quote an entity, so it is not in the history
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

// CleanUp starts the clean-up of the records of a job that has ended.
func (js *Jobs) CleanUp(ctx context.Context, ref record.Ref, o CleanUp) error {
	return js.cleanUp(ctx, ref, o, "cleaned up", func(*record.Job) error { return nil })
}

// cleanUp starts the clean-up of a job's records, unless the function may returns an error.
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

// Revive makes sure that every job that needs sweeps has one, in all queues of the engine.
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
