package mapper_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// failing7 fails for good on the accounts whose names end with 77.
var failing77 = mapper.Update("failing-77",
	func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		if a.Key.Name[len(a.Key.Name)-2:] == "77" {
			return mapper.Permanent(errors.New("no"))
		}
		a.Value.Balance += 10
		return nil
	})

// count returns how many entities of a kind there are with a property set.
func (w *world) count(kind, property string) (n int) {
	w.Helper()
	var all []datastore.PropertyList
	if _, err := w.client.GetAll(w.Context(), datastore.NewQuery(kind), &all); err != nil {
		w.Fatal(err)
	}
	for _, list := range all {
		for _, p := range list {
			if p.Name == property {
				n++
			}
		}
	}
	return n
}

// TestCleanUp cleans up a job's records in every way: its status stays, its
// failures until they are asked for, and its ID until its own record is gone.
func TestCleanUp(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(3000))
		o := &mapper.StartOptions{ID: "j", PageSize: 10}
		before := over(w, failing77, o)
		job := w.engine.Job("j")
		ranges := w.count(record.RangeKind, "job")
		tidy := func(c *mapper.CleanUpOptions) {
			t.Helper()
			if err := job.CleanUp(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			w.lose("/mapper/cleanup") // the sweep does it, too
			time.Sleep(time.Hour)
		}
		if before.Failures != 30 {
			t.Fatalf("status %+v", before)
		}

		tidy(&mapper.CleanUpOptions{ExpireAfter: 24 * time.Hour})
		if all, expire := w.count(record.RangeKind, "job"), w.count(record.RangeKind, "expires"); all != ranges ||
			expire != all-30 {
			t.Errorf("%d of %d records expire", expire, all)
		}
		tidy(nil)
		if n := w.count(record.RangeKind, "job"); n != 30 {
			t.Errorf("%d records are left of 30 failures", n)
		}
		after := w.status(job)
		if after.State != before.State || after.Processed != before.Processed || after.Tasks != before.Tasks ||
			!after.Ended.Equal(before.Ended) {
			t.Errorf("status %+v, before %+v", after, before)
		}
		if failures, _, err := job.FailuresPage(t.Context(), ""); err != nil || len(failures) != 30 {
			t.Errorf("%d failures, %v", len(failures), err)
		}
		if _, err := job.Verify(t.Context()); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("verify: %v", err)
		}
		if err := job.Retry(t.Context()); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("retry: %v", err)
		}
		if s := over(w, failing77, o); !s.Ended.Equal(before.Ended) {
			t.Errorf("the same start ran again: %+v", s)
		}

		tidy(&mapper.CleanUpOptions{IncludeFailures: true})
		if n := w.count(record.RangeKind, "job"); n != 0 {
			t.Errorf("%d records are left", n)
		}
		tidy(&mapper.CleanUpOptions{IncludeJob: true, ExpireAfter: time.Hour})
		if n := w.count(record.JobKind, "expires"); n != 1 {
			t.Errorf("%d records of jobs expire", n)
		}
		tidy(&mapper.CleanUpOptions{IncludeJob: true})
		if err := job.CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("a job that is gone: %v", err)
		}
		// Its ID is free, and none of its names is in the way.
		again := over(w, failing77, o)
		if again.Processed != before.Processed || again.Ended.Sub(again.Created) > time.Minute {
			t.Errorf("the next job of that ID: %+v", again)
		}
	})
}

// TestCleanUpOfOtherStates refuses to clean up what has not ended, and keeps the
// numbers of what was aborted.
func TestCleanUpOfOtherStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit)
		w.putAccounts(names(1000))
		job := w.startSlow()
		time.Sleep(time.Second)
		if err := job.CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("of a job that runs: %v", err)
		}
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := job.CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("of a paused job: %v", err)
		}
		if n := w.count(record.RangeKind, "expires") + w.count(record.JobKind, "expires"); n > 0 {
			t.Errorf("%d records of a paused job expire", n)
		}
		if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{ExpireAfter: -1}); !errors.Is(err,
			mapper.ErrInvalidArgument) {
			t.Errorf("a negative time: %v", err)
		}
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := job.CleanUp(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if s := w.status(job); s.State != mapper.StateAborted || s.Processed == 0 || s.Processed != w.credited(1000) ||
			s.OpenRanges == 0 {
			t.Errorf("%d accounts were credited, status %+v", w.credited(1000), s)
		}
		if n := w.count(record.RangeKind, "job"); n > 0 {
			t.Errorf("%d records are left", n)
		}
	})
}

// credited returns how many of n accounts have 10 more than at first.
func (w *world) credited(n int) (credited int64) {
	w.Helper()
	for i, k := range names(n) {
		if w.account(k).Balance == int64(i)+10 {
			credited++
		}
	}
	return credited
}

// TestCleanUpBeforeAPage cleans up an aborted job while a page is under way, for longer than it
// takes to add up the records: the page takes no effect, whether its record is gone or expires.
func TestCleanUpBeforeAPage(t *testing.T) {
	t.Parallel()
	for name, expire := range map[string]time.Duration{"gone": 0, "expires": 1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := mapper.Update("long", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
					if a.Key.Name == "user-0000017" {
						time.Sleep(20 * time.Second)
					}
					a.Value.Balance += 10
					return nil
				})
				w := newWorld(t, setting{queue: few(40)}, m)
				w.putAccounts(names(200))
				job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
					&mapper.StartOptions{ID: "j", PageSize: 10})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				if err := job.Abort(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{ExpireAfter: expire}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				if s := w.status(job); s.State != mapper.StateAborted || s.Processed == 0 ||
					s.Processed != w.credited(200) || s.OpenRanges != 1 {
					t.Errorf("%d accounts were credited, status %+v", w.credited(200), s)
				}
				if all, expiring := w.count(record.RangeKind, "job"), w.count(record.RangeKind,
					"expires"); all != expiring || expire == 0 && all > 0 {
					t.Errorf("%d records are left, and %d expire", all, expiring)
				}
			})
		})
	}
}

// TestCleanUpBesideAPage cleans up an aborted job while a page ends, at every moment of the
// clean-up: the page is counted, or takes no effect.
func TestCleanUpBesideAPage(t *testing.T) {
	t.Parallel()
	committed, refused := 0, 0
	for ends := time.Duration(0); ends < 300*time.Millisecond; ends += 10 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			cleaning := make(chan struct{})
			m := mapper.Update("late", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				if a.Key.Name == "user-0000017" {
					<-cleaning
					time.Sleep(ends)
				}
				a.Value.Balance += 10
				return nil
			})
			call := emulator.Constant(20 * time.Millisecond)
			slow := emulator.NewFaults(0, emulator.Fault{Kind: emulator.SlowCall, Latency: call})
			w := newWorld(t, setting{queue: few(10), emulator: emulator.Options{Faults: slow}}, m)
			w.putAccounts(names(30))
			o := &mapper.StartOptions{ID: "j", PageSize: 10}
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, o)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if err := job.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
			close(cleaning)
			if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{ExpireAfter: 1000 * time.Hour}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			s, credited := w.status(job), w.credited(30)
			if s.Processed != credited {
				t.Errorf("a page that ends %v later: %d accounts were credited, status %+v", ends, credited, s)
			}
			if credited > 20 {
				committed++
			} else {
				refused++
			}
		})
	}
	if t.Logf("%d pages were committed, and %d refused", committed, refused); committed == 0 || refused == 0 {
		t.Errorf("%d pages were committed, and %d refused: no moment between is tried", committed, refused)
	}
}

// TestNextJob runs a job, cleans it up with its record, and starts another under its ID: nothing
// of the one is taken for the other's.
func TestNextJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := make(map[string]int)
		m := mapper.Visit("send", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			runs[a.IdempotencyKey()]++
			if a.Key.Name == "user-0000077" {
				return mapper.Permanent(errors.New("no"))
			}
			return nil
		})
		w := newWorld(t, setting{queue: few(1)}, m)
		w.putAccounts(names(100))
		start := func() *mapper.Job {
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "nightly"})
			if err != nil {
				t.Fatal(err)
			}
			if s, err := job.Wait(t.Context()); err != nil || s.Processed != 99 {
				t.Fatalf("%+v, %v", s, err)
			}
			return job
		}
		first := start()
		if err := first.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "nightly"}); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("a start under the ID of a job that is about to go: %v, want one that says so", err)
		}
		time.Sleep(time.Hour)
		start()
		for key, n := range runs {
			if n != 1 {
				t.Errorf("the idempotency key %s came %d times", key, n)
			}
		}
		if len(runs) != 200 {
			t.Errorf("%d idempotency keys of two jobs over 100 entities", len(runs))
		}
		// The handle of the first job does nothing to the second.
		for what, err := range map[string]error{
			"pause": first.Pause(t.Context()), "resume": first.Resume(t.Context()), "abort": first.Abort(t.Context()),
			"retry":        first.Retry(t.Context()),
			"clean up":     first.CleanUp(t.Context(), nil),
			"set the rate": first.SetRate(t.Context(), mapper.Rate{EntitiesPerSecond: mapper.Unlimited}),
			"status":       errorOf(first.Status(t.Context())), "wait": errorOf(first.Wait(t.Context())),
			"verify": errorOf(first.Verify(t.Context())),
		} {
			if !errors.Is(err, mapper.ErrNoSuchJob) {
				t.Errorf("%s by the handle of a job that is gone: %v", what, err)
			}
		}
		if _, _, err := first.FailuresPage(t.Context(), ""); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("failures of a job that is gone: %v", err)
		}
		if s := w.status(w.engine.Job("nightly")); s.State != mapper.StateSucceededWithFailures || s.Processed != 99 {
			t.Errorf("status %+v", s)
		}
	})
}

// errorOf returns the error of a call.
func errorOf[T any](_ T, err error) error { return err }
