package store

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestSlots starts job "b" while job "a" exists, with the mapper "m" and the kinds "K" and "L". A
// slot is the lock of a mapper on a kind. The start must fail if "b" needs a slot of "a", and "a"
// runs.
func TestSlots(t *testing.T) {
	paused := func(t *testing.T, st Store, a *record.Job) { becomes(t, st, a, record.Paused) }
	for _, c := range []struct {
		name   string
		before func(t *testing.T, st Store, a *record.Job)
		change func(b *record.Job)
		held   bool
	}{
		{name: "of one mapper and kind", held: true},
		{name: "another mapper", change: func(b *record.Job) { b.Mapper = "other" }},
		{name: "another kind", change: func(b *record.Job) { b.Query = []byte(`{"kind":"M"}`) }},
		{name: "one of its kinds", change: func(b *record.Job) { b.Query = []byte(`{"kinds":["A","L"]}`) }, held: true},
		{name: "it may run beside others", change: func(b *record.Job) { b.Beside = true }},
		{name: "the other one is paused", before: paused},
		{name: "the other one has ended", before: func(t *testing.T, st Store, a *record.Job) {
			becomes(t, st, a, record.Succeeded)
		}},
		{name: "the other one is gone", before: func(t *testing.T, st Store, a *record.Job) {
			if err := st.client.Delete(t.Context(), record.JobKey(a.ID)); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "a job of another mapper has its ID", before: func(t *testing.T, st Store, a *record.Job) {
			if err := st.client.Delete(t.Context(), record.JobKey(a.ID)); err != nil {
				t.Fatal(err)
			}
			if _, err := tryRun(t, st, a.ID, func(j *record.Job) { j.Mapper = "other" }); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "the other one goes on", before: func(t *testing.T, st Store, a *record.Job) {
			paused(t, st, a)
			becomes(t, st, a, record.Running)
		}, held: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				a := run(t, st, "a", func(j *record.Job) { j.Query = []byte(`{"kinds":["K","L"]}`) })
				if c.before != nil {
					c.before(t, st, a)
				}
				_, err := tryRun(t, st, "b", c.change)
				var held HeldError
				if errors.As(err, &held) != c.held || (err != nil) != c.held {
					t.Fatal(err)
				}
				if c.held && (held.Job != a.Ref() || held.Mapper != "m" || !errors.Is(err, record.ErrState)) {
					t.Errorf("%+v", held)
				}
				if _, err := st.LoadJob(t.Context(), record.Ref{ID: "b"}); (err == nil) == c.held {
					t.Errorf("the job is there: %v", err)
				}
			})
		})
	}
}

// TestResumeTakesSlots checks that a paused job can't be resumed while another job holds its slot,
// the lock of its mapper on a kind.
func TestResumeTakesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		a := run(t, st, "a", nil)
		becomes(t, st, a, record.Paused)
		b := run(t, st, "b", nil)
		resume := func() error {
			_, err := st.UpdateJob(t.Context(), a.Ref(), func(j *record.Job) (bool, error) {
				j.State = record.Running
				return true, nil
			})
			return err
		}
		if err := resume(); !errors.As(err, new(HeldError)) {
			t.Errorf("while another one runs: %v", err)
		}
		becomes(t, st, b, record.Aborted)
		if err := resume(); err != nil {
			t.Errorf("after its end: %v", err)
		}
	})
}
