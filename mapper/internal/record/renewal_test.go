package record

import (
	"errors"
	"reflect"
	"testing"
)

// TestResumeRenews checks which limits a Resume or a Retry renews: only the one that has paused the
// job.
func TestResumeRenews(t *testing.T) {
	resume := func(j *Job) error { return j.Resume(13, noon) }
	retry := func(s Selection) func(*Job) error { return func(j *Job) error { return j.Retry(s, noon) } }
	type limits struct{ limit, failures, tried int64 }
	for _, test := range []struct {
		name       string
		job        Job
		transition func(*Job) error
		want       limits
		spent      float64
		allowance  int64
		retryOf    string
	}{
		{"resume a job that its failure limit has paused",
			Job{State: Paused, Limited: true, Limit: 10, LimitStep: 10}, resume, limits{limit: 23}, 0, 0, ""},
		{"resume a job that an operator has paused",
			Job{State: Paused, Limit: 10, LimitStep: 10}, resume, limits{limit: 10}, 0, 0, ""},
		{"resume a job that the share of failures has paused, without a limit on their number",
			Job{State: Paused, Limited: true, Limit: -1, LimitStep: -1, Failures: 20, Tried: 100}, resume,
			limits{-1, 20, 100}, 0, 0, ""},
		{"resume such a job of a build without a limit on their number",
			Job{State: Paused, Limited: true, Failures: 20, Tried: 100}, resume, limits{0, 20, 100}, 0, 0, ""},
		{"resume a job that its budget has paused",
			Job{State: Paused, OverBudget: true, Spent: 0.9, Allowance: 2}, resume, limits{}, 0, 3, ""},
		{"resume a job whose budget is not spent",
			Job{State: Paused, Spent: 0.9, Allowance: 2}, resume, limits{}, 0.9, 2, ""},
		{"retry all failures", Job{State: SucceededWithFailures, Limit: 30, LimitStep: 10, Failures: 20, Tried: 100},
			retry(Selection{Failed: 25}), limits{limit: 10}, 0, 0, ""},
		{"retry one cause: the other failures do not count", Job{State: SucceededWithFailures, Limit: 30, LimitStep: 10,
			Failures: 20, Tried: 100}, retry(Selection{"timeout", 25}), limits{35, 20, 100}, 0, 0, "timeout"},
		{"retry one cause without a limit", Job{State: SucceededWithFailures, Limit: -1, LimitStep: -1},
			retry(Selection{"timeout", 25}), limits{limit: -1}, 0, 0, "timeout"},
		{"retry one cause of a job of a build without a limit", Job{State: SucceededWithFailures},
			retry(Selection{"timeout", 25}), limits{}, 0, 0, "timeout"},
	} {
		j := test.job
		if err := test.transition(&j); err != nil || j.Limited || j.OverBudget {
			t.Errorf("%s: %v, %+v", test.name, err, j)
		}
		if got := (limits{j.Limit, j.Failures, j.Tried}); got != test.want || j.Spent != test.spent ||
			j.Allowance != test.allowance || j.RetryOf != test.retryOf {
			t.Errorf("%s: %+v, spent %v, allowance %d, of %q", test.name, got, j.Spent, j.Allowance, j.RetryOf)
		}
	}
}

// TestUndoneStays checks that a job can't run again while another job undoes it. A job that deletes
// its own records before it ends can be resumed.
func TestUndoneStays(t *testing.T) {
	for name, c := range map[string]struct {
		job  Job
		want error
	}{
		"a job that is undone": {Job{State: Failed, Undo: "undo-j"}, ErrState},
		"a job that deletes its own records": {Job{State: Paused, Cleaning: "{}", Cleaned: true,
			Closing: []byte("{}")}, nil},
	} {
		j := c.job
		if err := j.Resume(0, noon); !errors.Is(err, c.want) || err != nil && !reflect.DeepEqual(j, c.job) {
			t.Errorf("%s is resumed: %v, %+v", name, err, j)
		}
		j = c.job
		if err := j.Retry(Selection{}, noon); !errors.Is(err, ErrState) || !reflect.DeepEqual(j, c.job) {
			t.Errorf("%s is retried: %v, %+v", name, err, j)
		}
	}
}

// TestPauseByLimit checks that a limit pauses only a running job, and that only a limit on the
// share of failures stores the present numbers as a baseline.
func TestPauseByLimit(t *testing.T) {
	for _, state := range []JobState{Paused, Succeeded, SucceededWithFailures, Failed, Aborted} {
		j := Job{State: state, Epoch: 2, Error: "as before"}
		before := j
		if j.PauseByLimit(2, "more than 10", new(Totals)) || !reflect.DeepEqual(j, before) {
			t.Errorf("a job that is %s: %+v", state, j)
		}
	}
	j := Job{State: Running, Epoch: 2, Failures: 3, Tried: 9}
	if !j.PauseByLimit(2, "more than 10", new(Totals)) || !j.Limited || j.Failures != 3 || j.Tried != 9 {
		t.Errorf("by the number of failures: %+v", j)
	}
}

// TestAbort checks that an aborted job keeps the error with which it failed, but not the reason for
// which it waited.
func TestAbort(t *testing.T) {
	for state, want := range map[JobState][2]string{Running: {"", ""}, Paused: {"", ""}, Failed: {"no", "later"}} {
		j := Job{State: state, Error: "no", Trouble: "later"}
		if changed, err := j.Abort(noon); !changed || err != nil || j.Error != want[0] || j.Trouble != want[1] ||
			!j.Ended.Equal(rounded) || j.Ended.Location() != rounded.Location() {
			t.Errorf("a job that was %s: %v, %+v", state, err, j)
		}
	}
}

// TestEndRetry checks that EndRetry does nothing if no retry is under way.
func TestEndRetry(t *testing.T) {
	j := Job{State: Running, Epoch: 3}
	if j.EndRetry(3) || j.Epoch != 3 {
		t.Errorf("%+v", j)
	}
}
