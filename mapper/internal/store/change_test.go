package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestAsked checks that a call for an operator fails after 20 seconds if the database does not
// answer, and that a task's call waits longer.
func TestAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		st := newStore(t, &emulator.Options{Interceptor: func(
			ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
		) (any, error) {
			if hangs.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return handler(ctx, req)
		}})
		j := run(t, st, "j", nil)
		hangs.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		if _, err := st.Asked().LoadJob(ctx, j.Ref()); err == nil || time.Since(begun) != 20*time.Second {
			t.Errorf("an operator gets an answer after %v: %v", time.Since(begun), err)
		}
		begun = time.Now()
		if _, err := st.LoadJob(ctx, j.Ref()); err == nil || time.Since(begun) < time.Minute {
			t.Errorf("a task gives up after %v: %v", time.Since(begun), err)
		}
	})
}

// TestUpdateOfALaterJob checks that a change applies only to the job that had the ID when UpdateJob
// was called. Another job gets this ID before the transaction is repeated.
func TestUpdateOfALaterJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var replace atomic.Pointer[func()]
		st := newStore(t, &emulator.Options{Interceptor: func(
			ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
		) (any, error) {
			if _, ok := req.(*pb.CommitRequest); ok {
				if do := replace.Swap(nil); do != nil {
					(*do)()
				}
			}
			return handler(ctx, req)
		}})
		run(t, st, "j", nil)
		later := &record.Job{ID: "j", Mapper: "m", Query: []byte(`{"kind":"K"}`), State: record.Running}
		later.Incarnate(99)
		_, err := st.UpdateJob(t.Context(), record.Ref{ID: "j"}, func(j *record.Job) (bool, error) {
			if j.Ref() == later.Ref() {
				t.Error("the later job is changed")
			}
			if j.Failures++; j.Failures == 1 {
				put := func() {
					if _, err := st.client.Put(t.Context(), record.JobKey("j"), later); err != nil {
						t.Error(err)
					}
				}
				replace.Store(&put)
			}
			return true, nil
		})
		if !errors.Is(err, record.ErrNoSuchJob) {
			t.Error(err)
		}
	})
}

// TestTurnsOfRuns checks which changes of a schedule's run depend on the other runs of the
// schedule. Only a change that makes an ended run continue does. The runs take no slots (locks).
func TestTurnsOfRuns(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second record.JobState // states of the two runs
		to            record.JobState // the new state of the first run
		ok            bool
		last          string // the schedule's last run after the change
	}{
		{"it goes on, and the other one runs", record.Failed, record.Running, record.Running, false, "run-2"},
		{"it goes on, and the other one is paused", record.Failed, record.Paused, record.Running, false, "run-2"},
		{"it goes on, and the other one has ended", record.Failed, record.Succeeded, record.Running, true, "run-1"},
		{"it is paused, as it ran beside the other one", record.Running, record.Running, record.Paused, true, "run-2"},
		{"it ends beside the other one", record.Running, record.Running, record.Failed, true, "run-2"},
		{"it is aborted after it has failed, and the other one runs", record.Failed, record.Running, record.Aborted,
			true, "run-2"},
		{"it is aborted after both have ended", record.Failed, record.Succeeded, record.Aborted, true, "run-2"},
		{"it goes on, and the schedule's record is gone", record.Failed, record.Succeeded, record.Running, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				var runs []*record.Job
				for n, state := range []record.JobState{c.first, c.second} {
					runs = append(runs, run(t, st, runID(tick(n+1)), func(j *record.Job) {
						j.State, j.Schedule, j.Beside = state, "s", true
					}))
				}
				s := &record.Schedule{Tick: tick(2), Outcome: record.TickStarted, Run: runs[1].ID}
				if c.last != "" {
					if _, err := st.client.Put(t.Context(), record.ScheduleKey("s"), s); err != nil {
						t.Fatal(err)
					}
				}
				_, err := st.UpdateJob(t.Context(), runs[0].Ref(), func(j *record.Job) (bool, error) {
					j.State = c.to
					return true, nil
				})
				if (err == nil) != c.ok || err != nil && !errors.Is(err, record.ErrState) {
					t.Error(err)
				}
				if s, err := turns(st, false).Read(t.Context()); err != nil || s.Run != c.last {
					t.Errorf("the last run is %q, %v, want %q", s.Run, err, c.last)
				}
			})
		})
	}
}

// TestSlotsOfOthers checks which changes of a job depend on the job that holds its slot, the lock
// of its mapper on a kind. Only a change that makes the job run does.
func TestSlotsOfOthers(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to record.JobState
		ok       bool
	}{
		{"it is resumed", record.Paused, record.Running, false},
		{"it is aborted", record.Paused, record.Aborted, true},
		{"it runs, as an older build has let it", record.Running, record.Running, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStore(t, nil)
				j := run(t, st, "j", nil)
				becomes(t, st, j, record.Paused)
				holds := run(t, st, "holds", nil)
				if c.from != record.Paused {
					j.State = c.from
					if _, err := st.client.Mutate(t.Context(), j.Update()); err != nil {
						t.Fatal(err)
					}
				}
				_, err := st.UpdateJob(t.Context(), j.Ref(), func(j *record.Job) (bool, error) {
					j.State, j.Trouble = c.to, "changed"
					return true, nil
				})
				if held := new(HeldError); c.ok && err != nil || !c.ok && (!errors.As(err, held) ||
					held.Job != holds.Ref()) {
					t.Error(err)
				}
			})
		})
	}
}

// TestSlotOfALaterJob checks that a slot, the lock of a mapper on a kind, is free if the job that
// took it no longer exists. It must be free even if another job with the same ID runs now.
func TestSlotOfALaterJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := run(t, st, "j", nil)
		if err := st.Delete(t.Context(), []*datastore.Key{record.JobKey("j")}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if later := run(t, st, "j", func(j *record.Job) { j.Beside = true }); later.Ref() == j.Ref() {
			t.Fatal("the later job is the same")
		}
		run(t, st, "k", nil)
	})
}

// TestCreated checks that a job's start time is later than everything for which its start has
// waited.
func TestCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStore(t, nil)
		j := &record.Job{ID: "j", Mapper: "m", Query: []byte(`{"kind":"K"}`), State: record.Running,
			Created: time.Now()}
		j.Incarnate(1)
		if err := st.Create(t.Context(), j, record.First{}, func(*datastore.Transaction) error {
			time.Sleep(time.Second)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		now := time.Now().Truncate(time.Microsecond)
		if stored, err := st.LoadJob(t.Context(), j.Ref()); err != nil || !stored.Created.Equal(now) {
			t.Errorf("it was created at %v, %v, want %v", stored.Created, err, now)
		}
	})
}

// TestFoldFew checks which jobs FoldFew adds up: their records must fit in one answer of the
// database, and the limit most must allow this number of records.
func TestFoldFew(t *testing.T) {
	for _, c := range []struct {
		n, most int
		all     bool
	}{
		{9, atOnce, true}, {9, atOnce + 1, true}, {9, atOnce - 1, false}, {atOnce - 2, atOnce, true},
		{atOnce - 1, atOnce, false}, {atOnce + 50, 2 * atOnce, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			st := newStore(t, nil)
			j := run(t, st, "j", nil)
			putRanges(t, st, j, c.n, nil)
			l, all, err := st.FoldFew(t.Context(), j, c.most)
			if err != nil || all != c.all || (l != nil) != c.all {
				t.Errorf("%d records of up to %d: all %v, %v", c.n+1, c.most, all, err)
			}
			if l != nil && (l.Ranges != int64(c.n)+1 || l.Err() != nil) {
				t.Errorf("%d records of %d, %v", l.Ranges, c.n+1, l.Err())
			}
		})
	}
}
