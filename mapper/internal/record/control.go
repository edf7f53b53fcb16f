package record

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrState says that a job's state does not allow the operation.
var ErrState = errors.New("the job's state does not allow that")

// ErrOtherArguments says that the ID belongs to a job that was started with another mapper, query
// or parameters.
var ErrOtherArguments = errors.New("a job of this ID has other arguments")

func refuse(j *Job) error { return fmt.Errorf("%w: it is %q", ErrState, j.State) }

// refuseCleaned returns an error if the records of a job's ranges are deleted, or if another job
// undoes what they describe.
func (j *Job) refuseCleaned() error {
	if err := j.HasRecords(); err != nil {
		return err
	}
	if j.Undo != "" {
		return fmt.Errorf("%w: job %s undoes it", ErrState, j.Undo)
	}
	return nil
}

// Over reports whether the job has ended. Resume and Retry can set it running again.
func (j *Job) Over() bool { return j.State != Running && j.State != Paused }

// Pause pauses a running job: its tasks start no more pages.
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

// PauseByLimit pauses a running job whose failures exceed a limit. It does nothing in another epoch
// than the given one. The text over says which limit.
//
// For the limit on the share of failures, sum has the counts. They become the baseline: after
// Resume, only later failures count.
func (j *Job) PauseByLimit(epoch int64, over string, sum *Totals) (changed bool) {
	if j.State != Running || j.Epoch != epoch {
		return false
	}
	j.State, j.Limited = Paused, true
	j.Error = PausedByFailures + ": " + over
	if sum.Ranges > 0 { // the limit on the share
		j.Failures, j.Tried = sum.Failures, sum.Failures+sum.Processed
	}
	return true
}

// PausedByFailures is the act of a failure limit that pauses its job.
const PausedByFailures = "paused by its failure limit"

// Abort ends a job. An aborted job can't be resumed.
func (j *Job) Abort(now time.Time) (changed bool, err error) {
	switch j.State {
	case Aborted:
		return false, nil
	case Running, Paused, Failed:
		if j.State != Failed {
			j.Error, j.Trouble = "", "" // why it waits
		}
		j.State, j.Ended = Aborted, now.UTC().Truncate(time.Microsecond)
		return true, nil
	default:
		return false, refuse(j)
	}
}

// Resume sets a job running that is paused or has failed, or one that runs and may have lost its
// tasks. If a failure limit paused it, it is allowed as many further failures as at first. failed
// is the number of its failures now.
func (j *Job) Resume(failed int64, now time.Time) error {
	switch j.State {
	case Running, Paused, Failed:
	default:
		return refuse(j)
	}
	if err := j.refuseCleaned(); err != nil && len(j.Closing) == 0 { // a job that deletes its records is about to end
		return err
	}
	if j.Limited && j.Limit > 0 {
		j.Limit = failed + j.LimitStep
	}
	if j.Poor {
		j.Spent = 0 // a full budget again
		j.Allowance++
	}
	j.goOn(now)
	return nil
}

// A Selection says which failures of a job are retried.
type Selection struct {
	Cause  string // see [Range.Cause]; empty: all
	Failed int64  // how many failures the job has
}

// Retry sets a job running to process failures again. A chain of tasks opens them, until EndRetry.
// If only one cause is retried, the failure limit rises, so that the other failures don't count.
func (j *Job) Retry(s Selection, now time.Time) error {
	if err := j.refuseCleaned(); err != nil {
		return err
	}
	switch j.State {
	case Running, Paused, Failed, Succeeded, SucceededWithFailures:
	default:
		return refuse(j)
	}
	j.goOn(now)
	j.Retrying, j.RetryOf = true, s.Cause
	switch {
	case s.Cause == "":
		j.Limit, j.Failures, j.Tried = j.LimitStep, 0, 0 // no failure remains
	case j.Limit > 0:
		j.Limit = s.Failed + j.LimitStep
	}
	return nil
}

// Retries reports whether the retry of an epoch goes on. A retry of a paused job goes on in a new
// epoch, after Resume.
func (j *Job) Retries(epoch int64) bool { return j.State == Running && j.Retrying && j.Epoch == epoch }

// EndRetry records that all selected failures are open again. The sweep of the new epoch enqueues
// their tasks.
func (j *Job) EndRetry(epoch int64) (changed bool) {
	if !j.Retries(epoch) {
		return false
	}
	j.Retrying, j.RetryOf = false, ""
	j.Epoch++
	return true
}

// CleanUp starts a clean-up of a job that has ended. The parameter how is stored JSON.
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

// MayEnd reports whether a job may end whose records were added up in the given epoch. In another
// epoch new ranges have appeared since.
func (j *Job) MayEnd(epoch int64) bool {
	return j.State == Running && !j.Retrying && j.Epoch == epoch && j.Cleaning == ""
}

// Forestall raises a job's epoch to the given one, if that is the next. A process that is about to
// commit the same epoch is then refused. Nothing else changes.
func (j *Job) Forestall(epoch int64) (changed bool) {
	if j.Epoch+1 != epoch {
		return false
	}
	if j.Finalized == j.Epoch {
		j.Finalized = epoch
	}
	j.Epoch = epoch
	return true
}

// Fail ends a job as failed. If countersLost, the job failed because its counters became too large
// to keep.
func (j *Job) Fail(reason string, countersLost bool, now time.Time) {
	j.CountersLost, j.Trouble = countersLost, ""
	j.State, j.Error, j.Ended = Failed, reason, now.UTC().Truncate(time.Microsecond)
}

// LoseEnd records that the task which ends the job is lost. The task has the given generation in
// its name; the next one gets a new name. It runs exclusively, because the finalizer may have
// killed the processes of the lost task's deliveries.
func (j *Job) LoseEnd(generation int64) (changed bool) {
	if j.State != Running || j.Generation != generation {
		return false
	}
	j.Generation++
	j.Solo = true
	return true
}

// BeginFinalizer leaves the crash mark of a delivery that is about to run the finalizer in an
// epoch. An old mark may be a death, see [Suspicion].
func (j *Job) BeginFinalizer(epoch int64, m CrashMark, now time.Time, deadline time.Duration) (changed bool) {
	if j.State != Running || j.Epoch != epoch || j.Begun == m.Delivery {
		return false
	}
	if died := j.Begin(m, now, deadline); died != nil {
		j.Die(*died, now, deadline)
	}
	if j.Error == "" { // a finalizer that returned an error has set it
		j.Error = "the finalizer is tried again: a delivery of its task did not come to its end"
	}
	return true
}

const waitsForBuild = "its tasks wait for a build that has the mapper "

// NeedsBuild sets or clears the job's error "its tasks wait for a build". Another error stays.
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
