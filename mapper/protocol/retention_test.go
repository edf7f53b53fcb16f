package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// failing77 is an Update that fails permanently on the accounts whose names end with 77.
var failing77 = mapper.Update("failing-77",
	func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		if a.Key.Name[len(a.Key.Name)-2:] == "77" {
			return mapper.Permanent(errors.New("no"))
		}
		a.Value.Balance += 10
		return nil
	})

// count returns the number of entities of a kind that have a certain property.
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

// TestCleanUp cleans up a job's records in every way. The job's status must stay. The failures must
// stay unless their deletion is requested. The job's ID must stay taken until its own record is
// deleted.
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
			w.lose("/mapper/cleanup") // a sweep must enqueue the lost tasks again
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
		if _, err := job.Verify(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("verify: %v", err)
		}
		if err := job.Retry(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) {
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
		// The ID can be used again. No name of a task of the old job may block a new task.
		again := over(w, failing77, o)
		if again.Processed != before.Processed || again.Ended.Sub(again.Created) > time.Minute {
			t.Errorf("the next job of that ID: %+v", again)
		}
	})
}

// TestCleanUpOfOtherStates checks that a job that has not ended can't be cleaned up, and that an
// aborted job keeps its numbers after a clean-up.
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

// credited returns how many of n accounts have been credited 10.
func (w *world) credited(n int) (credited int64) {
	w.Helper()
	for i, k := range names(n) {
		if w.account(k).Balance == int64(i)+10 {
			credited++
		}
	}
	return credited
}

// TestCleanUpBeforeAPage cleans up an aborted job while one of its pages still runs. The page takes
// longer than adding up the job's records. It must have no effect, whether its record was deleted
// or has an expiry time.
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

// TestCleanUpBesideAPage cleans up an aborted job while one of its pages ends, at every moment of
// the clean-up. Either the page must be counted, or it must have no effect.
func TestCleanUpBesideAPage(t *testing.T) {
	testflag.Sequential(t)
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
			call := faults.Constant(20 * time.Millisecond)
			slow := faults.New(0, faults.Rule{Kind: faults.SlowCall, Latency: call})
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

// TestNextJob runs a job, deletes all its records, and starts another job with the same ID. No
// record of the first job may be taken for one of the second job.
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
				t.Fatalf("status %+v, %v", s, err)
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
		// A handle of the first job must not affect the second job.
		for what, err := range map[string]error{
			"pause": first.Pause(t.Context()), "resume": first.Resume(t.Context()), "abort": first.Abort(t.Context()),
			"retry":        first.Retry(t.Context(), nil),
			"clean up":     first.CleanUp(t.Context(), nil),
			"set the rate": first.SetRate(t.Context(), mapper.Rate{EntitiesPerSecond: mapper.Unlimited}),
			"status":       errorOf(first.Status(t.Context())), "wait": errorOf(first.Wait(t.Context())),
			"verify": errorOf(first.Verify(t.Context(), nil)),
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

// errorOf returns the error of a call that has two results.
func errorOf[T any](_ T, err error) error { return err }

const day = 24 * time.Hour

// ranges returns the number of records of ranges that a job has.
func (w *world) ranges(id string) (n int) {
	w.Helper()
	var all []datastore.PropertyList
	if _, err := w.client.GetAll(w.Context(), datastore.NewQuery(record.RangeKind), &all); err != nil {
		w.Fatal(err)
	}
	for _, list := range all {
		for _, p := range list {
			if p.Name == "job" && p.Value == id {
				n++
			}
		}
	}
	return n
}

// TestRetention checks that a job is cleaned up when its retention ends, and not earlier, without
// any further call. It also checks what other calls return at that time.
func TestRetention(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(300))
		// longer than the 30 days for which a queue keeps a task
		o := &mapper.StartOptions{ID: "j", PageSize: 10, Retain: 40 * day}
		before, job := over(w, failing77, o), w.engine.Job("j")
		over(w, failing77, &mapper.StartOptions{ID: "kept", PageSize: 10})
		kept := w.ranges("kept")
		if want := before.Ended.Add(40 * day); before.Failures == 0 || !before.CleanUpAt.Equal(want) ||
			before.Settings.Retain != o.Retain {
			t.Fatalf("clean up at %v, want %v: %+v", before.CleanUpAt, want, before)
		}
		listed, _, err := w.engine.JobsPage(t.Context(), nil, "")
		if err != nil || len(listed) != 2 || !listed[1].CleanUpAt.Equal(before.CleanUpAt) ||
			!listed[0].CleanUpAt.IsZero() {
			t.Errorf("the list is %+v, %v", listed, err)
		}

		time.Sleep(39 * day)
		if n := w.ranges("j"); n == 0 {
			t.Fatal("the job was cleaned up too early")
		}
		// A retry continues the job, and its retention starts again at its new end.
		if err := job.Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if s := w.status(job); !s.CleanUpAt.IsZero() {
			t.Errorf("a job that runs will be cleaned up at %v", s.CleanUpAt)
		}
		ended, err := job.Wait(t.Context())
		if err != nil || !ended.CleanUpAt.Equal(ended.Ended.Add(40*day)) {
			t.Fatalf("%+v, %v", ended, err)
		}
		time.Sleep(40*day - time.Hour)
		if n := w.ranges("j"); n == 0 {
			t.Fatal("the job was cleaned up too early after a retry")
		}
		time.Sleep(2 * time.Hour)
		if n := w.ranges("j"); n != 0 {
			t.Errorf("%d records are left", n)
		}
		if n := w.ranges("kept"); n != kept {
			t.Errorf("%d records of %d are left of a job that is kept", n, kept)
		}
		after := w.status(job)
		if after.Processed != ended.Processed || after.Failures != ended.Failures || !after.CleanedUp ||
			after.CleaningUp || !after.CleanUpAt.IsZero() || after.RetiredAt.IsZero() {
			t.Errorf("status %+v", after)
		}
		says := "were cleaned up on " + after.RetiredAt.Format(time.DateOnly) + ", as its retention of 40 days says"
		for what, f := range map[string]func() error{
			"undo":     func() error { _, err := job.Undo(t.Context(), nil); return err },
			"retry":    func() error { return job.Retry(t.Context(), nil) },
			"failures": func() error { _, _, err := job.FailuresPage(t.Context(), ""); return err },
			"causes":   func() error { _, err := job.FailureCauses(t.Context()); return err },
			"examples": func() error { _, err := job.Examples(t.Context()); return err },
			"verify":   func() error { _, err := job.Verify(t.Context(), nil); return err },
			"retain":   func() error { return job.SetRetain(t.Context(), mapper.RetainAlways) },
		} {
			if err := f(); !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", what, err, says)
			}
		}
		if s := over(w, failing77, o); !s.Ended.Equal(ended.Ended) {
			t.Errorf("the same start ran again: %+v", s)
		}
		acts, err := job.History(t.Context())
		if err != nil || acts[len(acts)-1].Action != "cleaned up, as its retention of 40 days says" {
			t.Errorf("history %+v, %v", acts, err)
		}
	})
}

// TestRetentionOfOtherStates checks the retention of special jobs: aborted while paused, with a
// retention that is set later, already cleaned up by a call, and without tasks.
func TestRetentionOfOtherStates(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit, failing77)
		w.putAccounts(names(300))
		job := w.startSlow()
		time.Sleep(400 * time.Millisecond) // the middle of the job, which takes about a second
		if err := job.SetRetain(t.Context(), 8*day); err != nil {
			t.Fatal(err)
		}
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * day) // a paused job has not ended, so its retention has not started
		if s := w.status(job); !s.CleanUpAt.IsZero() || w.ranges(job.ID) == 0 {
			t.Errorf("a paused job: %+v", s)
		}
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.status(job); !s.CleanUpAt.Equal(s.Ended.Add(8 * day)) {
			t.Errorf("status %+v", s)
		}

		// The call of CleanUp keeps the failures. They must be deleted when the retention ends.
		o := &mapper.StartOptions{ID: "by-hand", PageSize: 10, Retain: 9 * day, AllowOverlap: true}
		over(w, failing77, o)
		if err := w.engine.Job("by-hand").CleanUp(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := w.ranges("by-hand"); n != 3 {
			t.Errorf("%d records of 3 failures", n)
		}
		if err := w.engine.Job("by-hand").SetRetain(t.Context(), day); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("a retention of a day: %v", err)
		}
		time.Sleep(8 * day)
		if n := w.ranges(job.ID); n != 0 {
			t.Errorf("%d records are left of an aborted job", n)
		}
		time.Sleep(day)
		if n := w.ranges("by-hand"); n != 0 {
			t.Errorf("%d records are left of failures", n)
		}

		// All tasks are lost. ReviveJobs must find the job.
		over(w, failing77, &mapper.StartOptions{ID: "lost", PageSize: 10, Retain: 8 * day})
		time.Sleep(time.Hour)
		if w.tasks("/mapper/retain") == 0 {
			t.Error("no task waits for the time")
		}
		w.lose("/mapper/retain")
		time.Sleep(9 * day)
		if n := w.ranges("lost"); n == 0 {
			t.Fatal("its task was not lost")
		}
		if err := w.engine.ReviveJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := w.ranges("lost"); n != 0 {
			t.Errorf("%d records are left after a call of ReviveJobs", n)
		}
	})
}

// TestRetentionWaitsForUndo undoes a job, and the job's retention ends during the undo. The undo
// needs the job's records, so they must be deleted a day later.
func TestRetentionWaitsForUndo(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(300))
		over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 10, Retain: 8 * day})
		undo, err := w.engine.Job("j").Undo(t.Context(), &mapper.UndoOptions{Retain: 8 * day})
		if err != nil {
			t.Fatal(err)
		}
		if err := undo.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * day)
		if err := w.engine.ReviveJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := w.ranges("j"); n == 0 {
			t.Fatal("the records were cleaned up that the undo needs")
		}
		if err := undo.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(day + time.Hour)
		if n, left := w.ranges("j"), w.ranges(undo.ID); n != 0 || left == 0 {
			t.Errorf("%d records are left of the job, and %d of its undo", n, left)
		}
		time.Sleep(8 * day)
		if n := w.ranges(undo.ID); n != 0 {
			t.Errorf("%d records are left of the undo", n)
		}
	})
}

// TestDefaultRetention checks that new jobs get the engine's default retention, also runs of
// schedules, and undos. A retention that is too short must be refused.
func TestDefaultRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		for _, d := range []time.Duration{1, mapper.MinRetain - 1, -2, -mapper.MinRetain} {
			if _, err := mapper.NewEngine(w.client, w.queue,
				&mapper.EngineOptions{Mappers: []mapper.AnyMapper{failing77}, Retain: d}); !errors.Is(err,
				mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), "EngineOptions.Retain") {
				t.Errorf("%v: %v", d, err)
			}
			if _, err := failing77.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{Retain: d}); !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), "StartOptions.Retain") {
				t.Errorf("%v: %v", d, err)
			}
		}
		w.putAccounts(names(300))
		e, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{failing77},
			Retain: 10 * day,
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		w.engine, w.handler = e, e.Handler()
		want := func(job *mapper.Job, d time.Duration) {
			t.Helper()
			s, err := job.Wait(t.Context())
			if err != nil || s.Settings.Retain != d {
				t.Errorf("%s is kept for %v, want %v; %v", job.ID, s.Settings.Retain, d, err)
			}
		}
		for i, d := range []time.Duration{0, mapper.RetainAlways, 20 * day} {
			over(w, failing77, &mapper.StartOptions{ID: fmt.Sprint("j", i), Retain: d})
			want(e.Job(fmt.Sprint("j", i)), []time.Duration{10 * day, mapper.RetainAlways, 20 * day}[i])
		}
		undo, err := e.Job("j1").Undo(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		want(undo, 10*day)
		s := mapper.NewSchedule("nightly", failing77, mapper.OverlapSkip)
		ticked, err := s.Tick(t.Context(), e, time.Now(), mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		want(ticked.Job, 10*day)
	})
}

// TestRetentionOps counts the operations of the clean-up at the end of a retention: a read and a
// delete for each record, and a few more.
func TestRetentionOps(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(3000))
		over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 10, Retain: 8 * day})
		time.Sleep(time.Hour)
		n := int64(w.ranges("j"))
		before := w.emulator.Usage()
		time.Sleep(9 * day)
		if left := w.ranges("j"); left != 0 {
			t.Fatalf("%d records are left", left)
		}
		after := w.emulator.Usage()
		if deletes, reads := after.Deletes-before.Deletes, after.Reads-before.Reads; deletes != n || reads < n ||
			reads > n+60 {
			t.Errorf("%d deletes and %d reads for %d records", deletes, reads, n)
		}
		if writes, ops := after.Writes-before.Writes, after.TaskOps-before.TaskOps; writes > 4 || ops > 60 {
			t.Errorf("%d writes, and %d operations of tasks", writes, ops)
		}
	})
}

// TestRetentionStalls stops the process that starts the clean-up at the end of a retention, at each
// of its calls. Meanwhile an operator extends the retention. Then either the clean-up must have
// started, or the records must still exist a day later.
func TestRetentionStalls(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	step := testflag.Size(t, 4, 4, 1)
	for after, reached := rand.IntN(step), true; reached && !t.Failed(); after += step {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, failing77)
			w.putAccounts(names(30))
			job := w.engine.Job("j")
			var kept error
			m := &mishap{after: after, happen: func(*process) {
				kept = job.SetRetain(t.Context(), mapper.RetainAlways)
			}}
			own, stalls := w.handler, newFleetOf(w, queueName, target, 1, 1, failing77).pick().handler
			w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/retain") {
					stalls.ServeHTTP(rw, r.WithContext(m.with(r.Context())))
					return
				}
				own.ServeHTTP(rw, r)
			})
			over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 10, Retain: mapper.MinRetain})
			records := w.ranges("j")
			time.Sleep(mapper.MinRetain + day)
			synctest.Wait() // until the operator's calls have ended
			reached = m.happened
			s, left := w.status(job), w.ranges("j")
			switch {
			case kept == nil && reached && (s.CleanedUp || left != records):
				t.Errorf("at call %d: it is to be kept, and %d of %d records are there: %+v", after, left, records, s)
			case (kept != nil || !reached) && (!s.CleanedUp || left != 0):
				t.Errorf("at call %d: it is due, %v, and %d of %d records are there: %+v", after, kept, left, records,
					s)
			}
		})
	}
}
