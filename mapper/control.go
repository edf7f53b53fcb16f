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

// ErrWrongQueue says that a job belongs to another queue than the engine's, see [Job.Move]. It
// names both.
var ErrWrongQueue = record.ErrOtherQueue

// ErrWrongState says that a job is not in a state in which it can do what was asked.
var ErrWrongState = record.ErrState

// Pause has the job begin no more pages. Those under way come to their end. A
// paused job loses nothing, however long it is paused.
func (j *Job) Pause(ctx context.Context) error {
	if err := j.control(ctx).Pause(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: pause %s: %w", j.ID, err)
	}
	return nil
}

// Abort ends the job. Pages under way come to their end; what was not processed
// stays as it is. An aborted job can't be resumed.
func (j *Job) Abort(ctx context.Context) error {
	if err := j.control(ctx).Abort(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: abort %s: %w", j.ID, err)
	}
	return nil
}

// Resume has a paused or failed job go on where it stopped: nothing that was done
// is repeated. A job that a failure limit has paused may have as many failures, or as
// great a share of what follows, again. In a job that failed, pages that fail as a
// whole record their failures from now on, up to the limits; and one whose counters can't be kept
// goes on without: see [Entity.Count]. All open ranges get new
// tasks, so it also revives a running job whose queue was purged, sooner than its next
// sweep would.
func (j *Job) Resume(ctx context.Context) error {
	if err := j.control(ctx).Resume(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: resume %s: %w", j.ID, err)
	}
	return nil
}

// RetryOptions say which failures a [Job.Retry] is about.
type RetryOptions struct {
	// Cause is the one whose failures are processed again, as [FailureCause].Text has it; the
	// others stay. Defaults to all failures.
	Cause string
}

// Retry has the job process its failures again, and nothing that is done: each gets as many
// attempts as at first. The job runs again until they are done, and what else was left, if it was
// paused or had failed; its finalizer takes effect again. A job that was aborted or cleaned up is
// refused with [ErrWrongState]. Nil options are the defaults.
//
// A retry takes the place of one that has not opened all of its failures yet. A cause that is none
// of the job's is [ErrInvalidArgument], if the job has up to 1,000 failures.
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

// checkCause returns an error if no failure of the job has a cause, as far as all are known.
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

// Undo starts a job that takes back what this job, of an [Update], has done to entities. It reads
// each as it was just before its page's commit, and has it be that again, byte for byte: what the
// job has changed or deleted is restored, and what it has put is deleted. An entity that anybody
// else has changed since stays as it is, and is listed by [Job.NotUndonePage]. An entity that
// several pages have written becomes what it was before the first of them, or what somebody else
// has made of it in between, and is listed then. What a finalizer has put or deleted is not taken
// back.
//
// An entity that the job has deleted is restored if it is not there, unless others have put it
// since: the undo looks at it when the job ended, and half way from there to now. What others put
// and deleted again in between leaves no trace, and what the job has deleted is restored then.
//
// The undo takes effect once for each page, and can be paused, resumed, retried and verified as any
// job, while Datastore keeps what was there. Its entities are pages: Status.Counters has
// "restored", "removed" and "left". A page that can't be undone is a failure;
// [UndoOptions] say more, and nil is the defaults.
//
// The job has to have ended, and its records have to be there. From the undo's start on it can't be
// resumed or retried, nor cleaned up before the undo has ended, or was aborted if it has failed. If
// a build that does not know of that cleans it up all the same, the undo fails, and says that it
// may not have seen all.
//
// Datastore keeps what was there for an hour, and with point-in-time recovery whole minutes for
// seven days. Where only those are kept, an entity that somebody had changed within two minutes
// before its page, and what the function has put or deleted besides, is left and listed. So is what
// the page has deleted, or somebody has changed since, where others had put or deleted entities of
// the page within the minute before. If nothing is kept for the first page, Undo is refused with
// [ErrWrongState]. That a commit's entities have the version of the record which it writes is seen
// on the embedded Datastore and on Google's Firestore emulator, and the rule of whole minutes on
// the embedded one; for production both are what Datastore documents.
func (j *Job) Undo(ctx context.Context, o *UndoOptions) (*Job, error) {
	undone, err := startUndo(ctx, j, o)
	if err != nil {
		return nil, fmt.Errorf("mapper: undo %s: %w", j.ID, err)
	}
	return undone, nil
}

// Move has the job belong to the queue that a start of its mapper would put it into, with its open
// ranges, and what it has done. It is for a job whose queue, or whose service, is gone or has
// another name: a job belongs to the queue that it was started with, and engines of other queues
// only read it ([ErrWrongQueue]). Tasks of the old queue are superseded, pages under way there come
// to their end, and what they leave is found by the next sweeps, within minutes. A job that the
// engine has no mapper for, or whose pages may take too long for the queue's Deadline, is refused.
// Moving a job to the queue that it belongs to does nothing.
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

// CleanUpOptions say what becomes of the records of a job that has ended.
type CleanUpOptions struct {
	// IncludeFailures has the records of failures cleaned up, too. By default they are kept,
	// for [Job.FailuresPage].
	IncludeFailures bool `json:"failures,omitempty"`

	// IncludeJob has the job's own record cleaned up, too, and with it the failures. By
	// default it is kept: while it is there, a start under its ID returns this job, and
	// does not run the mapper again.
	IncludeJob bool `json:"job,omitempty"`

	// ExpireAfter, if it is not 0, has the records get the property "expires" in place of
	// being deleted: that much later than now, for time-to-live policies on the kinds
	// ScattermapJob, ScattermapRange and ScattermapUndoBatch.
	ExpireAfter time.Duration `json:"expire_ns,omitempty"`
}

// CleanUp has the records of the job's ranges deleted, by tasks of its own; nil is
// the default. The job has to have ended. It keeps its status, and can't be resumed,
// retried or verified any more. The ranges of a job that failed or was aborted are taken away from
// pages that are still under way, which then have no effect. A second CleanUp can clean up more.
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

// SetRetain changes how long the records of the job are kept after its end, see
// [StartOptions.Retain]: [RetainAlways] is until somebody cleans them up. Those of a job that ended
// longer ago are cleaned up soon. What is cleaned up already is [ErrWrongState].
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

// SetRate changes how fast the job goes, for pages that begin at least a second later. A ramp
// begins now. Rate{EntitiesPerSecond: [Unlimited]} lifts the limits. The zero Rate is
// [ErrInvalidArgument], and so is a rate that is not a number, or too low for the job's workers. A
// job that has ended, other than by failing, is [ErrWrongState].
func (j *Job) SetRate(ctx context.Context, rate Rate) error { return j.setRate(ctx, rate, 0) }

// SetRateFor is [Job.SetRate] for a time, which is above 0: after it the job goes as fast again as
// it did before, within two minutes.
func (j *Job) SetRateFor(ctx context.Context, rate Rate, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("mapper: set the rate of %s: %w: its time is %v, and has to be above 0: leave it out for "+
			"a rate without an end", j.ID, ErrInvalidArgument, d)
	}
	return j.setRate(ctx, rate, d)
}

// setRate sets the rate for a time, or without an end if that is 0.
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
		if r.Over() && r.State != record.Failed { // that can be resumed
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

// History returns what was done to the job, the oldest first: who has started, paused, resumed,
// aborted, retried, moved or cleaned it up, or set its rate, when and why, and when one of its
// limits has paused it. Each act is recorded by the transaction that takes effect; what changes
// nothing is none. The last 100 are kept, as far as they fit 64 KiB. A job that an older build has
// started has no more than what newer ones have done.
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
