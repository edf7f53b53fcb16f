package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// tick returns the n-th tick, which is the planned time of a run.
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

// waitsOf returns err as a [WaitsError], or a zero one if err is another error.
func waitsOf(err error) (w WaitsError) {
	_ = errors.As(err, &w)
	return w
}

// TestTicks checks whether tick 3, the planned time of a run, may start its run in different
// situations. If not, it checks what Wait decides.
func TestTicks(t *testing.T) {
	first := func(t *testing.T, tu Turns) *record.Job { // lets tick 1 start a run
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
		may    string // a part of May's error; empty: the tick may start
		skips  string // what Wait decides if the tick can't wait; empty: it waits
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
				if refused, err := tu.Refuse(t.Context(), tick(3), tick(3)); err != nil || refused != want {
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
					t.Errorf("it starts: %v", err)
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

// TestTickWaits checks a tick, the planned time of a run, that waits for another run to end, and
// then starts its own run.
func TestTickWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tu := turns(newStore(t, nil), false)
		j, err := begin(t, tu, tick(1))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second call changes nothing
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
		// While the second run runs, the first one can't run again.
		_, err = tu.Store.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
			j.State = record.Running
			return true, nil
		})
		if !errors.Is(err, record.ErrState) {
			t.Errorf("a run that had ended goes on beside another: %v", err)
		}
	})
}

// TestReplaces checks that a run may be aborted for a tick, the planned time of the next run, only
// if nothing else prevents that run.
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

// TestScheduleOfNewerBuild checks that, if the last run continues, the record of its schedule is
// not written. A newer build may have stored more in this record, which would be lost.
func TestScheduleOfNewerBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j, err := begin(t, turns(st, false), tick(1))
		if err != nil {
			t.Fatal(err)
		}
		becomes(t, st, j, record.Failed)
		var stored datastore.PropertyList
		if err := st.client.Get(t.Context(), record.ScheduleKey("s"), &stored); err != nil {
			t.Fatal(err)
		}
		stored = append(stored, datastore.Property{Name: "newer", Value: "x", NoIndex: true})
		if _, err := st.client.Put(t.Context(), record.ScheduleKey("s"), &stored); err != nil {
			t.Fatal(err)
		}
		becomes(t, st, j, record.Running)
		var now datastore.PropertyList
		if err := st.client.Get(t.Context(), record.ScheduleKey("s"), &now); err != nil || len(now) != len(stored) {
			t.Errorf("%v, %v, want %v", now, err, stored)
		}
	})
}

// TestDamagedSchedule checks that there is an error, and no decision, if the record of a schedule
// or of its last run can't be decoded.
func TestDamagedSchedule(t *testing.T) {
	damaged := func(name string) datastore.Property { return datastore.Property{Name: name, Value: "x", NoIndex: true} }
	for name, c := range map[string]struct {
		key      *datastore.Key
		property datastore.Property
	}{
		"the schedule": {record.ScheduleKey("s"), damaged("tick")},
		"its run":      {record.JobKey("run-1"), damaged("epoch")},
	} {
		synctest.Test(t, func(t *testing.T) {
			st := newStore(t, nil)
			tu := turns(st, false)
			j, err := begin(t, tu, tick(1))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tu.Wait(t.Context(), tick(2), []byte("what")); err != nil {
				t.Fatal(err)
			}
			var stored datastore.PropertyList
			if err := st.client.Get(t.Context(), c.key, &stored); err != nil {
				t.Fatal(err)
			}
			for i := range stored {
				if stored[i].Name == c.property.Name {
					stored[i] = c.property
				}
			}
			if _, err := st.client.Put(t.Context(), c.key, &stored); err != nil {
				t.Fatal(err)
			}
			if _, err := tu.Read(t.Context()); err == nil {
				t.Errorf("%s is damaged, and read", name)
			}
			if err := tu.May(t.Context(), tick(2)); err == nil || errors.As(err, new(WaitsError)) {
				t.Errorf("%s is damaged, and a tick may start: %v", name, err)
			}
			if refused, err := tu.Refuse(t.Context(), tick(2), tick(2)); err == nil || refused {
				t.Errorf("%s is damaged, and a tick is refused: %v, %v", name, refused, err)
			}
			if err := st.Transact(t.Context(), func(tx *datastore.Transaction) error {
				return tu.Replaces(tx, tick(3), j.Ref())
			}); err == nil || errors.Is(err, record.ErrState) {
				t.Errorf("%s is damaged, and a run may be replaced: %v", name, err)
			}
		})
	}
}

// TestRunOfOthers checks a job that has the ID of a schedule's last run, but is not a run of the
// schedule. It must not prevent the next run.
func TestRunOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		tu := turns(st, false)
		if _, err := begin(t, tu, tick(1)); err != nil {
			t.Fatal(err)
		}
		if err := st.client.Delete(t.Context(), record.JobKey("run-1")); err != nil {
			t.Fatal(err)
		}
		run(t, st, "run-1", func(j *record.Job) { j.Beside = true })
		if _, unfinished, err := Schedule(tu.get(t.Context()), "s"); err != nil || unfinished != nil {
			t.Errorf("%+v, %v", unfinished, err)
		}
		if err := tu.May(t.Context(), tick(2)); err != nil {
			t.Error(err)
		}
	})
}

// TestReplacesOnlyTheLastRun checks that only the schedule's last run may be aborted for a tick,
// the planned time of the next run.
func TestReplacesOnlyTheLastRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tu := turns(newStore(t, nil), true)
		if _, err := begin(t, tu, tick(1)); err != nil {
			t.Fatal(err)
		}
		for _, run := range []record.Ref{{ID: "run-0"}, {ID: "run-1", Incarnation: "another"}} {
			if err := tu.Store.Transact(t.Context(), func(tx *datastore.Transaction) error {
				return tu.Replaces(tx, tick(2), run)
			}); !errors.Is(err, record.ErrState) {
				t.Errorf("%+v: %v", run, err)
			}
		}
	})
}

// TestLaterTickWaits checks that a later tick (the planned time of a run) replaces an earlier one
// that waits for the same run.
func TestLaterTickWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tu := turns(newStore(t, nil), false)
		if _, err := begin(t, tu, tick(1)); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{2, 3} {
			if err := tu.May(t.Context(), tick(n)); err == nil || waitsOf(err).Waits {
				t.Errorf("tick %d waits already: %v", n, err)
			}
			if w, err := tu.Wait(t.Context(), tick(n), []byte("what")); err != nil || w.Became != record.TickQueued {
				t.Errorf("tick %d: %+v, %v", n, w, err)
			}
			if err := tu.May(t.Context(), tick(n)); !waitsOf(err).Waits {
				t.Errorf("tick %d does not wait: %v", n, err)
			}
		}
		s, err := tu.Read(t.Context())
		if err != nil || !s.Has(tick(3)) {
			t.Fatalf("%+v, %v", s, err)
		}
		if past, known := s.Became(tick(2)); !known || past.Outcome != record.TickSkipped {
			t.Errorf("the earlier tick: %+v, %v", past, known)
		}
	})
}

// TestTicksOfOlderBuilds checks ticks (the planned times of runs) for which an older build has
// stored less. A waiting tick gets the names of its locks. A tick without a stored decision counts
// as started if its run exists.
func TestTicksOfOlderBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		tu := turns(st, false)
		j, err := begin(t, tu, tick(1))
		if err != nil {
			t.Fatal(err)
		}
		old := &record.Schedule{Tick: tick(3), Outcome: record.TickQueued, Run: j.ID, Queued: []byte("what"),
			Waits: tick(3)}
		if _, err := st.client.Put(t.Context(), record.ScheduleKey("s"), old); err != nil {
			t.Fatal(err)
		}
		for n, want := range map[int]WaitsError{
			1: {Became: record.TickStarted, Job: "run-1"}, 2: {Became: record.TickSkipped, Job: "run-1"},
			3: {Run: j.Ref()},
		} {
			if got := waitsOf(tu.May(t.Context(), tick(n))); got != want {
				t.Errorf("tick %d: %+v, want %+v", n, got, want)
			}
		}
		if w, err := tu.Wait(t.Context(), tick(3), []byte("other")); err != nil || w.Became != record.TickQueued ||
			w.Job != "run-1" {
			t.Errorf("%+v, %v", w, err)
		}
		if s, err := tu.Read(t.Context()); err != nil || len(s.Slots) != 1 || string(s.Queued) != "what" {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestDecidedTicks checks that the decision on a tick, the planned time of a run, does not change.
// Neither a decision on a later tick may change it, nor Refuse for a tick that does not wait.
func TestDecidedTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tu := turns(newStore(t, nil), false)
		first, err := begin(t, tu, tick(1))
		if err != nil {
			t.Fatal(err)
		}
		if w, err := tu.Wait(t.Context(), tick(2), []byte("what")); err != nil || w.Became != record.TickQueued {
			t.Fatal(w, err)
		}
		if refused, err := tu.Refuse(t.Context(), tick(2), tick(2)); err != nil || !refused {
			t.Fatal(refused, err)
		}
		becomes(t, tu.Store, first, record.Succeeded)
		if _, err := begin(t, tu, tick(3)); err != nil {
			t.Fatal(err)
		}
		for n, want := range map[int]string{1: record.TickStarted, 2: record.TickRefused, 3: record.TickStarted} {
			if refused, err := tu.Refuse(t.Context(), tick(n), tick(n)); err != nil || refused {
				t.Errorf("tick %d is refused: %v, %v", n, refused, err)
			}
			if err := tu.May(t.Context(), tick(n)); waitsOf(err).Became != want {
				t.Errorf("tick %d: %v, want %s", n, err, want)
			}
		}
	})
}

// TestHeldByOneOfKinds checks that a run has to wait for a job that holds a lock on any of its
// kinds.
func TestHeldByOneOfKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tu := turns(newStore(t, nil), false)
		tu.Kinds = []string{"J", "K", "L"}
		holds := run(t, tu.Store, "holds", nil)
		if err := tu.May(t.Context(), tick(1)); waitsOf(err).Held != holds.Ref() {
			t.Errorf("%+v", err)
		}
	})
}

// TestRefuseWithoutAnswer refuses a tick, the planned time of a run, and the answer to the commit
// is lost. Refuse must then read the schedule's record to see whether the commit has taken effect.
func TestRefuseWithoutAnswer(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   bool // whether the commit takes effect
		later   bool // whether a later tick was refused, by an older build that stores no past ticks
		decided bool // whether the tick has stopped waiting
		refuses bool // whether all later calls are also refused
		want    bool
	}{
		{name: "it has taken effect", takes: true, want: true},
		{name: "it has not"},
		{name: "it has not, and the last tick was refused", later: true},
		{name: "the tick was refused before, and nothing can be read", decided: true, refuses: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				loses := new(atomic.Bool)
				st := newStore(t, &emulator.Options{Interceptor: func(
					ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
				) (any, error) {
					_, commits := req.(*pb.CommitRequest)
					if !commits && !c.refuses || !loses.Swap(false) {
						return handler(ctx, req)
					}
					if c.takes {
						_, _ = handler(ctx, req)
					}
					return nil, status.Error(codes.PermissionDenied, "the answer is lost")
				}})
				s := &record.Schedule{Tick: tick(2), Outcome: record.TickQueued, Queued: []byte("what"), Waits: tick(2)}
				switch {
				case c.later:
					s.Tick, s.Outcome = tick(3), record.TickRefused
				case c.decided:
					s.Refuse(tick(2))
				}
				if _, err := st.client.Put(t.Context(), record.ScheduleKey("s"), s); err != nil {
					t.Fatal(err)
				}
				loses.Store(true)
				refused, err := turns(st, false).Refuse(t.Context(), tick(2), tick(2))
				if err == nil || refused != c.want {
					t.Errorf("refused %v, %v", refused, err)
				}
			})
		})
	}
}
