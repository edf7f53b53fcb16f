package record

import (
	"errors"
	"strings"
	"testing"
)

// TestTakes checks which tasks of a job an engine runs, which are superseded, and which are errors.
func TestTakes(t *testing.T) {
	for _, test := range []struct {
		owner       Owner
		put, engine string
		takes       bool
		astray      bool
	}{
		{"a", "a", "a", true, false},
		{"a", "", "a", true, false},   // enqueued by an older build
		{"", "a", "b", true, false},   // the job was started by an older build
		{"b", "a", "a", false, false}, // moved away
		{"b", "a", "b", false, false}, // moved here, and the old queue has the same target
		{"a", "a", "b", false, true},  // the URL is wrong
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

// TestMove checks that a moved job with tasks gets new ones in its new queue. A job that has ended
// is not changed otherwise.
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

// TestRefuseMoves checks that RefuseMoves changes the job, so that the move under way fails, unless
// the job is in that queue already.
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
