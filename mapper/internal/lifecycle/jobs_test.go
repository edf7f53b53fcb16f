package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

var errBad = errors.New("bad")

// A world runs jobs without mapper functions: one task processes each range at once. A job has a
// root with the entities 1 to 4, and a range for each entity that fails.
type world struct {
	*testworld.World
	control
	works  bool            // whether tasks end their ranges; otherwise the ranges stay pending
	fails  map[int64]error // the errors of entities, by their IDs
	counts []byte          // counters of each range, as JSON
	done   atomic.Int32    // number of ranges that are done
}

// A control has the methods of Jobs. A world embeds it below World, so World's methods with the
// same names win.
type control struct{ *lifecycle.Jobs }

// inWorld runs a test in a bubble, in a world with a mapper.
func inWorld(t *testing.T, m *function.Definition, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m.Name = "m"
		w := &world{World: testworld.New(t, 0, m), works: true, fails: make(map[int64]error)}
		w.control, w.Range = control{w.World.Jobs}, w.work
		test(w)
	})
}

// work runs the task of a range.
func (w *world) work(ctx context.Context, d tasks.Delivery) error {
	t, err := body.ParseRange(d.Body)
	if err != nil {
		return err
	}
	job, err := w.Store.LoadJob(ctx, t.Ref())
	if err != nil || job.State != record.Running {
		return nil
	}
	if !w.works {
		return errBad
	}
	r, err := w.Store.LoadRange(ctx, t.Ref(), t.Range)
	if err != nil || r.State != record.Pending || r.Generation != t.Generation {
		return err
	}
	o := record.Outcome{Backoff: fault.Backoff{Attempts: 1}, Counters: w.counts}
	ids := []int64{1, 2, 3, 4}
	if r.Alone {
		ids = []int64{r.Start.Key.ID}
	}
	for _, id := range ids {
		at := keyspace.At(testworld.Key(id))
		if o.Done = append(o.Done, at); w.fails[id] != nil {
			o.Failed = append(o.Failed, record.Failure{At: at, Err: w.fails[id], Attempts: 1, Permanent: true})
		} else {
			o.Processed++
		}
	}
	children, _, err := r.Commit(o, time.Now().UTC().Truncate(time.Microsecond))
	if err != nil {
		return err
	}
	all := []*datastore.Mutation{r.Update()}
	for _, child := range children {
		all = append(all, child.Insert())
	}
	if _, err := w.Client.Mutate(ctx, all...); err != nil {
		return err
	}
	w.done.Add(1)
	return w.Complete(ctx, job, false)
}

// want checks the state of the job "j", and further conditions.
func (w *world) want(state record.JobState, what string, is ...bool) {
	w.Helper()
	job := w.Job("j")
	if job.State != state {
		w.Fatalf("%s: the job is %s, want %s: %s", what, job.State, state, job.Error)
	}
	for _, is := range is {
		if !is {
			w.Errorf("%s: %+v", what, job)
		}
	}
}

// must fails the test if err is not nil.
func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// TestControl pauses, resumes, aborts and retries a job in each state.
func TestControl(t *testing.T) {
	pause := func(w *world, ref record.Ref) error { return w.Pause(w.Context(), ref) }
	resume := func(w *world, ref record.Ref) error { return w.Resume(w.Context(), ref) }
	abort := func(w *world, ref record.Ref) error { return w.Abort(w.Context(), ref) }
	retry := func(w *world, ref record.Ref) error { return w.Retry(w.Context(), ref, "") }
	clean := func(w *world, ref record.Ref) error {
		return w.CleanUp(w.Context(), ref, lifecycle.CleanUp{IncludeFailures: true})
	}
	type do = func(*world, record.Ref) error
	for _, c := range []struct {
		name  string
		works bool // whether tasks end their ranges
		fails bool // whether entity 2 fails
		do    []do
		want  record.JobState
		wrong bool // whether the last action is refused
	}{
		{"it runs", false, false, nil, record.Running, false},
		{"it ends", true, false, nil, record.Succeeded, false},
		{"it ends with a failure", true, true, nil, record.SucceededWithFailures, false},
		{"paused", false, false, []do{pause}, record.Paused, false},
		{"paused twice", false, false, []do{pause, pause}, record.Paused, false},
		{"paused and resumed", false, false, []do{pause, resume}, record.Running, false},
		{"resumed while it runs", false, false, []do{resume}, record.Running, false},
		{"aborted", false, false, []do{abort}, record.Aborted, false},
		{"aborted while it is paused", false, false, []do{pause, abort}, record.Aborted, false},
		{"paused after its end", true, false, []do{pause}, record.Succeeded, true},
		{"resumed after it was aborted", false, false, []do{abort, resume}, record.Aborted, true},
		{"retried without a failure", true, false, []do{retry}, record.Succeeded, true},
		{"retried, and it fails again", true, true, []do{retry}, record.SucceededWithFailures, false},
		{"cleaned up while it runs", false, false, []do{clean}, record.Running, true},
		{"cleaned up", true, true, []do{clean}, record.SucceededWithFailures, false},
		{"retried after it was cleaned up", true, true, []do{clean, retry}, record.SucceededWithFailures, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, new(function.Definition), func(w *world) {
				if w.works = c.works; c.fails {
					w.fails[2] = errBad
				}
				j := w.NewJob("j", "m")
				w.Begin(j)
				time.Sleep(time.Minute)
				for i, do := range c.do {
					err := do(w, j.Ref())
					if last := i == len(c.do)-1; (err != nil) != (last && c.wrong) {
						w.Errorf("step %d: %v", i+1, err)
					}
					time.Sleep(10 * time.Minute)
				}
				w.want(c.want, c.name)
			})
		})
	}
}

// TestGoesOn checks that a paused job continues after Resume, and a job with failures after Retry.
func TestGoesOn(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		j := w.NewJob("j", "m")
		w.works = false
		w.Begin(j)
		time.Sleep(time.Minute)
		w.must(w.Pause(w.Context(), j.Ref()))
		w.works, w.fails[2], w.fails[3] = true, errBad, errors.New("other")
		time.Sleep(time.Hour)
		if w.done.Load() > 0 {
			w.Error("a range of a job that is paused was done")
		}
		w.must(w.Resume(w.Context(), j.Ref()))
		time.Sleep(time.Minute)
		w.want(record.SucceededWithFailures, "resumed")
		cause := ""
		for _, r := range w.Records(j) {
			if r.Failed != "" && r.Start.Key.ID == 2 {
				cause = r.Cause()
			}
		}
		clear(w.fails)
		w.must(w.Retry(w.Context(), j.Ref(), cause)) // the cause of one of the two failures
		time.Sleep(10 * time.Minute)
		w.want(record.SucceededWithFailures, "one of two failures was retried")
		w.must(w.Retry(w.Context(), j.Ref(), ""))
		time.Sleep(10 * time.Minute)
		w.want(record.Succeeded, "both were retried")
		if sum, err := w.Job("j").RecordedTotals(); err != nil || sum.Processed != 4 || sum.Failures != 0 {
			w.Errorf("%+v, %v", sum, err)
		}
	})
}

// TestStartAgain starts a job with the ID of an existing job.
func TestStartAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job) // changes the record of the second start
		wrong  error
	}{
		{"the same", func(*record.Job) {}, nil},
		{"with another mapper", func(j *record.Job) { j.Mapper = "other" }, record.ErrOtherArguments},
		{"over another query", func(j *record.Job) { j.Query = []byte(`{"kind":"L"}`) }, record.ErrOtherArguments},
		{"with other parameters", func(j *record.Job) { j.Params = []byte(`{"a":1}`) }, record.ErrOtherArguments},
		{"in other pages, which are no arguments", func(j *record.Job) { j.PageSize = 7 }, nil},
	} {
		inWorld(t, new(function.Definition), func(w *world) {
			j := w.NewJob("j", "m")
			w.Begin(j)
			time.Sleep(time.Minute)
			again := w.NewJob("j", "m")
			c.change(again)
			is, err := w.Start(w.Context(), again, nil, record.First{}, nil)
			if !errors.Is(err, c.wrong) || err == nil && is.Incarnation != j.Incarnation {
				w.Errorf("%s: %v, want %v", c.name, err, c.wrong)
			}
			w.want(record.Succeeded, c.name, w.done.Load() == 1)
		})
	}
}

// TestFinalizer ends jobs whose mapper has a finalizer, and checks the finalizer's effect and the
// job's state.
func TestFinalizer(t *testing.T) {
	fails := 0
	for _, c := range []struct {
		name  string
		fn    func(a *function.Attempt) error
		want  record.JobState
		n     int64 // the value that the finalizer has stored in entity 100; negative: none
		error string
	}{
		{"it puts something", func(a *function.Attempt) error {
			a.Put(testworld.Key(100), &testworld.Thing{N: 7})
			return nil
		},
			record.Succeeded, 7, ""},
		{"it fails twice", func(a *function.Attempt) error {
			a.Put(testworld.Key(100), &testworld.Thing{N: 7})
			if fails++; fails < 3 {
				return errBad
			}
			return nil
		}, record.Succeeded, 7, ""},
		{"its error is permanent", func(a *function.Attempt) error {
			a.Put(testworld.Key(100), &testworld.Thing{N: 7})
			return fault.Permanent(errBad)
		}, record.Failed, -1, "the finalizer failed: bad"},
		{"it always fails", func(*function.Attempt) error { return errBad }, record.Running, -1,
			"the finalizer failed, and is tried again: bad"},
		{"it panics", func(*function.Attempt) error { panic("ouch") }, record.Running, -1, "ouch"},
		{"it takes too long", func(*function.Attempt) error { time.Sleep(time.Hour); return nil }, record.Running, -1,
			"it took more than 30s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &function.Definition{OnDone: func(_ context.Context, a *function.Attempt, j *record.Job,
				sum record.Totals) error {
				if sum.Processed != 4 || j.State != record.Succeeded {
					t.Errorf("it sees %d entities of a job that is %s", sum.Processed, j.State)
				}
				return c.fn(a)
			}}
			inWorld(t, m, func(w *world) {
				w.Begin(w.NewJob("j", "m"))
				time.Sleep(10 * time.Minute)
				w.want(c.want, c.name, strings.Contains(w.Job("j").Error, c.error), w.N(100) == c.n)
				if c.want == record.Running {
					w.must(w.Abort(w.Context(), record.Ref{ID: "j"}))
					time.Sleep(3 * time.Hour)
				}
			})
		})
	}
}

// TestForget ends a job that deletes its records first.
func TestForget(t *testing.T) {
	waits := 0
	m := &function.Definition{Forget: func(_ context.Context, _ *function.Attempt, j *record.Job,
		sum record.Totals) error {
		if sum.Processed != 4 {
			t.Errorf("it sees %d entities", sum.Processed)
		}
		if waits++; waits < 3 {
			return fmt.Errorf("others: %w", lifecycle.ErrWaits)
		}
		return nil
	}}
	inWorld(t, m, func(w *world) {
		j := w.NewJob("j", "m")
		w.Begin(j)
		time.Sleep(30 * time.Minute)
		w.want(record.Succeeded, "it has forgotten", waits == 3, !w.Job("j").Erased.IsZero(), len(w.Records(j)) == 0)
	})
}

// TestCleanUp cleans up an ended job with two records: its root, and one failure.
func TestCleanUp(t *testing.T) {
	for _, c := range []struct {
		name    string
		how     lifecycle.CleanUp
		records int
		gone    bool // whether the job's own record is deleted
		wrong   bool
	}{
		{"all but failures", lifecycle.CleanUp{}, 1, false, false},
		{"failures, too", lifecycle.CleanUp{IncludeFailures: true}, 0, false, false},
		{"the job's own", lifecycle.CleanUp{IncludeJob: true}, 0, true, false},
		{"they expire", lifecycle.CleanUp{IncludeFailures: true, ExpireAfter: time.Hour}, 2, false, false},
		{"they have expired before", lifecycle.CleanUp{ExpireAfter: -1}, 2, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, new(function.Definition), func(w *world) {
				j := w.NewJob("j", "m")
				w.fails[2] = errBad
				w.Begin(j)
				// by then, the guard of the start was delivered, which may leave a record
				time.Sleep(5 * time.Minute)
				w.want(record.SucceededWithFailures, "it ends")
				if err := w.CleanUp(w.Context(), j.Ref(), c.how); (err != nil) != c.wrong {
					w.Fatal(err)
				}
				time.Sleep(30 * time.Minute)
				all := w.Records(j)
				if len(all) != c.records {
					w.Errorf("%d records are there, want %d", len(all), c.records)
				}
				for _, r := range all {
					if r.Expires.IsZero() == (c.how.ExpireAfter > 0) {
						w.Errorf("%s expires at %v", r.ID, r.Expires)
					}
				}
				job, err := w.Store.LoadJob(w.Context(), j.Ref())
				if gone := errors.Is(err, record.ErrNoSuchJob); gone != c.gone {
					w.Fatalf("the job's record is gone: %v, %v", gone, err)
				}
				if c.gone || c.wrong {
					return
				}
				if sum, err := job.RecordedTotals(); err != nil || sum.Processed != 3 || job.Cleaning != "" ||
					!job.Cleaned {
					w.Errorf("%+v, %v, cleaned %v", sum, err, job.Cleaned)
				}
			})
		})
	}
}

// TestLateGuard delivers the guard of a start after the job was deleted. A guard is a sweep that is
// enqueued before a commit. It leaves a record, which belongs to no job. A later job with the same
// ID must have a record of its own.
func TestLateGuard(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		first := w.NewJob("j", "m")
		w.Begin(first)
		time.Sleep(5 * time.Minute)
		w.must(w.CleanUp(w.Context(), first.Ref(), lifecycle.CleanUp{IncludeJob: true}))
		time.Sleep(30 * time.Minute)
		w.must(w.Store.BlockStart(w.Context(), first.Ref(), time.Now()))
		second := w.NewJob("j", "m")
		w.Begin(second)
		time.Sleep(5 * time.Minute)
		for _, r := range w.Records(first) {
			if r.Job != "" || r.Start != nil || r.Expires.IsZero() {
				w.Errorf("the record of the guard is %+v", r)
			}
		}
		w.want(record.Succeeded, "it has its own records", len(w.Records(first)) == 1, len(w.Records(second)) > 0)
	})
}

// TestCleanUpAborted cleans up a job with an open range. The records must be added up before they
// are deleted, and the range's task must not run any more.
func TestCleanUpAborted(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		j := w.NewJob("j", "m")
		w.works = false
		w.Begin(j)
		time.Sleep(time.Minute)
		w.must(w.Abort(w.Context(), j.Ref()))
		w.must(w.CleanUp(w.Context(), j.Ref(), lifecycle.CleanUp{}))
		time.Sleep(30 * time.Minute)
		w.want(record.Aborted, "cleaned up", len(w.Job("j").Totals) > 0, w.Job("j").Cleaning == "",
			len(w.Records(j)) == 0)
	})
}

// TestRetain checks that a job's records are cleaned up some days after its end.
func TestRetain(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		j := w.NewJob("j", "m")
		j.Retain = 50 * 24 * time.Hour
		w.Begin(j)
		time.Sleep(40 * 24 * time.Hour)
		w.want(record.Succeeded, "after 40 days", len(w.Records(j)) == 1)
		w.must(w.Retain(w.Context(), j.Ref(), 60*24*time.Hour))
		time.Sleep(15 * 24 * time.Hour)
		w.want(record.Succeeded, "after 55 days, as it is kept for 60 now", len(w.Records(j)) == 1)
		time.Sleep(6 * 24 * time.Hour)
		w.want(record.Succeeded, "after 61 days", len(w.Records(j)) == 0, w.Job("j").Cleaned)
	})
}

// TestSweeps deletes the task of a range, and then the task that ends the job. A sweep must enqueue
// each of them again. If the sweeps are also deleted, Revive must do so.
func TestSweeps(t *testing.T) {
	for _, revives := range []bool{false, true} {
		inWorld(t, new(function.Definition), func(w *world) {
			j := w.NewJob("j", "m")
			w.works = false
			w.Begin(j)
			time.Sleep(10 * time.Second)
			if w.Change(func() { w.works = true }); revives {
				_, err := w.Tasks.PurgeQueue(w.Context(), &cloudtaskspb.PurgeQueueRequest{Name: w.Queue.Name()})
				w.must(err)
				w.must(w.Revive(w.Context()))
			} else {
				w.must(w.Tasks.DeleteTask(w.Context(), &cloudtaskspb.DeleteTaskRequest{
					Name: w.Queue.Name() + "/tasks/" + body.TaskOf(j.RootRange(), j).ID}))
			}
			time.Sleep(10 * time.Minute)
			w.want(record.Succeeded, "its range's task was lost", w.done.Load() == 1)
			for _, r := range w.Records(j) {
				if !r.Lost || r.Generation == 0 {
					w.Errorf("its task is the first one: %+v", r)
				}
			}
		})
	}
}

// TestAwait checks what Await returns: after the end of a job, for a missing job, and when its
// context ends.
func TestAwait(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		j := w.NewJob("j", "m")
		w.Begin(j)
		lookout, called := w.World.Jobs, 0
		then := func(record.Ref) error { called++; return nil }
		if err := lookout.Await(w.Context(), j.Ref(), then); err != nil || called != 1 {
			w.Errorf("%v, called %d times", err, called)
		}
		if err := lookout.Await(w.Context(), record.Ref{ID: "none"}, then); !errors.Is(err, record.ErrNoSuchJob) {
			w.Errorf("no job: %v", err)
		}
		if err := lookout.Await(w.Context(), j.Ref(), func(record.Ref) error { return errBad }); !errors.Is(err,
			errBad) {
			w.Errorf("what follows fails: %v", err)
		}
		w.works = false
		k := w.NewJob("k", "m")
		w.Begin(k)
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Minute)
		defer cancel()
		if err := lookout.Await(ctx, k.Ref(), then); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("a job that does not end: %v", err)
		}
		if says := lookout.Look(w.Context(), k); !strings.Contains(says, "the queue has tried") {
			w.Errorf("why its tasks do not arrive: %q", says)
		}
	})
}

// TestUndoTakes checks that Undo abandons the open ranges of the undone job.
func TestUndoTakes(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		j := w.NewJob("j", "m")
		w.works = false
		w.Begin(j)
		time.Sleep(time.Minute)
		w.must(w.Abort(w.Context(), j.Ref()))
		w.must(w.Undo(w.Context(), w.Job("j"), "undo-j"))
		for _, r := range w.Records(j) {
			if r.State != record.Abandoned {
				w.Errorf("a range is %s", r.State)
			}
		}
		w.want(record.Aborted, "undone", w.Job("j").Undo == "undo-j")
	})
}
