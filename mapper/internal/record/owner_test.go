package record

import (
	"errors"
	"strings"
	"testing"
)

// TestTakes checks which tasks of a job an engine runs, which ones it ignores, and for which ones
// it returns an error.
func TestTakes(t *testing.T) {
	for _, test := range []struct {
		owner       Owner
		put, engine string
		takes       bool
		astray      bool
	}{
		{"a", "a", "a", true, false},
		{"a", "", "a", true, false},   // an older build has enqueued the task
		{"", "a", "b", true, false},   // an older build has started the job
		{"b", "a", "a", false, false}, // the job was moved away
		{"b", "a", "b", false, false}, // the job was moved here, and both queues deliver to the same URL
		{"a", "a", "b", false, true},  // the queue delivers to a wrong URL
		{"a", "", "b", false, true},
	} {
		takes, err := test.owner.Takes(test.put, test.engine)
		if takes != test.takes || (err != nil) != test.astray || err != nil && !errors.Is(err, ErrOtherQueue) {
			t.Errorf("%+v: %v, %v", test, takes, err)
		}
	}
	if err := Owner("of-job").Is("of-engine"); err == nil || !strings.Contains(err.Error(), "of-job") ||
		!strings.Contains(err.Error(), "of-engine") {
		t.Errorf("%v, want an error that names both", err)
	}
}

// TestMove checks that a moved job with tasks gets new tasks in its new queue. In a job that has
// ended, only the owner changes.
func TestMove(t *testing.T) {
	for _, test := range []struct {
		job  Job
		want int64
	}{
		{Job{State: Running}, 1}, {Job{State: Paused}, 1}, {Job{State: Failed}, 0}, {Job{State: Succeeded}, 0},
		{Job{State: Succeeded, Cleaning: "{}"}, 1}, {Job{State: Running, Queue: "b"}, 0},
	} {
		j := test.job
		if changed := Owner("b").Move(&j); changed != (test.job.Queue != "b") || j.Queue != "b" ||
			j.Epoch != test.want || j.Generation != test.want {
			t.Errorf("%+v becomes %+v", test.job, j)
		}
	}
}

// TestRefuseMoves checks that RefuseMoves changes the job's record, so that the commit of a move
// fails. It must not change it if the job is already in that queue.
func TestRefuseMoves(t *testing.T) {
	j := &Job{Queue: "here"}
	for n := range int64(2) {
		if changed := Owner("there").RefuseMoves(j); !changed || j.RefusedMoves != n+1 || j.Queue != "here" {
			t.Errorf("%v: %+v", changed, j)
		}
	}
	if changed := Owner("here").RefuseMoves(j); changed || j.RefusedMoves != 2 {
		t.Errorf("%v: %+v", changed, j)
	}
}
