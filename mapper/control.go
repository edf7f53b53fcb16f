package mapper

import (
	"cmp"
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

// ErrWrongState says that a job's state, or another job, does not allow the call. The error says
// which.
var ErrWrongState = record.ErrState

// Pause stops the job before its next pages. Pages under way still commit. A paused job loses
// nothing, however long it is paused. If the job is paused already, Pause does nothing. If it has
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

// Resume continues a paused or failed job where it stopped, and repeats nothing. The reason for
// which it stopped changes what is allowed from now on:
//
//   - If a failure limit paused it, the same number of further failures is allowed, or the same
//     share of the remaining entities.
//   - If its [Budget] paused it, the same amount again is allowed.
//   - If it failed, pages that fail as a whole now record their failures, up to the limits.
//   - If its counters exceeded their limits, it continues without counters: see [Entity.Count].
//
// All open ranges get new tasks. So Resume also revives a running job whose queue was purged,
// sooner than its next sweep ([Engine.ReviveJobs]) would. If the job has succeeded or was aborted
// or cleaned up, the error is [ErrWrongState].
func (j *Job) Resume(ctx context.Context) error {
	if err := j.control(ctx).Resume(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: resume %s: %w", j.ID, err)
	}
	return nil
}

// RetryOptions select the failures that a [Job.Retry] runs again.
type RetryOptions struct {
	// Cause selects the failures of one cause, by its text in [FailureCause].Text. The other
	// failures stay. Defaults to all failures.
	Cause string
}

// Retry processes the job's failures again, and nothing that is done. Each failure gets all of its
// attempts again. A job that runs continues beside that; a job that was paused or has failed also
// processes its other entities. At the end, its finalizer takes effect again. If the job was
// aborted or cleaned up, the error is [ErrWrongState]. A nil o selects all failures.
//
// Retry returns before the failures are selected: tasks reopen them. A new retry replaces an
// earlier one whose tasks have not reopened all of its failures yet. If the job has up to 1,000
// failures, and none has the cause in o, the error is [ErrInvalidArgument].
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

// checkCause returns an error if no failure of the job has a cause, unless there are too many
// failures to know.
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

// Undo starts a job that undoes this job, of an [Update]. Each entity becomes what it was just
// before its page's commit, byte for byte: changed and deleted entities are restored, and entities
// that the job put are deleted. If several pages wrote an entity, it becomes what it was before the
// first of them. Writes of a finalizer stay. For a job of a [Visit] the error is
// [ErrInvalidArgument].
//
// Entities that others have changed since stay, and [Job.NotUndonePage] lists them. If others
// changed an entity between two pages of the job, it becomes what they wrote, and is listed as
// well.
//
// An entity that the job deleted is restored if it does not exist now, unless others have put it
// since. The undo looks for it at two times: at the end of the job, and half way from there to now.
// Others may have put and deleted the entity again between these times. That may leave no trace,
// and the undo then restores the entity.
//
// The job must have ended, and its records must exist. From the start of the undo, the job can't be
// resumed or retried. It can't be cleaned up until the undo has ended, or has failed and was
// aborted. If an older build still cleans it up, the undo fails, and says that it may have missed
// entities.
//
// The undo takes effect once for each page. It can be paused, resumed, retried and verified like
// any job, as long as Datastore keeps the past. The numbers in its Status count pages.
// Status.Counters has the entities: "restored", "removed" and "left". A page that can't be undone
// is a failure. A nil o has all defaults.
//
// Datastore keeps the past for one hour. With point-in-time recovery it keeps whole minutes for
// seven days. If the past of the first page is gone, the error is [ErrWrongState]. Where only whole
// minutes are kept, these entities stay and are listed:
//
//   - entities that somebody changed within two minutes before their page
//   - entities that the function put or deleted besides its own
//   - entities that the page deleted, or that others have changed since, if others put or deleted
//     entities of the page within the minute before
//
// An undo relies on two facts that Google documents. All entities of a commit get its version, and
// the past is kept in whole minutes. Both were tested on the embedded Datastore, and the first one
// also on Google's Firestore emulator.
func (j *Job) Undo(ctx context.Context, o *UndoOptions) (*Job, error) {
	undone, err := startUndo(ctx, j, o)
	if err != nil {
		return nil, fmt.Errorf("mapper: undo %s: %w", j.ID, err)
	}
	return undone, nil
}

// Move moves the job to the queue that a start of its mapper would choose now, with its open ranges
// and its results. Use it if the job's queue or service is gone or renamed. Until then, engines of
// other queues can only read the job ([ErrWrongQueue]). Tasks of the old queue have no effect any
// more. Pages under way there still commit, and the next sweeps ([Engine.ReviveJobs]) find the
// remaining ranges within minutes.
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

// CleanUpOptions say what [Job.CleanUp] does with the records of a job.
type CleanUpOptions struct {
	// IncludeFailures also cleans up the records of failures. By default they are kept, for
	// [Job.FailuresPage].
	IncludeFailures bool `json:"failures,omitempty"`

	// IncludeJob also cleans up the job's own record, and the records of failures. After that, a
	// start of its ID runs the mapper again. By default the job's record is kept, and a start of
	// its ID returns this job.
	IncludeJob bool `json:"job,omitempty"`

	// ExpireAfter, if not 0, marks the records instead of deleting them. Their property "expires"
	// is set to this time after the clean-up. Time-to-live policies on the kinds ScattermapJob,
	// ScattermapRange and ScattermapUndoBatch then delete them. Without such policies they stay.
	// Defaults to 0: they are deleted.
	ExpireAfter time.Duration `json:"expire_ns,omitempty"`
}

// CleanUp deletes the records of the job's ranges, and returns before that is done: tasks of its
// own do it. The job must have ended. It keeps its status, and can't be resumed, retried, undone or
// verified any more. If the job failed or was aborted, pages that are still under way have no
// effect. A nil o has all defaults.
//
// To clean up more, call CleanUp again with other options when the first clean-up is done. While it
// goes on, or if the job has not ended, the error is [ErrWrongState].
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
// [RetainAlways] keeps them until a caller cleans them up. If the new time has passed already, they
// are cleaned up soon. A time of 0 or below [MinRetain] is an [ErrInvalidArgument]. If the job is
// cleaned up already, the error is [ErrWrongState].
func (j *Job) SetRetain(ctx context.Context, d time.Duration) error {
	err := checkRetain("the retention", d)
	switch {
	case err != nil || d == 0:
		err = fmt.Errorf("%w: %w", ErrInvalidArgument, cmp.Or(err, checkRetain("the retention", 1)))
	default:
		err = j.control(ctx).Retain(ctx, j.ref(), max(0, d))
	}
	if err != nil {
		return fmt.Errorf("mapper: set the retention of %s: %w", j.ID, err)
	}
	return nil
}

// SetRate replaces the job's rate, for pages that start at least a second later. If rate has a Ramp
// and the earlier rate had none, the ramp starts now. To remove all limits, pass
// Rate{EntitiesPerSecond: [Unlimited]}. The error is [ErrInvalidArgument] for the zero Rate, and
// for a rate that is not a number or too low for the job's workers. It is [ErrWrongState] if the
// job has ended, except in [StateFailed].
func (j *Job) SetRate(ctx context.Context, rate Rate) error { return j.setRate(ctx, rate, 0) }

// SetRateFor is [Job.SetRate] for a limited time, which must be positive. Within two minutes after
// its end the job returns to its earlier rate.
func (j *Job) SetRateFor(ctx context.Context, rate Rate, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("mapper: set the rate of %s: %w: its time is %v, and has to be above 0: leave it out for "+
			"a rate without an end", j.ID, ErrInvalidArgument, d)
	}
	return j.setRate(ctx, rate, d)
}

// setRate sets the rate for a time, or permanently if d is 0.
func (j *Job) setRate(ctx context.Context, rate Rate, d time.Duration) error {
	if rate == (Rate{}) {
		return setting.Errorf("mapper: set the rate of %s: %w: it is empty: Rate.EntitiesPerSecond is %d where there "+
			"are to be no limits", j.ID, ErrInvalidArgument, Unlimited)
	}
	on, text, until := queueOf(ctx, j), rate.limit().Becomes(), time.Time{}
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
		if r.Over() && r.State != record.Failed { // a failed job can be resumed
			return false, fmt.Errorf("%w: it is %q", ErrWrongState, r.State)
		}
		if before, err := r.RateLimit(); rate.Ramp && (err != nil || !before.Ramp) {
			r.RampFrom = time.Now().UTC().Truncate(time.Microsecond)
		}
		encoded, err := json.Marshal(rate.limit())
		record.SetRate(r, encoded, until)
		return true, err
	})
	if err != nil {
		return fmt.Errorf("mapper: set the rate of %s: %w", j.ID, err)
	}
	return nil
}

// History returns who did what to the job, when and why, the oldest first: starts, pauses, resumes,
// aborts, retries, moves, clean-ups and changes of the rate. It includes pauses by the job's
// limits. Each change and its entry commit in one transaction. Calls without an effect are not
// recorded. The last 100 entries are kept, up to 64 KiB. Changes by older builds are not recorded.
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

// control returns what carries out changes of the job.
func (j *Job) control(ctx context.Context) *lifecycle.Jobs {
	return asked(queueOf(ctx, j))
}
