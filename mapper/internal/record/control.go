package record

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrState says that the job's state does not allow an operation.
var ErrState = errors.New("the job's state does not allow that")

// ErrOtherArguments says that a job with this ID exists, and was started with another mapper, query
// or parameters.
var ErrOtherArguments = errors.New("a job of this ID has other arguments")

func refuse(j *Job) error { return fmt.Errorf("%w: it is %q", ErrState, j.State) }

// refuseCleaned returns an error if an operation must not run, because it would need records of the
// job that are deleted or must not change. There are two cases:
//
//   - A clean-up deletes the records of the job's ranges.
//   - Another job undoes this one, and reads its records.
func (j *Job) refuseCleaned() error {
	if err := j.HasRecords(); err != nil {
		return err
	}
	if j.Undo != "" {
		return fmt.Errorf("%w: job %s undoes it", ErrState, j.Undo)
	}
	return nil
}

// Over reports whether the job has ended. Resume and Retry can make an ended job run again.
func (j *Job) Over() bool { return j.State != Running && j.State != Paused }

// Pause pauses a running job. Its tasks start no further pages of entities, but pages under way may
// still end. It returns false if the job is already paused.
func (j *Job) Pause() (changed bool, err error) {
	switch j.State {
	case Paused:
		return false, nil
	case Running:
		j.State, j.Error = Paused, ""
		return true, nil
	default:
		return false, refuse(j)
	}
}

// PauseByLimit pauses a running job because its failures exceed a limit, which the text over names.
// If the job has another epoch (see [Job]) than the given one, it was resumed or retried since, and
// PauseByLimit does nothing.
//
// If the limit is on the share of failures, sum has the present numbers. They become the baseline:
// after a Resume, only later failures count.
func (j *Job) PauseByLimit(epoch int64, over string, sum *Totals) (changed bool) {
	if j.State != Running || j.Epoch != epoch {
		return false
	}
	j.State, j.Limited = Paused, true
	j.Error = PausedByFailures + ": " + over
	if sum.Ranges > 0 { // true if the limit is on the share of failures
		j.Failures, j.Tried = sum.Failures, sum.Failures+sum.Processed
	}
	return true
}

// PausedByFailures is the text of the entry in a job's history if the failure limit has paused the
// job.
const PausedByFailures = "paused by its failure limit"

// Abort ends a job that has not succeeded. An aborted job can't be resumed. Abort returns false if
// the job is already aborted.
func (j *Job) Abort(now time.Time) (changed bool, err error) {
	switch j.State {
	case Aborted:
		return false, nil
	case Running, Paused, Failed:
		if j.State != Failed {
			j.Error, j.Trouble = "", "" // reasons for waiting, which no longer apply
		}
		j.State, j.Ended = Aborted, now.UTC().Truncate(time.Microsecond)
		return true, nil
	default:
		return false, refuse(j)
	}
}

// Resume makes a paused or failed job run again. If the job is already running, it gets new tasks.
// If a failure limit has paused it, Resume raises the limit: the job may have as many further
// failures as it could have at first. If the budget has paused it, Resume gives it a full budget
// again. The argument failed is the present number of failures.
func (j *Job) Resume(failed int64, now time.Time) error {
	switch j.State {
	case Running, Paused, Failed:
	default:
		return refuse(j)
	}
	// A job with Closing set deletes its own records before it ends, so it may continue.
	if err := j.refuseCleaned(); err != nil && len(j.Closing) == 0 {
		return err
	}
	if j.Limited && j.Limit > 0 {
		j.Limit = failed + j.LimitStep
	}
	if j.OverBudget {
		j.Spent = 0 // the job has its full budget again
		j.Allowance++
	}
	j.goOn(now)
	return nil
}

// A Selection says which failed entities of a job a retry processes again.
type Selection struct {
	Cause  string // only failures with this [Range.Cause]; empty: all
	Failed int64  // the number of the job's failures
}

// Retry makes the job run again, to process the selected failed entities. A chain of tasks then
// makes their ranges pending. EndRetry records the end of this chain. If the retry is only for
// failures with one cause, the job's failure limit rises by the number of the other failures.
func (j *Job) Retry(s Selection, now time.Time) error {
	if err := j.refuseCleaned(); err != nil {
		return err
	}
	switch j.State {
	case Running, Paused, Failed, SucceededWithFailures:
	case Succeeded: // otherwise its finalizer would run again
		return fmt.Errorf("%w: it has no failures to retry", ErrState)
	default:
		return refuse(j)
	}
	j.goOn(now)
	j.Retrying, j.RetryOf = true, s.Cause
	switch {
	case s.Cause == "":
		j.Limit, j.Failures, j.Tried = j.LimitStep, 0, 0 // all failures are retried, so none of them counts
	case j.Limit > 0:
		j.Limit = s.Failed + j.LimitStep
	}
	return nil
}

// Retries reports whether a retry is still making ranges of failures pending, in the given epoch.
// If a job is paused during a retry, a Resume continues the retry in a new epoch.
func (j *Job) Retries(epoch int64) bool { return j.State == Running && j.Retrying && j.Epoch == epoch }

// EndRetry records that the ranges of all selected failures are pending again. It starts a new
// epoch of the job. A sweep, which looks for ranges without a task, then enqueues tasks for them.
func (j *Job) EndRetry(epoch int64) (changed bool) {
	if !j.Retries(epoch) {
		return false
	}
	j.Retrying, j.RetryOf = false, ""
	j.Epoch++
	return true
}

// CleanUp records that a clean-up of a job has started, which deletes records. The job must have
// ended. The argument how is JSON that says which records are deleted. CleanUp returns false if
// this clean-up is already under way.
func (j *Job) CleanUp(how string) (changed bool, err error) {
	switch {
	case !j.Over():
		return false, fmt.Errorf("%w: it is %s, and has to end first", ErrState, j.State)
	case j.Cleaning == how:
		return false, nil
	case j.Cleaning != "":
		return false,
			fmt.Errorf("%w: it is being cleaned up in another way, which takes until the sweep after the last record",
				ErrState)
	}
	j.Cleaning, j.Cleaned = how, true
	j.Epoch++
	return true, nil
}

// MayEnd reports whether a job whose records were added up in the given epoch may end. The job must
// be running, without a retry or a clean-up. In a later epoch, ranges may have become pending
// since, so the sum would be outdated.
func (j *Job) MayEnd(epoch int64) bool {
	return j.State == Running && !j.Retrying && j.Epoch == epoch && j.Cleaning == ""
}

// AdvanceEpoch raises the job's epoch to the given one, if this is the next epoch. A guard calls
// it, which is a task that is enqueued before a commit that would start this epoch. After
// AdvanceEpoch, two commits fail because the epoch has changed: the one for which the guard was
// enqueued, and the one that would end the job.
func (j *Job) AdvanceEpoch(epoch int64) (changed bool) {
	if j.Epoch+1 != epoch {
		return false
	}
	if j.Finalized == j.Epoch {
		j.Finalized = epoch
	}
	j.Epoch = epoch
	return true
}

// Fail ends the job as failed, for the given reason. The argument countersLost says that the reason
// is counters which became too large.
func (j *Job) Fail(reason string, countersLost bool, now time.Time) {
	j.CountersLost, j.Trouble = countersLost, ""
	j.State, j.Error, j.Ended = Failed, reason, now.UTC().Truncate(time.Microsecond)
}

// LoseEnd records that the task which should end the job was lost. It raises the generation, which
// is part of the task's name, so that another task can be enqueued. The other task runs exclusively
// (its process does nothing else), because the finalizer may have killed the processes that ran the
// lost task. LoseEnd returns false if the job is not running, or has another generation.
func (j *Job) LoseEnd(generation int64) (changed bool) {
	if j.State != Running || j.Generation != generation {
		return false
	}
	j.Generation++
	j.Solo = true
	return true
}

// BeginFinalizer writes the crash mark m into the job's record. A delivery calls it before it runs
// the finalizer, and removes the mark afterwards. If the record already has a mark of another
// delivery, the process of that delivery may have died: see [Suspicion].
func (j *Job) BeginFinalizer(epoch int64, m CrashMark, now time.Time, deadline time.Duration) (changed bool) {
	if j.State != Running || j.Epoch != epoch || j.Begun == m.Delivery {
		return false
	}
	if died := j.Begin(m, now, deadline); died != nil {
		j.Die(*died, now, deadline)
	}
	if j.Error == "" { // otherwise a finalizer has returned an error, which stays
		j.Error = "the finalizer is tried again: a delivery of its task did not come to its end"
	}
	return true
}

const waitsForBuild = "its tasks wait for a build that has the mapper "

// NeedsBuild sets the job's error which says that its tasks wait for a build of the program with
// the job's mapper. If missing is false, it removes this error. It does not replace another error.
func (j *Job) NeedsBuild(missing bool) (changed bool) {
	text := ""
	if missing {
		text = waitsForBuild + j.Mapper
	}
	if j.State != Running || j.Error == text || j.Error != "" && !strings.HasPrefix(j.Error, waitsForBuild) {
		return false
	}
	j.Error = text
	return true
}
