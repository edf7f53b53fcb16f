package store

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// undoing makes a job the undo of another job.
func undoing(of *record.Job) func(j *record.Job) {
	return func(j *record.Job) {
		j.Mapper = record.UndoPrefix + of.Mapper
		j.Params, _ = json.Marshal(map[string]string{"job": of.ID, "incarnation": of.Incarnation})
		j.Beside = true
	}
}

// TestUndo undoes job "j", which has ended, by job "u". Then it cleans "j" up, or undoes it by job
// "v".
func TestUndo(t *testing.T) {
	clean := func(j *record.Job) (bool, error) { j.Cleaning = "{}"; return true, nil }
	other := func(j *record.Job) (bool, error) { return record.Undo(j, "v") }
	for _, c := range []struct {
		name   string
		undo   record.JobState // the state of job "u"; empty: it was not started
		change func(j *record.Job) (bool, error)
		ok     bool
		holds  bool // a clean-up must wait
	}{
		{name: "a clean-up, and there is no undo", change: clean, ok: true},
		{name: "a clean-up while the undo runs", undo: record.Running, change: clean, holds: true},
		{name: "a clean-up while the undo is paused", undo: record.Paused, change: clean, holds: true},
		{name: "a clean-up after the undo has failed", undo: record.Failed, change: clean, holds: true},
		{name: "a clean-up after the undo", undo: record.Succeeded, change: clean, ok: true},
		{name: "another undo, and there is no undo", change: other, ok: true},
		{name: "another undo while one runs", undo: record.Running, change: other, holds: true},
		{name: "another undo after one has succeeded", undo: record.Succeeded, change: other},
		{name: "another undo after one was aborted", undo: record.Aborted, change: other, ok: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				j := run(t, st, "j", nil)
				note := func() (*record.Job, error) {
					return st.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
						return record.Undo(j, "u")
					})
				}
				if _, err := note(); !errors.Is(err, record.ErrState) {
					t.Errorf("the job runs, and is undone: %v", err)
				}
				becomes(t, st, j, record.Succeeded)
				if _, err := tryRun(t, st, "u", undoing(j)); !errors.Is(err, record.ErrState) {
					t.Errorf("an undo starts that the job does not name: %v", err)
				}
				noted, err := note()
				if err != nil {
					t.Fatal(err)
				}
				if c.undo != "" {
					becomes(t, st, run(t, st, "u", undoing(j)), c.undo)
				}
				if holds, err := st.HoldsBack(t.Context(), noted); err != nil || holds != c.holds {
					t.Errorf("it holds a clean-up back: %v, %v", holds, err)
				}
				if _, err := st.UpdateJob(t.Context(), j.Ref(), c.change); (err == nil) != c.ok || err != nil &&
					!errors.Is(err, record.ErrState) {
					t.Error(err)
				}
			})
		})
	}
}

// TestUndoGoesOn continues a failed undo, unless the records that it needs are gone. If they went
// meanwhile, its end says so.
func TestUndoGoesOn(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job) // applied to the job that is undone
		gone   bool
		ok     bool
		whole  bool // no record was missed
	}{
		{name: "all is there", change: func(*record.Job) {}, ok: true, whole: true},
		{name: "a clean-up waits for it", change: func(j *record.Job) { j.Cleaning = "{}" }, ok: true},
		{name: "it was cleaned up", change: func(j *record.Job) { j.Cleaned = true }},
		{name: "another undo took its place", change: func(j *record.Job) { j.Undo = "v" }, whole: true},
		{name: "the job is gone", gone: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				j := run(t, st, "j", func(j *record.Job) { j.State, j.Undo = record.Succeeded, "u" })
				u := run(t, st, "u", undoing(j))
				becomes(t, st, u, record.Failed)
				if c.gone {
					if err := st.client.Delete(t.Context(), record.JobKey("j")); err != nil {
						t.Fatal(err)
					}
				} else {
					c.change(j)
					if _, err := st.client.Mutate(t.Context(), j.Update()); err != nil { // as an older build does
						t.Fatal(err)
					}
				}
				_, err := st.UpdateJob(t.Context(), u.Ref(), func(j *record.Job) (bool, error) {
					j.State = record.Running
					return true, nil
				})
				if (err == nil) != c.ok || err != nil && !errors.Is(err, record.ErrState) {
					t.Error(err)
				}
				if err := st.Transact(t.Context(), func(tx *datastore.Transaction) error {
					why, err := Incomplete(tx, u)
					if (why == nil) != c.whole {
						t.Errorf("it is incomplete: %v", why)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
