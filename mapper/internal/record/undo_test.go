package record

import (
	"errors"
	"testing"
)

// TestUndone checks which job an undo undoes, and which undos are only rehearsals.
func TestUndone(t *testing.T) {
	of := []byte(`{"Job":"j","Incarnation":"i"}`)
	undone := &Job{ID: "j", Incarnation: "i", Undo: "undo-j"}
	for name, c := range map[string]struct {
		j            Job
		ref          Ref
		takes, named bool
	}{
		"an undo":      {Job{ID: "undo-j", Mapper: "undo:touch", Params: of}, Ref{"j", "i"}, true, true},
		"another undo": {Job{ID: "undo-2", Mapper: "undo:touch", Params: of}, Ref{"j", "i"}, true, false},
		"a rehearsal of an undo": {Job{ID: "undo-j", Mapper: "rehearsal:undo:touch", Params: of},
			Ref{"j", "i"}, false, false},
		"a job with the same parameters": {Job{ID: "undo-j", Mapper: "touch", Params: of}, Ref{}, false, false},
		"an undo that can't be read": {Job{ID: "undo-j", Mapper: "undo:touch", Params: []byte("{")},
			Ref{}, false, false},
		"an undo of an earlier job": {Job{ID: "undo-j", Mapper: "undo:touch", Params: []byte(`{"Job":"j",` +
			`"Incarnation":"h"}`)},
			Ref{"j", "h"}, true, false},
		"an undo of a job of another ID": {Job{ID: "undo-j", Mapper: "undo:touch", Params: []byte(`{"Job":"k",` +
			`"Incarnation":"i"}`)},
			Ref{"k", "i"}, true, false},
	} {
		if ref, takes := c.j.Undone(); ref != c.ref || takes != c.takes {
			t.Errorf("%s: it undoes %v, %v", name, ref, takes)
		}
		if got := Undoes(&c.j, undone); got != c.named {
			t.Errorf("%s: it is the undo of the job: %v", name, got)
		}
		c.j.State, c.j.Version = Running, 1
		if got := c.j.EndsAtOnce(); got != (c.ref.ID == "") {
			t.Errorf("%s: it ends at once: %v", name, got)
		}
	}
}

// TestUndoOf checks which jobs can be undone, and while which undos they must keep their records.
func TestUndoOf(t *testing.T) {
	for _, test := range []struct {
		j          Job
		may, keeps bool
	}{
		{Job{State: Running}, false, true},
		{Job{State: Paused}, false, true},
		{Job{State: Failed}, true, true}, // a failed undo may be resumed
		{Job{State: Aborted}, true, false},
		{Job{State: Succeeded}, true, false},
		{Job{State: SucceededWithFailures}, true, false},
		{Job{State: Succeeded, Cleaned: true}, false, false},
		{Job{State: Succeeded, Cleaning: "{}"}, false, false},
	} {
		j := test.j
		if changed, err := Undo(&j, "undo-1"); changed != test.may || test.may == errors.Is(err, ErrState) ||
			(j.Undo == "undo-1") != test.may {
			t.Errorf("%+v: undone %v, %v", test.j, changed, err)
		}
		if changed, err := Undo(&j, "undo-1"); changed || test.may != (err == nil) {
			t.Errorf("%+v: undone again %v, %v", test.j, changed, err)
		}
		if changed, _ := Undo(&j, "undo-2"); changed != test.may {
			t.Errorf("%+v: undone by another undo: %v", test.j, changed)
		}
		if got := test.j.NeedsUndone(); got != test.keeps {
			t.Errorf("an undo that is %s needs the job: %v", test.j.State, got)
		}
	}
}
