package record

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrState says that a job is not in a state in which it can do what was asked.
var ErrState = errors.New("the job's state does not allow that")

// ErrOtherArguments says that a job of that ID was started with another mapper, query or
// parameters.
var ErrOtherArguments = errors.New("a job of this ID has other arguments")

func refuse(j *Job) error { return fmt.Errorf("%w: it is %q", ErrState, j.State) }

// refuseCleaned refuses what needs the records of a job's ranges, as the job has left them.
func refuseCleaned(j *Job) error {
	if err := HasRecords(j); err != nil {
		return err
	}
	if j.Undo != "" {
		return fmt.Errorf("%w: job %s undoes it", ErrState, j.Undo)
	}
	return nil
}

// Over reports whether the job does nothing more, unless it is resumed or its failures are retried.
func (j *Job) Over() bool { return j.State != Running && j.State != Paused }

// Pause has a job begin no more pages.
func (j *Job) Pause() (changed bool, err error) {
	switch j.State {
	case Paused:
		return false, nil
	case Running:
		j.State, j.Error = Paused, ""
		return true, nil
	case Succeeded, SucceededWithFailures, Failed, Aborted:
	}
	return false, refuse(j)
}

// PauseByLimit pauses a job of an epoch that runs, whose failures are over a limit: over says
// which. If it is that of their share, the job counts them anew from what sum has, when it is
// resumed.
func (j *Job) PauseByLimit(epoch int64, over string, sum *Totals) (changed bool) {
	if j.State != Running || j.Epoch != epoch {
		return false
	}
	j.State, j.Limited = Paused, true
	j.Error = "paused by its failure limit: " + over
	if sum.Ranges > 0 { // it was the share
		j.Failures, j.Tried = sum.Failures, sum.Failures+sum.Processed
	}
	return true
}

// Abort ends a job for good.
func (j *Job) Abort(now time.Time) (changed bool, err error) {
	switch j.State {
	case Aborted:
		return false, nil
	case Running, Paused, Failed:
		if j.State != Failed {
			j.Error, j.Trouble = "", "" // which say what it waits for
		}
		j.State, j.Ended = Aborted, now.UTC().Truncate(time.Microsecond)
		return true, nil
	case Succeeded, SucceededWithFailures:
	}
	return false, refuse(j)
}

// Resume has a job go on that was paused, has failed, or runs and may have lost its tasks. One that
// a limit has paused when so many entities had failed may have as many failures again.
func (j *Job) Resume(failed int64, now time.Time) error {
	switch j.State {
	case Running, Paused, Failed:
	default:
		return refuse(j)
	}
	if err := refuseCleaned(j); err != nil && len(j.Closing) == 0 { // that is about to end, and needs none
		return err
	}
	if j.Limited && j.Limit > 0 {
		j.Limit = failed + j.LimitStep
	}
	if j.Poor {
		j.Spent = 0 // as much again
		j.Allowance++
	}
	j.goOn(now)
	return nil
}

// A Selection is which failures of a job are retried: all of them, or those of a cause, of so many
// altogether.
type Selection struct {
	Cause  string // see [Range.Cause]; empty: all
	Failed int64
}

// Retry has a job process its failures again. They are opened one after the other, until EndRetry.
// Where some are left, as many more are allowed as at first.
func (j *Job) Retry(s Selection, now time.Time) error {
	if err := refuseCleaned(j); err != nil {
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
		j.Limit, j.Failures, j.Tried = j.LimitStep, 0, 0 // there are none now
	case j.Limit > 0:
		j.Limit = s.Failed + j.LimitStep
	}
	return nil
}

// Retries reports whether the retry of an epoch goes on. One that is paused goes on when the job is
// resumed.
func (j *Job) Retries(epoch int64) bool { return j.State == Running && j.Retrying && j.Epoch == epoch }

// EndRetry notes that all failures are open again. The sweep of the new epoch enqueues them.
func (j *Job) EndRetry(epoch int64) (changed bool) {
	if !j.Retries(epoch) {
		return false
	}
	j.Retrying, j.RetryOf = false, ""
	j.Epoch++
	return true
}

// CleanUp begins to clean up a job that has ended, in a way.
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

// MayEnd reports whether a job that was seen in an epoch may end: no ranges have appeared since.
func (j *Job) MayEnd(epoch int64) bool {
	return j.State == Running && !j.Retrying && j.Epoch == epoch && j.Cleaning == ""
}

// Forestall gives a job the epoch after its own, which somebody was about to give it in a commit:
// that is refused then. Nothing else changes.
func Forestall(j *Job, epoch int64) (changed bool) {
	if j.Epoch+1 != epoch {
		return false
	}
	if j.Finalized == j.Epoch {
		j.Finalized = epoch
	}
	j.Epoch = epoch
	return true
}

// Fail ends a job for a reason. It may have lost its counters.
func (j *Job) Fail(reason string, countersLost bool, now time.Time) {
	j.CountersLost, j.Trouble = countersLost, ""
	j.State, j.Error, j.Ended = Failed, reason, now.UTC().Truncate(time.Microsecond)
}

// LoseEnd notes that the task that ends a job is lost, which was enqueued under a generation: the
// next one has another name, and is suspected, as the deliveries of that one may have died of the
// finalizer.
func (j *Job) LoseEnd(generation int64) (changed bool) {
	if j.State != Running || j.Generation != generation {
		return false
	}
	j.Generation++
	j.Solo = true
	return true
}

// BeginFinalizer leaves the mark of a delivery of the task that ends a job of an epoch.
func (j *Job) BeginFinalizer(epoch int64, m CrashMark, now time.Time, deadline time.Duration) (changed bool) {
	if j.State != Running || j.Epoch != epoch || j.Begun == m.Delivery {
		return false
	}
	if died := j.Begin(m, now, deadline); died != nil {
		j.Die(*died, now, deadline)
	}
	if j.Error == "" { // one that has failed says so
		j.Error = "the finalizer is tried again: a delivery of its task did not come to its end"
	}
	return true
}

const waitsForBuild = "its tasks wait for a build that has the mapper "

// NeedsBuild has the status of a job say whether a build does not have its mapper. What else it
// says stays.
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
