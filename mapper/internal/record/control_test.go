package record

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestControl tries each operation on a job in each state. It checks whether the operation is
// allowed, changes nothing, or is refused.
func TestControl(t *testing.T) {
	states := []JobState{Running, Paused, Failed, Aborted, Succeeded, SucceededWithFailures}
	always := func(f func(*Job) error) func(*Job) (bool, error) {
		return func(j *Job) (bool, error) { err := f(j); return err == nil, err }
	}
	for _, test := range []struct {
		name       string
		transition func(*Job) (bool, error)
		// one entry per state: x is refused, = changes nothing, and any other text is the new state
		want string
	}{
		{"pause", (*Job).Pause, "P = x x x x"},
		{"abort", func(j *Job) (bool, error) { return j.Abort(noon) }, "A A A = x x"},
		{"resume", always(func(j *Job) error { return j.Resume(0, noon) }), "R R R x x x"},
		{"retry", always(func(j *Job) error { return j.Retry(Selection{}, noon) }), "R R R x x R"},
		{"clean up", func(j *Job) (bool, error) { return j.CleanUp("{}") }, "x x F A S W"},
	} {
		letters := map[JobState]string{Running: "R", Paused: "P", Failed: "F", Aborted: "A", Succeeded: "S",
			SucceededWithFailures: "W"}
		for i, want := range strings.Fields(test.want) {
			j := Job{State: states[i], Error: "it waits"}
			before := j
			changed, err := test.transition(&j)
			got := letters[j.State]
			switch {
			case errors.Is(err, ErrState):
				got = "x"
			case err != nil:
				t.Errorf("%s a job that is %s: %v", test.name, states[i], err)
			case !changed:
				got = "="
			}
			if got != want {
				t.Errorf("%s a job that is %s: %s, want %s", test.name, states[i], got, want)
			}
			if !changed && !reflect.DeepEqual(j, before) {
				t.Errorf("%s a job that is %s: nothing changed, and it is %+v", test.name, states[i], j)
			}
		}
	}
}

// TestCleanedUp checks that operations which need a job's records are refused during a clean-up.
func TestCleanedUp(t *testing.T) {
	for _, j := range []Job{{State: Failed, Cleaning: "{}"}, {State: Failed, Cleaned: true}} {
		for name, transition := range map[string]func(*Job) error{
			"resume": func(j *Job) error { return j.Resume(0, noon) },
			"retry":  func(j *Job) error { return j.Retry(Selection{}, noon) },
		} {
			one := j
			if err := transition(&one); !errors.Is(err, ErrState) || !reflect.DeepEqual(one, j) {
				t.Errorf("%s: %v, %+v", name, err, one)
			}
		}
	}
	j := Job{State: Aborted, Epoch: 2}
	if changed, err := j.CleanUp("{}"); !changed || err != nil || j.Cleaning != "{}" || !j.Cleaned || j.Epoch != 3 {
		t.Errorf("a clean-up: %v, %v, %+v", changed, err, j)
	}
	if changed, err := j.CleanUp("{}"); changed || err != nil {
		t.Errorf("the same clean-up again: %v, %v", changed, err)
	}
	if _, err := j.CleanUp(`{"job":true}`); !errors.Is(err, ErrState) {
		t.Errorf("another clean-up beside the first: %v", err)
	}
	j.Cleaning, j.Cleaned = "", true
	if changed, err := j.CleanUp(`{"job":true}`); !changed || err != nil || j.Epoch != 4 {
		t.Errorf("another clean-up after the first: %v, %v, %+v", changed, err, j)
	}
}

// TestLimits checks a job that a failure limit has paused. After a Resume, it may have as many
// further failures as before.
func TestLimits(t *testing.T) {
	j := Job{State: Running, Epoch: 2, Limit: 10, LimitStep: 10}
	if j.PauseByLimit(1, "late", new(Totals)) || j.State != Running {
		t.Error("a page of an epoch that is over has paused the job")
	}
	if !j.PauseByLimit(2, "more than 10 entities have failed", new(Totals)) || j.State != Paused || j.Failures != 0 ||
		!strings.Contains(j.Error, "more than 10") {
		t.Errorf("%+v", j)
	}
	if err := j.Resume(13, noon); err != nil || j.Limit != 23 || j.Limited {
		t.Errorf("resumed with 13 failures: %+v, %v", j, err)
	}
	if !j.PauseByLimit(3, "a share", &Totals{Ranges: 5, Failures: 20, Processed: 80}) || j.Failures != 20 ||
		j.Tried != 100 {
		t.Errorf("paused by the share: %+v", j)
	}
	if err := j.Retry(Selection{}, noon); err != nil || j.Limit != 10 || j.Failures != 0 || j.Tried != 0 ||
		!j.Retrying {
		t.Errorf("retried: %+v, %v", j, err)
	}
}

// TestRetryEnds checks that a retry ends only in its own epoch. If the job is paused and resumed
// during the retry, this is the epoch after the Resume.
func TestRetryEnds(t *testing.T) {
	j := Job{State: SucceededWithFailures, Epoch: 1}
	if err := j.Retry(Selection{}, noon); err != nil || !j.Retries(2) || j.Retries(1) || j.MayEnd(2) {
		t.Fatalf("%+v, %v", j, err)
	}
	if _, err := j.Pause(); err != nil || j.Retries(2) || j.EndRetry(2) {
		t.Errorf("paused: %+v, %v", j, err)
	}
	if err := j.Resume(0, noon); err != nil || !j.Retries(3) || j.EndRetry(2) {
		t.Errorf("resumed: %+v, %v", j, err)
	}
	if !j.EndRetry(3) || j.Retrying || j.Epoch != 4 || !j.MayEnd(4) {
		t.Errorf("ended: %+v", j)
	}
}

// TestEnd checks that the task which ends a job gets a new name if it was lost, and that a job can
// fail.
func TestEnd(t *testing.T) {
	j := Job{State: Running, Generation: 2}
	if j.LoseEnd(1) || !j.LoseEnd(2) || j.Generation != 3 || !j.Suspected() {
		t.Errorf("%+v", j)
	}
	j.Fail("gave up", true, noon)
	if j.State != Failed || j.Error != "gave up" || !j.CountersLost || !j.Ended.Equal(rounded) || j.LoseEnd(3) {
		t.Errorf("%+v", j)
	}
}

// TestBeginFinalizer checks when a crash mark (a note of an earlier delivery in the record) counts
// as the death of a process, when the finalizer runs again.
func TestBeginFinalizer(t *testing.T) {
	j := Job{State: Running, Epoch: 1}
	first := CrashMark{Delivery: "a", At: rounded, Task: "t", Quiet: true}
	if j.BeginFinalizer(0, first, rounded, time.Minute) || !j.BeginFinalizer(1, first, rounded, time.Minute) ||
		j.Error == "" {
		t.Fatalf("%+v", j)
	}
	if j.BeginFinalizer(1, first, rounded, time.Minute) {
		t.Error("the same mark twice, as the answer to a commit was lost")
	}
	if paused := (Job{State: Paused, Epoch: 1}); paused.BeginFinalizer(1, first, rounded, time.Minute) {
		t.Error("a paused job starts its finalizer")
	}
	second := first
	second.Delivery, second.At, second.Try = "b", rounded.Add(time.Hour), 1
	if !j.BeginFinalizer(1, second, second.At, time.Minute) || j.Died(second.At.Add(time.Hour)) != 1 {
		t.Errorf("one death: %+v", j)
	}
	j.Error = "the finalizer failed, and is tried again: oh"
	third := second
	third.Delivery, third.Try = "c", 2
	if !j.BeginFinalizer(1, third, second.At.Add(time.Hour), time.Minute) || !strings.Contains(j.Error, "oh") {
		t.Errorf("%+v", j)
	}
}

// TestNeedsBuild checks the job's error after a build without its mapper has received a task, and
// then after a build with it has.
func TestNeedsBuild(t *testing.T) {
	j := Job{State: Running, Mapper: "m"}
	for i, step := range []struct {
		missing, changes bool
		err              string
	}{
		{false, false, ""}, {true, true, waitsForBuild + "m"}, {true, false, waitsForBuild + "m"}, {false, true, ""},
	} {
		if changed := j.NeedsBuild(step.missing); changed != step.changes || j.Error != step.err {
			t.Errorf("step %d: %v, %q", i, changed, j.Error)
		}
	}
	j.Error = "the finalizer failed, and is tried again: oh"
	if j.NeedsBuild(true) || j.NeedsBuild(false) {
		t.Error("it has taken the place of another error")
	}
	j = Job{State: Paused, Mapper: "m"}
	if j.NeedsBuild(true) || j.Error != "" {
		t.Errorf("a paused job has no tasks: %+v", j)
	}
}

// TestAdvanceEpoch checks that AdvanceEpoch raises the epoch. It must also raise the epoch in which
// the finalizer took effect, and change nothing else.
func TestAdvanceEpoch(t *testing.T) {
	for _, before := range []Job{
		{State: Running, Epoch: 3}, {State: Paused, Epoch: 3, Finalizes: true, Finalized: 2},
		{State: Succeeded, Epoch: 3, Finalizes: true, Finalized: 3},
	} {
		for epoch := range int64(7) {
			j, want := before, before
			if epoch == 4 {
				if want.Epoch = epoch; before.Finalized == 3 {
					want.Finalized = epoch
				}
			}
			if changed := j.AdvanceEpoch(epoch); changed != (epoch == 4) || !reflect.DeepEqual(j, want) {
				t.Errorf("epoch %d: changed %v, %+v", epoch, changed, j)
			}
		}
	}
}

// TestMayEnd checks that a job may end only if it runs, is in the given epoch, and has no retry or
// clean-up under way.
func TestMayEnd(t *testing.T) {
	for _, test := range []struct {
		j    Job
		want bool
	}{
		{Job{State: Running, Epoch: 3}, true},
		{Job{State: Running, Epoch: 2}, false},
		{Job{State: Running, Epoch: 4}, false},
		{Job{State: Running, Epoch: 3, Retrying: true}, false},
		{Job{State: Paused, Epoch: 3}, false},
		{Job{State: Running, Epoch: 3, Cleaning: "{}"}, false}, // a clean-up is under way
	} {
		if got := test.j.MayEnd(3); got != test.want {
			t.Errorf("%s in epoch %d, retrying %v: %v", test.j.State, test.j.Epoch, test.j.Retrying, got)
		}
	}
}
