package store

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// tick returns the time of the n-th tick.
func tick(n int) time.Time { return time.Date(2026, 11, 1, n, 0, 0, 0, time.UTC) }

func runID(at time.Time) string { return fmt.Sprintf("run-%d", at.Hour()) }

// turns returns the Turns of schedule "s", whose runs are of mapper "m" over kind "K".
func turns(st Store, jumps bool) Turns {
	return Turns{Store: st, Name: "s", RunID: runID, Jumps: jumps, Mapper: "m", Kinds: []string{"K"}}
}

// begin starts the run of a tick.
func begin(t *testing.T, tu Turns, at time.Time) (*record.Job, error) {
	t.Helper()
	j := &record.Job{ID: runID(at), Mapper: "m", Query: []byte(`{"kind":"K"}`), State: record.Running, Schedule: "s"}
	j.Incarnate(uint64(at.Unix()))
	begin := func(tx *datastore.Transaction) error { return tu.Begin(tx, at, j.ID) }
	return j, tu.Store.Create(t.Context(), j, record.First{}, begin)
}

// TestTicks checks, after different events, whether tick 3 may start its run. If not, it checks
// what Wait decides.
func TestTicks(t *testing.T) {
	first := func(t *testing.T, tu Turns) *record.Job { // tick 1 has started a run
		t.Helper()
		j, err := begin(t, tu, tick(1))
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	waits := func(t *testing.T, tu Turns, n int) {
		t.Helper()
		if w, err := tu.Wait(t.Context(), tick(n), []byte("what")); err != nil || w.Became != record.TickQueued {
			t.Fatalf("tick %d waits: %+v, %v", n, w, err)
		}
	}
	for _, c := range []struct {
		name   string
		jumps  bool
		before func(t *testing.T, tu Turns)
		may    string // the error of May; empty: the tick may start
		skips  string // the decision of Wait if the tick can't wait; empty: none
	}{
		{name: "nothing was before", before: func(*testing.T, Turns) {}},
		{name: "the last run has ended", before: func(t *testing.T, tu Turns) {
			becomes(t, tu.Store, first(t, tu), record.Succeeded)
		}},
		{name: "the last run is gone", before: func(t *testing.T, tu Turns) {
			first(t, tu)
			if err := tu.Store.client.Delete(t.Context(), record.JobKey("run-1")); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "the last run goes on", before: func(t *testing.T, tu Turns) { first(t, tu) },
			may: "job run-1 is unfinished", skips: record.TickSkipped},
		{name: "the last run is paused", before: func(t *testing.T, tu Turns) {
			becomes(t, tu.Store, first(t, tu), record.Paused)
		}, may: "job run-1 is unfinished", skips: record.TickSkipped},
		{name: "the last run goes on, and is to be replaced", jumps: true,
			before: func(t *testing.T, tu Turns) { first(t, tu) }, may: "job run-1 is unfinished"},
		{name: "somebody has started a job by hand", before: func(t *testing.T, tu Turns) {
			run(t, tu.Store, "by-hand", nil)
		}, may: "job by-hand is unfinished", skips: record.TickSkipped},
		{name: "somebody has, which no schedule replaces", jumps: true, before: func(t *testing.T, tu Turns) {
			run(t, tu.Store, "by-hand", nil)
		}, may: "job by-hand is unfinished", skips: record.TickSkipped},
		{name: "another tick waits, whose turn it is", before: func(t *testing.T, tu Turns) {
			j := first(t, tu)
			waits(t, tu, 2)
			becomes(t, tu.Store, j, record.Succeeded)
		}, may: "another tick waits"},
		{name: "another tick waits, and is overtaken", jumps: true, before: func(t *testing.T, tu Turns) {
			j := first(t, tu)
			w := tu
			w.Jumps = false
			waits(t, w, 2)
			becomes(t, tu.Store, j, record.Succeeded)
		}},
		{name: "it was skipped", before: func(t *testing.T, tu Turns) {
			j := first(t, tu)
			if w, err := tu.Wait(t.Context(), tick(3), nil); err != nil || w.Became != record.TickSkipped {
				t.Fatal(w, err)
			}
			becomes(t, tu.Store, j, record.Succeeded)
		}, may: "the tick is skipped", skips: record.TickSkipped},
		{name: "it has started a run", before: func(t *testing.T, tu Turns) {
			if _, err := begin(t, tu, tick(3)); err != nil {
				t.Fatal(err)
			}
		}, may: "the tick is started", skips: record.TickStarted},
		{name: "a later one has started a run", before: func(t *testing.T, tu Turns) {
			if _, err := begin(t, tu, tick(4)); err != nil {
				t.Fatal(err)
			}
		}, may: "the tick is skipped", skips: record.TickSkipped},
		{name: "it has waited, and was refused", before: func(t *testing.T, tu Turns) {
			first(t, tu)
			waits(t, tu, 3)
			for _, want := range []bool{true, false} {
				if refused, err := tu.Refuse(t.Context(), tick(3)); err != nil || refused != want {
					t.Fatal(refused, err)
				}
			}
		}, may: "the tick is refused", skips: record.TickRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tu := turns(newStore(t, nil), c.jumps)
				c.before(t, tu)
				err := tu.May(t.Context(), tick(3))
				if got := fmt.Sprint(err); c.may == "" && err != nil || c.may != "" && (err == nil ||
					got[:min(len(got), len(c.may))] != c.may) {
					t.Errorf("it may start: %v, want %q", err, c.may)
				}
				w, err := tu.Wait(t.Context(), tick(3), nil)
				if err != nil || w.Became != c.skips {
					t.Errorf("it becomes %q, %v, want %q", w.Became, err, c.skips)
				}
				if _, err := begin(t, tu, tick(3)); (err == nil) != (c.may == "") {
					t.Errorf("it begins: %v", err)
				}
				s, err := tu.Read(t.Context())
				if past, known := s.Became(tick(3)); err != nil || c.may == "" && (!known ||
					past.Outcome != record.TickStarted || s.Run != "run-3") {
					t.Errorf("it became %+v, %v, of %+v, %v", past, known, s, err)
				}
			})
		})
	}
}

// TestTickWaits lets a tick wait for a run, and then start its own.
func TestTickWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tu := turns(newStore(t, nil), false)
		j, err := begin(t, tu, tick(1))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // it still waits the second time
			if w, err := tu.Wait(t.Context(), tick(2), []byte("what")); err != nil || w.Became != record.TickQueued ||
				w.Job != "run-1" {
				t.Errorf("%+v, %v", w, err)
			}
		}
		s, err := tu.Read(t.Context())
		if err != nil || !s.Has(tick(2)) || string(s.Queued) != "what" || len(s.Slots) != 1 {
			t.Errorf("%+v, %v", s, err)
		}
		becomes(t, tu.Store, j, record.Succeeded)
		if _, err := begin(t, tu, tick(2)); err != nil {
			t.Errorf("it starts: %v", err)
		}
		// The first run can't go on while the second one does.
		_, err = tu.Store.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
			j.State = record.Running
			return true, nil
		})
		if !errors.Is(err, record.ErrState) {
			t.Errorf("a run that had ended goes on beside another: %v", err)
		}
	})
}

// TestReplaces checks that a run is aborted for a tick only if nothing else is in the way.
func TestReplaces(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, tu Turns, j *record.Job)
		ok     bool
	}{
		{"it is in the way", func(*testing.T, Turns, *record.Job) {}, true},
		{"it has ended", func(t *testing.T, tu Turns, j *record.Job) {
			becomes(t, tu.Store, j, record.Succeeded)
		}, false},
		{"the tick was skipped", func(t *testing.T, tu Turns, _ *record.Job) {
			tu.Jumps = false
			if _, err := tu.Wait(t.Context(), tick(2), nil); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"another job is in the way as well", func(t *testing.T, tu Turns, j *record.Job) {
			becomes(t, tu.Store, j, record.Paused)
			run(t, tu.Store, "by-hand", nil)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tu := turns(newStore(t, nil), true)
				j, err := begin(t, tu, tick(1))
				if err != nil {
					t.Fatal(err)
				}
				c.change(t, tu, j)
				err = tu.Store.Transact(t.Context(), func(tx *datastore.Transaction) error {
					return tu.Replaces(tx, tick(2), j.Ref())
				})
				if (err == nil) != c.ok || err != nil && !errors.Is(err, record.ErrState) {
					t.Error(err)
				}
			})
		})
	}
}
