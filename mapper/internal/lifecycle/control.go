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
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// Start starts the new job created, or returns the existing job with its ID. The parameter existing
// is this job, if the caller has read it, and otherwise nil. If the existing job has the same
// arguments, Start also makes sure that it has tasks.
//
// The commit that creates the job also records its first ranges, which first describes. If when is
// not nil, the same transaction calls it. If when returns an error, nothing is created.
func (js *Jobs) Start(
	ctx context.Context, created, existing *record.Job, first record.First, when func(*datastore.Transaction) error,
) (job *record.Job, err error) {
	job, err = existing, errOvertaken
	for tries := 0; job == nil && errors.Is(err, errOvertaken) && tries < guardAttempts; tries++ {
		if tries > 0 {
			created.Incarnate(js.Random())
		}
		if job, err = js.create(ctx, created, first, when); err == nil && job.Incarnation == created.Incarnation {
			// created has the state at the start. By now, the job may already have ended.
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
	return job, js.postGuard(ctx, job) // the job's sweeps may be lost, and a guard replaces them
}

// create writes a job and its first ranges in one transaction. If a job with its ID exists, create
// returns the existing job.
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
	// The job may exist already, or the commit took effect and only its answer was lost.
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

// enqueueRanges enqueues a task for each range. The parameter idle is a number: that many tasks,
// from the first on, are for idle workers. If the queue already has a range's task, this is no
// error.
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

// ensureTasks makes sure that a job's first ranges have tasks, because the process that recorded
// them may have died. If the job is older than a few minutes, it checks only the root, the range of
// the whole query, because sweeps have checked the others.
func (js *Jobs) ensureTasks(ctx context.Context, job *record.Job) error {
	root, err := js.ensureTask(ctx, job, job.Root())
	if err != nil || sweptSince(job) {
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

// EnsureTasks makes sure that the first ranges of a job have tasks, if the job runs in this queue
// and was started a short time ago. Sweeps look after older jobs.
func (js *Jobs) EnsureTasks(ctx context.Context, job *record.Job) error {
	if job.State != record.Running || job.Queue.Is(js.Queue.Name()) != nil || sweptSince(job) {
		return nil
	}
	return js.ensureTasks(ctx, job)
}

// sweptSince reports whether a job is so old that sweeps have checked its first ranges.
func sweptSince(job *record.Job) bool { return time.Since(job.Created) > 2*sweepEvery }

// ensureTask makes sure that a range has a task if it is pending. It returns the range's record.
// The record is empty if the job has deleted it, as an erasure does before it ends.
func (js *Jobs) ensureTask(ctx context.Context, job *record.Job, id string) (*record.Range, error) {
	r, err := js.Store.LoadRange(ctx, job.Ref(), id)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return r, nil
	}
	if err != nil || r.State != record.Pending {
		return r, err
	}
	return r, js.EnqueueAgain(ctx, job, r)
}

// sameArguments returns an error if the existing job j can't be the result of starting o: j has
// other arguments, or is being deleted.
func sameArguments(j, o *record.Job) error {
	if err := j.Queue.Is(string(o.Queue)); err != nil {
		return err
	}
	switch {
	case !j.Erased.IsZero():
		return fmt.Errorf("%w: a job with this ID existed, whose query and parameters were erased on %s and can't be "+
			"compared: use another ID", record.ErrState, j.Erased.Format(time.DateOnly))
	case j.Mapper != o.Mapper && record.IsRehearsal(j.Mapper):
		return setting.Errorf("%w: it is a rehearsal: choose another StartOptions.ID", record.ErrOtherArguments)
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
// history, with the cause, the caller and the caller's reason. It also informs the observer of a
// new state.
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
			job = s.to // from the attempt that took effect, which may not be the last one
		}
		return job, err
	}
	return job, js.settle(ctx, s, cause, nil)
}

// actOf returns a new entry of a job's history. The text what says what has happened. The context
// has the operator and the reason. The history of an erased job keeps neither.
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
	to   *record.Job // the job after the change; nil: the transaction changed nothing
}

// settle informs the observer of a change of a job's state, after the transaction. cause is the
// reason of the change, and err the transaction's error. If there is one, the commit may have taken
// effect nevertheless, so settle reads the record. If it has, settle returns nil.
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

// owned returns a change that calls f if the job belongs to this queue, and fails otherwise.
func (js *Jobs) owned(f change) change {
	return func(j *record.Job) (bool, error) {
		if err := j.Queue.Is(js.Queue.Name()); err != nil {
			return false, err
		}
		return f(j)
	}
}

// able returns a change that fails if this process handles tasks and lacks the job's mapper: its
// handler would refuse the job's tasks. Otherwise the change calls f.
func (js *Jobs) able(f change) change {
	return func(j *record.Job) (bool, error) {
		if js.Mappers[j.Mapper] == nil && js.Serves != nil && js.Serves() {
			return false, fmt.Errorf("%w %q: this service does not have it", function.ErrUnknownMapper, j.Mapper)
		}
		return f(j)
	}
}

// Pause pauses a running job: its tasks start no more pages.
func (js *Jobs) Pause(ctx context.Context, ref record.Ref) error {
	_, err := js.Change(ctx, ref, "paused", js.owned((*record.Job).Pause))
	return err
}

// Abort ends a job permanently. The job may be an erasure (mapper.Mapper.Forget) that has deleted
// its ranges' records. Then Abort removes the query, the parameters and other texts from its
// record, as the job's normal end does.
func (js *Jobs) Abort(ctx context.Context, ref record.Ref) error {
	// A paused job may have no sweeps, so it needs a guard.
	abort := func(j *record.Job) (changed bool, err error) {
		closing := len(j.Closing) > 0
		if changed, err = j.Abort(time.Now()); !changed || !closing {
			return changed, err
		}
		if j.Redact(record.Subject{}, js.salt(), time.Now()) == nil {
			return true, nil
		}
		j.Totals = nil // totals that can't be decoded
		return true, j.Redact(record.Subject{}, js.salt(), time.Now())
	}
	if err := js.foreseeRetention(ctx, ref, abort); err != nil {
		return err
	}
	_, err := js.Change(ctx, ref, "aborted", js.owned(abort))
	return err
}

// Undo records in a job that the job with the ID by undoes it. It also abandons the job's open
// ranges, because their pages may still be under way. New ranges are created only in the commit of
// an open range. So after this call, the job's records do not change any more.
//
// The ID replaces an earlier undo's, if that undo was deleted or aborted. If the earlier undo is
// created only afterwards, its creation fails, because the record has another ID.
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

// EndRate restores the job's previous rate, if the time of its temporary rate is over. It returns
// the job's record.
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
	job, err := js.updateGuarded(ctx, ref, record.Again, js.owned(js.able(func(j *record.Job) (bool, error) {
		return true, j.Resume(failed, time.Now())
	})))
	if err == nil {
		err = js.enqueueEpoch(ctx, job)
	}
	return err
}

// enqueueEpoch enqueues the tasks that a running job needs after its epoch was raised: a sweep, and
// a task that continues a retry.
func (js *Jobs) enqueueEpoch(ctx context.Context, job *record.Job) error {
	err := js.enqueueFullSweep(ctx, job)
	if err == nil && job.Retrying {
		err = js.enqueue(ctx, job, retryPath, body.Job{}, time.Time{})
	}
	return err
}

// failures returns a job's number of failures if a failure limit has paused it, and otherwise 0. It
// also returns the job's ID and incarnation.
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

// Retry makes a job process its failures again: all, or only failures with the given cause.
func (js *Jobs) Retry(ctx context.Context, ref record.Ref, cause string) (err error) {
	s, what := record.Selection{Cause: cause}, "its failures are retried"
	if cause != "" {
		// the history omits the cause, because it may contain data of an entity
		what = "its failures of one cause are retried"
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
	job, err := js.updateGuarded(ctx, ref, what, js.owned(js.able(func(j *record.Job) (bool, error) {
		return true, j.Retry(s, time.Now())
	})))
	if err != nil {
		return err
	}
	return js.enqueue(ctx, job, retryPath, body.Job{}, time.Time{})
}

// CleanUp starts the clean-up of the records of a job that has ended.
func (js *Jobs) CleanUp(ctx context.Context, ref record.Ref, o CleanUp) error {
	return js.cleanUp(ctx, ref, o, "cleaned up", func(*record.Job) error { return nil })
}

// cleanUp starts the clean-up of a job's records, unless may returns an error. The text cause is
// the entry in the job's history.
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

// Revive makes sure that every job that needs sweeps has a sweep, in all queues of the engine.
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
