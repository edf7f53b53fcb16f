package mapper_test

import (
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

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

const day = 24 * time.Hour

// ranges returns how many records of ranges a job has.
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

// TestRetention has jobs be cleaned up a time after their end, and not before: whoever does nothing
// more, and what each step says then.
func TestRetention(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(300))
		o := &mapper.StartOptions{ID: "j", PageSize: 10, Retain: 40 * day} // the queue takes tasks for 30 days
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
			t.Errorf("%+v, %v", listed, err)
		}

		time.Sleep(39 * day)
		if n := w.ranges("j"); n == 0 {
			t.Fatal("it was cleaned up too early")
		}
		// It goes on: its time begins anew.
		if err := job.Retry(t.Context()); err != nil {
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
			t.Fatal("it was cleaned up too early, behind a retry")
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
			"retry":    func() error { return job.Retry(t.Context()) },
			"failures": func() error { _, _, err := job.FailuresPage(t.Context(), ""); return err },
			"causes":   func() error { _, err := job.FailureCauses(t.Context()); return err },
			"examples": func() error { _, err := job.Examples(t.Context()); return err },
			"verify":   func() error { _, err := job.Verify(t.Context()); return err },
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
			t.Errorf("%+v, %v", acts, err)
		}
	})
}

// TestRetentionOfOtherStates has jobs be aborted while they are paused, set later, cleaned up by
// hand before, and lose all tasks.
func TestRetentionOfOtherStates(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit, failing77)
		w.putAccounts(names(300))
		job := w.startSlow()
		time.Sleep(400 * time.Millisecond) // in the middle: it takes about a second
		if err := job.SetRetain(t.Context(), 8*day); err != nil {
			t.Fatal(err)
		}
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * day) // its sweeps have ended, and a paused job has no end
		if s := w.status(job); !s.CleanUpAt.IsZero() || w.ranges(job.ID) == 0 {
			t.Errorf("a paused job: %+v", s)
		}
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.status(job); !s.CleanUpAt.Equal(s.Ended.Add(8 * day)) {
			t.Errorf("%+v", s)
		}

		// A clean-up by hand that keeps failures: these go when their time has come.
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

		// All tasks are lost, and a revival finds the job.
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
			t.Errorf("%d records are left behind a revival", n)
		}
	})
}

// TestRetentionWaitsForUndo has the time of a job come while it is undone: its records are needed,
// and go a day later.
func TestRetentionWaitsForUndo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(300))
		over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 10, Retain: 8 * day})
		undo, err := w.engine.Job("j").Undo(t.Context(), &mapper.StartOptions{Retain: 30 * day})
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
		time.Sleep(30 * day)
		if n := w.ranges(undo.ID); n != 0 {
			t.Errorf("%d records are left of the undo", n)
		}
	})
}

// TestDefaultRetention has an engine's new jobs be kept as its options say, those of schedules and
// undos, too, and refuses what is too short.
func TestDefaultRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		for _, d := range []time.Duration{1, mapper.MinRetain - 1} {
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
			want(e.Job(fmt.Sprint("j", i)), []time.Duration{10 * day, 0, 20 * day}[i])
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

// TestRetentionOps counts what the clean-up of a retention takes: a read and a delete of each
// record, and a few besides.
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

// TestRetentionStalls stops the process that begins the clean-up of a retention at each of its
// calls, while an operator keeps the records: the clean-up has begun, or they are there a day
// later.
func TestRetentionStalls(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	step := testflag.Size(t, 4, 2, 1)
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
			synctest.Wait() // the operator is done
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
