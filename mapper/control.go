package mapper

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// ErrWrongQueue says that a job belongs to a queue that the engine does not have: see [Job.Move].
// The error names both queues.
var ErrWrongQueue = record.ErrOtherQueue

// ErrWrongState says that a call is not possible in the job's state, or because of another job. The
// error names the state or the other job.
var ErrWrongState = record.ErrState

// Pause stops the job before its next pages. Pages under way still commit. A job may stay paused
// for any time and loses nothing. If the job is paused already, Pause does nothing. If it has
// ended, the error is [ErrWrongState].
func (j *Job) Pause(ctx context.Context) error {
	if err := j.control(ctx).Pause(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: pause %s: %w", j.ID, err)
	}
	return nil
}

// Abort ends a job that runs, is paused or has failed. Pages under way still commit, and the other
// entities stay unchanged. An aborted job can't be resumed or retried. If the job is aborted
// already, Abort does nothing. If it has succeeded, the error is [ErrWrongState].
func (j *Job) Abort(ctx context.Context) error {
	if err := j.control(ctx).Abort(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: abort %s: %w", j.ID, err)
	}
	return nil
}

// Resume continues a paused or failed job where it stopped. It repeats no page that is done. The
// job's limits then depend on the reason for which it stopped:
//
//   - If FailureLimit paused it, it may have the same number of further failures. If FailureShare
//     paused it, the same share of the remaining entities may fail.
//   - If its [Budget] paused it, it may spend the same amount again.
//   - If it failed, pages that fail as a whole no longer fail the job: after the last attempt their
//     entities are recorded as failures, up to the limits.
//   - If it failed because its counters exceeded their limits, it continues without counters: see
//     [Entity.Count].
//
// Resume enqueues new tasks for all ranges that are not done. So it also helps a running job whose
// queue was purged. Without Resume, such a job waits for [Engine.ReviveJobs]. If the job has
// succeeded or was aborted or cleaned up, the error is [ErrWrongState]. If [Engine.Handler] was
// called, and the engine lacks the job's mapper, the error is [ErrUnknownMapper].
func (j *Job) Resume(ctx context.Context) error {
	if err := j.control(ctx).Resume(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: resume %s: %w", j.ID, err)
	}
	return nil
}

// RetryOptions select the failures that a [Job.Retry] runs again.
type RetryOptions struct {
	// Cause selects the failures with this cause, a [FailureCause].Text. The other failures stay.
	// Defaults to all failures.
	Cause string
}

// Retry processes the job's failures again. Each failure gets all of its attempts again. Meanwhile
// a running job continues with its other entities. A job that was paused or has failed also
// continues. At the end, the finalizer takes effect again. If the job was aborted or cleaned up, or
// has succeeded without failures, the error is [ErrWrongState]. If [Engine.Handler] was called, and
// the engine lacks the job's mapper, the error is [ErrUnknownMapper]. A nil o selects all failures.
//
// Retry returns at once; tasks then find the failures and reopen them. If an earlier Retry still
// reopens failures, the new one replaces it. If no failure has the cause in o, the error is
// [ErrInvalidArgument]. Retry checks this only in jobs with up to 1,000 failures.
func (j *Job) Retry(ctx context.Context, o *RetryOptions) error {
	cause := ""
	if o != nil {
		cause = o.Cause
	}
	err := j.checkCause(ctx, cause)
	if err == nil {
		err = j.control(ctx).Retry(ctx, j.ref(), cause)
	}
	if err != nil {
		return fmt.Errorf("mapper: retry %s: %w", j.ID, err)
	}
	return nil
}

// checkCause returns an error if none of the job's failures has the cause. If there are too many
// failures to read, it returns nil.
func (j *Job) checkCause(ctx context.Context, cause string) error {
	if cause == "" {
		return nil
	}
	causes, err := j.FailureCauses(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(causes, func(c FailureCause) bool { return c.Text == cause || c.Estimated }) {
		return fmt.Errorf("%w: no failure has the cause %.200q", ErrInvalidArgument, cause)
	}
	return nil
}

// Undo starts another job that undoes this job of an [Update]. It restores changed and deleted
// entities, byte for byte, to their state just before the page's commit. It deletes entities that
// the job created. If several pages wrote an entity, Undo restores the state before the first of
// them. Writes of a finalizer stay. For a job of a [Visit] the error is [ErrInvalidArgument].
//
// Undo does not touch entities that others have changed since. [Job.NotUndonePage] lists them. If
// two pages of the job wrote an entity, and others changed it in between, Undo restores what the
// others wrote, and lists the entity as well.
//
// An entity that the job deleted is restored if it does not exist now and others have not put it
// since. To see that, the undo reads the past at two times: at the end of the job, and half way
// from there to now. If others put and deleted the entity between these times, the undo may not
// notice, and restores it.
//
// The job must have ended, and must not be cleaned up. After the start of the undo, the job can't
// be resumed or retried. It can be cleaned up when the undo has succeeded or was aborted. If an
// older build cleans it up earlier, the undo fails with an error that says that entities may be
// missing.
//
// The undo can be paused, resumed, retried and verified like any job, as long as Datastore keeps
// the past. The numbers in its Status count pages of the first job. A page that can't be undone is
// a failure. Status.Counters counts entities as "restored", "removed", "left" (unchanged), or
// "already" (in the old state). An entity counts as "already" if others had restored it, or if the
// job's write had changed nothing. A nil o has all defaults.
//
// Datastore keeps old states of entities for one hour. With point-in-time recovery it keeps the
// state at each whole minute for seven days. If the state before the job's first page is gone, the
// error is [ErrWrongState]. After the first hour, these entities also stay and are listed:
//
//   - entities that somebody changed within two minutes before the commit of their page
//   - entities that the function put or deleted besides its own
//   - the entities of a page that deleted all its entities, if others put or deleted entities in
//     the page's range within the minute before its commit
//
// An undo relies on two facts from Google's documentation: all entities of a commit get the same
// version, and the past is kept in whole minutes. Both were tested on the embedded Datastore. The
// first one was also tested on Google's Firestore emulator.
func (j *Job) Undo(ctx context.Context, o *UndoOptions) (*Job, error) {
	undone, err := startUndo(ctx, j, o)
	if err != nil {
		return nil, fmt.Errorf("mapper: undo %s: %w", j.ID, err)
	}
	return undone, nil
}

// Move moves the job to the queue that a start of its mapper would use now. Use it if the job's
// queue or service was deleted or renamed: an engine without the job's queue can only read the job
// ([ErrWrongQueue]). The job keeps its results. Tasks in the old queue have no effect any more, but
// pages under way there still commit. The job continues in the new queue within a few minutes.
//
// Move returns an error if the engine does not have the job's mapper, or if its pages may exceed
// the new queue's DispatchDeadline. If the job is in that queue already, Move does nothing.
func (j *Job) Move(ctx context.Context) error {
	to, err := destinationOf(ctx, j)
	if err == nil {
		err = asked(to).Move(ctx, j.ref(), func(r *record.Job) error { return j.engine.adapt(ctx, to, r) })
	}
	if err != nil {
		return fmt.Errorf("mapper: move %s: %w", j.ID, err)
	}
	return nil
}

// CleanUpOptions say which records of a job [Job.CleanUp] removes, and how.
type CleanUpOptions struct {
	// IncludeFailures also cleans up the records of failures. By default they are kept, and
	// [Job.FailuresPage] lists them.
	IncludeFailures bool `json:"failures,omitempty"`

	// IncludeJob also cleans up the job's own record, and the records of failures. After that, a
	// start of its ID runs the mapper again. By default the job's record is kept, and a start of
	// its ID returns this job.
	IncludeJob bool `json:"job,omitempty"`

	// ExpireAfter, if not 0, marks the records instead of deleting them. Their property "expires"
	// is set to the time of the clean-up plus ExpireAfter. Time-to-live policies on the kinds
	// ScattermapJob, ScattermapRange and ScattermapUndoBatch then delete them. Without such
	// policies they stay. Defaults to 0: they are deleted.
	ExpireAfter time.Duration `json:"expire_ns,omitempty"`
}

// CleanUp starts tasks that delete the records of the job's ranges, and returns before they are
// done. The job must have ended. Its status stays, but it can't be resumed, retried, undone or
// verified any more. If the job failed or was aborted, pages that are still under way have no
// effect. A nil o has all defaults.
//
// To remove more records later, call CleanUp again with other options. If the job has not ended, or
// if another clean-up still runs, the error is [ErrWrongState].
func (j *Job) CleanUp(ctx context.Context, o *CleanUpOptions) error {
	var opts CleanUpOptions
	if o != nil {
		opts = *o
	}
	if err := j.control(ctx).CleanUp(ctx, j.ref(), lifecycle.CleanUp(opts)); err != nil {
		return fmt.Errorf("mapper: clean up %s: %w", j.ID, err)
	}
	return nil
}

// SetRetain changes how long the job's records are kept after its end: see [StartOptions].Retain.
// [RetainAlways] keeps them until somebody calls [Job.CleanUp]. If the job ended longer than d ago,
// the records are cleaned up soon. If d is 0 or below [MinRetain], the error is
// [ErrInvalidArgument]. If the job is cleaned up already, the error is [ErrWrongState].
func (j *Job) SetRetain(ctx context.Context, d time.Duration) error {
	err := checkRetain("the retention", d)
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	case d == 0:
		err = setting.Errorf("%w: the retention is 0: it has to be at least %v, or RetainAlways", ErrInvalidArgument,
			MinRetain)
	default:
		err = j.control(ctx).Retain(ctx, j.ref(), max(0, d))
	}
	if err != nil {
		return fmt.Errorf("mapper: set the retention of %s: %w", j.ID, err)
	}
	return nil
}

// SetRate replaces the job's rate. The new rate holds for pages that start a second or more after
// the call. If it has a Ramp and the earlier rate had none, the ramp starts now. To remove all
// limits, pass Rate{EntitiesPerSecond: [Unlimited]}. The error is [ErrInvalidArgument] if rate is
// zero, or has a limit that is NaN or too low for the job's workers. It is [ErrWrongState] if the
// job has succeeded or was aborted.
func (j *Job) SetRate(ctx context.Context, rate Rate) error { return j.setRate(ctx, rate, 0) }

// SetRateFor is [Job.SetRate] for the time d, which must be positive. At most two minutes after
// that time the job returns to its earlier rate.
func (j *Job) SetRateFor(ctx context.Context, rate Rate, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("mapper: set the rate of %s: %w: its time is %v, and has to be above 0: leave it out for "+
			"a rate without an end", j.ID, ErrInvalidArgument, d)
	}
	return j.setRate(ctx, rate, d)
}

// setRate sets the job's rate for the time d, or permanently if d is 0.
func (j *Job) setRate(ctx context.Context, rate Rate, d time.Duration) error {
	if rate == (Rate{}) {
		return setting.Errorf("mapper: set the rate of %s: %w: it is empty: Rate.EntitiesPerSecond is %d where there "+
			"are to be no limits", j.ID, ErrInvalidArgument, Unlimited)
	}
	on, text, until := changing(ctx, j), rate.limit().Becomes(), time.Time{}
	if d > 0 {
		text, until = fmt.Sprintf("%s, for %v", text, d), time.Now().UTC().Add(d).Truncate(time.Microsecond)
	}
	_, err := asked(on).Change(ctx, j.ref(), text, func(r *record.Job) (changed bool, err error) {
		if err := r.Queue.Is(on.queue.Name()); err != nil {
			return false, err
		}
		if err := rate.limit().Validate("Rate", r.AtOnce(), on.queue.DispatchDeadline()); err != nil {
			return false, fmt.Errorf("%w: %w", ErrInvalidArgument, err)
		}
		if r.Over() && r.State != record.Failed { // a failed job may be resumed, so its rate matters
			return false, fmt.Errorf("%w: it is %q", ErrWrongState, r.State)
		}
		if before, err := r.RateLimit(); rate.Ramp && (err != nil || !before.Ramp) {
			r.RampFrom = time.Now().UTC().Truncate(time.Microsecond)
		}
		encoded, err := json.Marshal(rate.limit())
		r.SetRate(encoded, until)
		return true, err
	})
	if err != nil {
		return fmt.Errorf("mapper: set the rate of %s: %w", j.ID, err)
	}
	return nil
}

// History returns who changed the job, when, how and why; the oldest entry comes first. It contains
// starts, pauses, resumes, aborts, retries, moves, clean-ups, changes of the rate, pauses by the
// job's limits, and each end of the job. Each change and its entry commit in one transaction. Calls
// without an effect, and changes by older builds, have no entries. The job keeps its last 100
// entries, up to 64 KiB.
func (j *Job) History(ctx context.Context) ([]HistoryEntry, error) {
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil {
		return nil, fmt.Errorf("mapper: history: %w", err)
	}
	recorded, err := job.History.Acts()
	if err != nil {
		return nil, fmt.Errorf("mapper: history of %s: %w", j.ID, err)
	}
	acts := make([]HistoryEntry, len(recorded))
	for i, a := range recorded {
		acts[i] = HistoryEntry{a.At, a.What, a.By, a.Why, State(a.To)}
	}
	return acts, nil
}

func (j *Job) ref() record.Ref { return record.Ref{ID: j.ID, Incarnation: j.incarnation} }

// control returns the [lifecycle.Jobs] that controls the jobs in this job's queue.
func (j *Job) control(ctx context.Context) *lifecycle.Jobs {
	return asked(changing(ctx, j))
}
