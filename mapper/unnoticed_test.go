package mapper_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// TestNoFailureUnnoticed waits for jobs as a program does that looks at errors only: it learns of
// each job that has not done all of its work, and of no other one. What a client reads of the status
// in JSON says the same.
func TestNoFailureUnnoticed(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, s *mapper.Status, want ...string) {
		t.Helper()
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		sent := new(mapper.Status)
		if err := json.Unmarshal(text, sent); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*mapper.Status{s, sent} {
			err := s.Err()
			if (err != nil) != (len(want) > 0) {
				t.Errorf("a job that is %q: %v", s.State, err)
			}
			for _, part := range want {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("a job that is %q: %v, want %q", s.State, err, part)
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit, addCredit, failing77)
		w.putAccounts(names(500))
		start := func(m, id string, limit int) *mapper.Job {
			job, err := w.engine.StartNamed(t.Context(), m, mapper.Query{Kind: "Account"}, json.RawMessage(`{}`),
				&mapper.StartOptions{ID: id, PageSize: 50, FailureLimit: limit})
			if err != nil {
				t.Fatal(err)
			}
			return job
		}
		wait := func(job *mapper.Job) *mapper.Status {
			s, err := job.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		check(t, wait(start(addCredit.Name(), "good", 0)))
		check(t, wait(start(failing77.Name(), "failures", 0)), "job failures", "5 of its entities", "Job.Retry")
		limited := start(failing77.Name(), "limited", 1)
		s := wait(limited)
		if s.State != mapper.Paused || !s.Limited {
			t.Errorf("a job that its limit has paused: %+v", s)
		}
		check(t, s, "job limited", "paused by a limit", s.Error)

		slow := start(slowCredit.Name(), "slow", 0)
		check(t, w.status(slow))
		time.Sleep(100 * time.Millisecond)
		if err := slow.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.status(slow); s.State != mapper.Paused || s.Limited {
			t.Errorf("a job that somebody has paused: %+v", s)
		}
		check(t, w.status(slow))
		if err := slow.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(t, wait(slow), "job slow", "aborted")
	})
	check(t, &mapper.Status{ID: "j", State: mapper.Failed, Error: "no attempts are left"}, "job j", "no attempts are left")
}

// TestNoProblemUnnoticed has a proof with and without problems say so to who looks at errors only.
func TestNoProblemUnnoticed(t *testing.T) {
	t.Parallel()
	if err := (&mapper.Proof{Ranges: 3, Differences: []string{"other entities"}}).Err(); err != nil {
		t.Errorf("a proof without problems: %v", err)
	}
	err := (&mapper.Proof{Problems: []string{"a gap", "an overlap", "a loss"}}).Err()
	if err == nil || !strings.Contains(err.Error(), "a gap") || !strings.Contains(err.Error(), "2") {
		t.Errorf("a proof with problems: %v", err)
	}
}
