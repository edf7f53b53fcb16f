package store

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// undoing returns a function that makes a job the undo of another job.
func undoing(of *record.Job) func(j *record.Job) {
	return func(j *record.Job) {
		j.Mapper = record.UndoPrefix + of.Mapper
		j.Params, _ = json.Marshal(map[string]string{"job": of.ID, "incarnation": of.Incarnation})
		j.Beside = true
	}
}

// TestUndo lets job "u" undo job "j", which has ended. Then it starts a clean-up of "j", or another
// undo of it by job "v".
func TestUndo(t *testing.T) {
	clean := func(j *record.Job) (bool, error) { j.Cleaning = "{}"; return true, nil }
	other := func(j *record.Job) (bool, error) { return record.Undo(j, "v") }
	for _, c := range []struct {
		name   string
		undo   record.JobState // the state of the undo "u"; empty: it was not started
		change func(j *record.Job) (bool, error)
		ok     bool
		holds  bool // whether the clean-up must wait
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

// TestUndoGoesOn resumes a failed undo. This must be refused if the records that it needs are
// deleted. If they are deleted later, the end of the undo must report it.
func TestUndoGoesOn(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job) // changes the record of the undone job
		gone   bool
		ok     bool
		whole  bool // whether the undo has missed no record
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
					// An older build writes without the checks of UpdateJob.
					if _, err := st.client.Mutate(t.Context(), j.Update()); err != nil {
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

// undone returns a store with job "j", which has ended, and its undo "u". The functions may change
// their records first, as an older build could have.
func undone(t *testing.T, j, u func(*record.Job)) (Store, *record.Job, *record.Job) {
	t.Helper()
	st := newStore(t, nil)
	of := run(t, st, "j", func(j *record.Job) { j.State, j.Undo = record.Succeeded, "u" })
	by := run(t, st, "u", undoing(of))
	for job, change := range map[*record.Job]func(*record.Job){of: j, by: u} {
		change(job)
		if _, err := st.client.Mutate(t.Context(), job.Update()); err != nil {
			t.Fatal(err)
		}
	}
	return st, of, by
}

// TestUndoneChanges checks which changes of a job are refused because of its undo: another undo,
// and the start of a clean-up.
func TestUndoneChanges(t *testing.T) {
	trouble := func(j *record.Job) { j.Trouble = "changed" }
	cleans := func(j *record.Job) { j.Cleaning = "{}" }
	cleaned := func(j *record.Job) { j.Cleaned = true }
	forget := func(j *record.Job) { j.Undo = "" }
	other := func(j *record.Job) { j.Undo = "v" }
	nothing := func(*record.Job) {}
	for _, c := range []struct {
		name   string
		j      func(*record.Job) // changes the job's record first
		u      record.JobState   // the state of the undo
		change func(*record.Job)
		want   string // the text of the error; empty: the change is allowed
	}{
		{"it has a trouble, and the undo runs", nothing, record.Running, trouble, ""},
		{"it has a trouble while an older build cleans it up, and the undo runs", cleans, record.Running, trouble, ""},
		{"it forgets its undo, which has ended, after a clean-up", cleaned, record.Succeeded, forget, ""},
		{"it forgets its undo, which runs, after a clean-up", cleaned, record.Running, forget, "job u undoes it"},
		{"it forgets its undo, which has ended", nothing, record.Succeeded, forget, "job u undoes it"},
		{"another one undoes it after a clean-up", cleaned, record.Succeeded, other, "job u undoes it"},
		{"another one undoes it, and the undo runs", nothing, record.Running, other, "job u undoes it"},
		{"a clean-up begins, and the undo runs", nothing, record.Running, cleans, "needs its records"},
	} {
		synctest.Test(t, func(t *testing.T) {
			st, j, _ := undone(t, c.j, func(u *record.Job) { u.State = c.u })
			_, err := st.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
				c.change(j)
				return true, nil
			})
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, record.ErrState) ||
				!strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		})
	}
}

// TestChangesOfAnUndo checks which changes of an undo depend on the undone job. Only a change that
// lets the undo continue does.
func TestChangesOfAnUndo(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to record.JobState
		ok       bool
	}{
		{"it runs on", record.Running, record.Running, true}, {"it is paused", record.Running, record.Paused, true},
		{"it is aborted", record.Failed, record.Aborted, true}, {"it is resumed", record.Failed, record.Running, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			st, _, u := undone(t, func(j *record.Job) { j.Cleaned = true }, func(u *record.Job) { u.State = c.from })
			_, err := st.UpdateJob(t.Context(), u.Ref(), func(j *record.Job) (bool, error) {
				j.State, j.Trouble = c.to, "changed"
				return true, nil
			})
			if (err == nil) != c.ok || err != nil && !errors.Is(err, record.ErrState) {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
}

// TestStartOfAnUndo checks that an undo does not start during a clean-up. A rehearsal must start
// even if the job's record names another undo. A job that is no undo must not be treated as one,
// even if the record has its ID.
func TestStartOfAnUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		cleaning := run(t, st, "cleaning", func(j *record.Job) {
			j.State, j.Undo, j.Cleaning, j.Beside = record.Succeeded, "u", "{}", true
		})
		if _, err := tryRun(t, st, "u", undoing(cleaning)); !errors.Is(err, record.ErrState) {
			t.Errorf("an undo of a job that is being cleaned up: %v", err)
		}
		of := run(t, st, "of", func(j *record.Job) { j.State, j.Undo, j.Beside = record.Succeeded, "v", true })
		rehearse := func(j *record.Job) {
			undoing(of)(j)
			j.Mapper = record.RehearsalPrefix + j.Mapper
		}
		if _, err := tryRun(t, st, "r", rehearse); err != nil {
			t.Errorf("a rehearsal of an undo: %v", err)
		}
		// this job has an ID like an undo's, but is no undo
		v := run(t, st, "v", func(j *record.Job) { j.Beside = true })
		if holds, err := st.HoldsBack(t.Context(), of); err != nil || holds {
			t.Errorf("another job holds a clean-up back: %v, %v", holds, err)
		}
		if _, err := st.UpdateJob(t.Context(), of.Ref(), func(j *record.Job) (bool, error) {
			return j.CleanUp("{}")
		}); err != nil {
			t.Errorf("a clean-up beside another job: %v", err)
		}
		if err := st.Transact(t.Context(), func(tx *datastore.Transaction) error {
			why, err := Incomplete(tx, v)
			return errors.Join(why, err)
		}); err != nil {
			t.Errorf("a job that undoes nothing: %v", err)
		}
	})
}
