package executor

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// TestLoad checks which deliveries have work, and which answers the queue gets from the others.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name    string
		job     func(j *record.Job)
		r       func(r *record.Range)
		noJob   bool
		noRange bool
		refuse  bool
		queued  tasks.Delivery
		works   bool
		again   bool   // whether the task counts as delivered before
		wrong   string // a part of the error; empty: no error
	}{
		{name: "a range", works: true},
		{name: "a range of the queue", queued: tasks.Delivery{Queue: "projects/test/locations/here/queues/mapper"},
			works: true},
		{name: "of a database without masks", job: func(j *record.Job) { j.Masks = false }, works: true},
		{name: "a range that is done by another task", r: func(r *record.Range) {
			r.Finish(now())
			r.Generation++
		}, works: true},
		{name: "a range of small entities", r: func(r *record.Range) { r.EntitySize = 10 }, works: true},
		{name: "the second attempt", queued: tasks.Delivery{RetryCount: 1}, works: true, again: true},
		{name: "a range that a sweep has found", r: func(r *record.Range) { r.Lost = true }, works: true, again: true},
		{name: "the job is gone", noJob: true},
		{name: "the job and the range are gone", noJob: true, noRange: true},
		{name: "the range is gone", noRange: true, wrong: "there is no range"},
		{name: "the range was cleaned up", noRange: true, job: func(j *record.Job) { j.Cleaned = true }},
		{name: "the job was cleaned up but for this range", job: func(j *record.Job) { j.Cleaned = true }, works: true},
		{name: "the job has moved", job: func(j *record.Job) { j.Queue = record.Owner(w2) }, wrong: "queue"},
		{name: "the database fails", refuse: true, wrong: "load range"},
		{name: "the query can't be read", job: func(j *record.Job) { j.Query = []byte("{") }, wrong: "query"},
		{name: "the strategy can't be read", job: func(j *record.Job) { j.Splitting = []byte("{") },
			wrong: "splitting"},
		{name: "the parameters can't be read", job: func(j *record.Job) { j.Params = json.RawMessage(`"bad"`) },
			wrong: "job j: bad"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := testworld.Mapper("m", function.Update, nil)
				prepare := m.Prepare
				m.Prepare = func(params json.RawMessage, keysOnly bool) (function.Func, error) {
					if string(params) == `"bad"` {
						return nil, errBad
					}
					return prepare(params, keysOnly)
				}
				w := testworld.New(t, 0, m)
				x := New(w.Client, w.Jobs)
				j := w.NewJob("j", "m")
				r := j.RootRange()
				task, err := body.ParseRange(body.TaskOf(r, j).Body)
				if err != nil {
					w.Fatal(err)
				}
				if c.job != nil {
					c.job(j)
				}
				if c.r != nil {
					c.r(r)
				}
				if !c.noJob {
					insert(w, j)
				}
				if !c.noRange {
					if _, err := w.Client.Mutate(w.Context(), r.Insert()); err != nil {
						w.Fatal(err)
					}
				}
				if c.refuse {
					refuse(w, "Lookup", errInjected)
				}
				d, err := x.load(w.Context(), task, c.queued)
				if (d != nil) != c.works || (err != nil) != (c.wrong != "") || err != nil &&
					!strings.Contains(err.Error(), c.wrong) {
					w.Fatalf("%v, %v", d, err)
				}
				if d != nil {
					defer d.ended()
					defer d.planner.Close()
					checkKnown(w, x, j, r)
					if d.state.redelivered != c.again || d.record.Version == 0 || d.job.Version == 0 ||
						d.planner.Source.Counts() != j.Masks {
						w.Errorf("comes again: %v; %+v", d.state.redelivered, d.record)
					}
				}
			})
		})
	}
}

// checkKnown checks what a process knows about a job after load: the job's record, and the average
// size of its entities.
func checkKnown(w *testworld.World, x *Executor, j *record.Job, r *record.Range) {
	w.Helper()
	if fits := x.paces.Get(j.Ref()).Fit(10); fits != (r.EntitySize > 0) {
		w.Errorf("it knows that entities are small: %v", fits)
	}
	refuse(w, "Lookup", errInjected)
	defer w.Intercept(nil)
	if _, err := x.cache.load(w.Context(), x.Store, j.Ref()); err != nil {
		w.Errorf("the job is read again: %v", err)
	}
}

// TestCompletionFails makes the database fail while a delivery checks whether the job is complete.
// The queue must deliver the task again.
func TestCompletionFails(t *testing.T) {
	for _, small := range []bool{true, false} {
		inWorld(t, 5, function.Update, func(c *testworld.Call) error { c.N += 100; return nil },
			func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				r := j.RootRange()
				insert(w, j, r)
				if !small {
					x.cache.at(j.Ref()).pages.Store(fewPages)
				}
				var committed atomic.Bool
				w.Intercept(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
					handler grpc.UnaryHandler) (any,
					error) {
					if committed.Load() {
						return nil, errInjected
					}
					answer, err := handler(ctx, req)
					committed.Store(path.Base(info.FullMethod) == "Commit")
					return answer, err
				})
				err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(r, j).Body})
				w.Intercept(nil)
				if err == nil || w.N(5) != 105 {
					w.Errorf("small %v: %v", small, err)
				}
				if err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(r, j).Body,
					RetryCount: 1}); err != nil {
					w.Error(err)
				}
				time.Sleep(30 * time.Second)
				if got := said(w, "j"); got != "succeeded, 5 processed by 1 pages" {
					w.Errorf("small %v: %s", small, got)
				}
			})
	}
}

// TestSmallJobs checks which jobs end in the delivery of their last page, and which ones need a
// task.
func TestSmallJobs(t *testing.T) {
	for _, small := range []bool{true, false} {
		inWorld(t, 5, function.Update, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			d := loaded(w, x, j, func(r *record.Range) { r.Finish(now()) })
			if x.cache.at(j.Ref()).pages.Store(fewPages - 1); !small {
				x.cache.at(j.Ref()).pages.Store(fewPages)
			}
			created := 0
			on(w, "CreateTask", func(n int, call func() (any, error)) (any, error) { created = n; return call() })
			err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(d.record, j).Body})
			if err != nil || small != (created == 0) {
				w.Errorf("small %v: %d tasks, %v", small, created, err)
			}
			time.Sleep(30 * time.Second)
			if got := w.Job("j"); !got.Over() {
				w.Errorf("small %v: %s", small, got.State)
			}
		})
	}
}

// TestDispatch checks which deliveries measure how fast the queue delivers tasks: the first
// deliveries of tasks for idle workers.
func TestDispatch(t *testing.T) {
	for _, c := range []struct {
		idle  bool
		retry int
		want  bool
	}{{idle: true, want: true}, {idle: true, retry: 1}, {}} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			task := body.TaskOf(j.RootRange(), j)
			if c.idle {
				task = body.TaskForIdle(j.RootRange(), j)
			}
			time.Sleep(time.Minute)
			before := x.dispatch.Takes()
			for range 50 {
				_ = x.Deliver(w.Context(), tasks.Delivery{Body: task.Body, RetryCount: c.retry,
					ScheduleTime: time.Now().Add(-20 * time.Second)})
			}
			if got := x.dispatch.Takes(); (got != before) != c.want {
				w.Errorf("%+v: the queue takes %v, and %v before", c, got, before)
			}
		})
	}
}

// TestSharedReading uses a slow database: each lookup takes longer than a cached record is valid.
// Deliveries that wait for the same read must share its result. A later delivery must read again.
func TestSharedReading(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		insert(w, j)
		var reads atomic.Int64
		on(w, "Lookup", func(_ int, call func() (any, error)) (any, error) {
			reads.Add(1)
			time.Sleep(2 * cachedFor)
			return call()
		})
		begun := time.Now()
		var wait sync.WaitGroup
		for range 5 {
			wait.Go(func() {
				if _, err := x.cache.load(w.Context(), x.Store, j.Ref()); err != nil {
					w.Error(err)
				}
			})
		}
		wait.Wait()
		if took := time.Since(begun); reads.Load() != 1 || took != 2*cachedFor {
			w.Errorf("%d reads in %v", reads.Load(), took)
		}
		if _, err := x.cache.load(w.Context(), x.Store, j.Ref()); err != nil || reads.Load() != 2 {
			w.Errorf("asked later: %d reads, %v", reads.Load(), err)
		}
	})
}

// TestJobCache checks when a process reads a job again, and which record it caches.
func TestJobCache(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		insert(w, j)
		reads := 0
		on(w, "Lookup", func(n int, call func() (any, error)) (any, error) { reads = n; return call() })
		look := func(what string, want int, state record.JobState) {
			w.Helper()
			got, err := x.cache.load(w.Context(), x.Store, j.Ref())
			if err != nil || got.State != state || reads != want {
				w.Errorf("%s: %v, %v after %d reads", what, got, err, reads)
			}
		}
		look("the first time", 1, record.Running)
		time.Sleep(cachedFor - time.Nanosecond)
		look("just before a second is over", 1, record.Running)
		time.Sleep(time.Nanosecond)
		look("after a second", 2, record.Running)
		newer, older := *j, *j
		newer.State, older.State = record.Paused, record.Aborted
		x.cache.note(&newer, time.Now().Add(time.Millisecond))
		x.cache.note(&older, time.Now().Add(-time.Minute))
		look("with what a delivery has read", 2, record.Paused)

		r := x.cache.at(j.Ref())
		_ = r.turn.TryAcquire(1)
		x.cache.note(&older, time.Now().Add(time.Minute)) // while another delivery reads the record
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if _, err := x.cache.load(ctx, x.Store, j.Ref()); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("beside another delivery: %v", err)
		}
		r.turn.Release(1)
		time.Sleep(cachedFor)
		refuse(w, "Lookup", errInjected)
		if got, err := x.cache.load(w.Context(), x.Store, j.Ref()); err == nil || got != nil {
			w.Errorf("the database fails: %v", got)
		}
		w.Intercept(nil)
		on(w, "Lookup", func(n int, call func() (any, error)) (any, error) { reads = n; return call() })
		look("after that", 1, record.Running)

		if x.cache.inUse(j.Ref()) || x.cache.inUse(record.Ref{ID: "unknown"}) || !slices.Contains(keys(x.cache.idle()),
			"j") {
			w.Error("an idle job is in use")
		}
		in := x.cache.enter(j.Ref())
		if !x.cache.inUse(j.Ref()) || slices.Contains(keys(x.cache.idle()), "j") {
			w.Error("a job with a delivery is idle")
		}
		if look, last := x.cache.leave(in, true); !look || !last || in.owed {
			w.Errorf("looks %v, the last %v", look, last)
		}
		if look, _ := x.cache.leave(x.cache.enter(j.Ref()), false); look {
			w.Error("a delivery looks again for completion")
		}
	})
}

func keys(all map[record.Ref]*cachedJob) (ids []string) {
	for ref := range all {
		ids = append(ids, ref.ID)
	}
	return ids
}

// TestKeepsPacesInUse checks that a process does not drop the measured pace of a job that has a
// delivery under way.
func TestKeepsPacesInUse(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		busy, idle := record.Ref{ID: "busy"}, record.Ref{ID: "idle"}
		x.cache.enter(busy)
		x.cache.at(idle)
		for _, ref := range []record.Ref{busy, idle} {
			x.paces.Meter(ref).Ran(1)
		}
		before := x.paces.Meter(busy)
		for i := range 2000 {
			x.paces.Meter(record.Ref{ID: "other", Incarnation: time.Duration(i).String()})
		}
		if x.paces.Meter(busy) != before {
			w.Error("it forgets a job with a delivery")
		}
	})
}

// TestDrainingStartsNothing drains the process before each step of a delivery.
func TestDrainingStartsNothing(t *testing.T) {
	calls := 0
	inWorld(t, 5, function.Update, func(*testworld.Call) error { calls++; return nil },
		func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Budget = []byte(`{"operations":1000000}`)
			d := loaded(w, x, j)
			defer d.planner.Close()
			place, err := x.Gate.Enter(w.Context(), false)
			if err != nil {
				w.Fatal(err)
			}
			d.place = place
			_, _ = x.Gate.Drain(w.Context())
			var made atomic.Int64
			w.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
				error) {
				made.Add(1)
				return handler(ctx, req)
			})
			_, err = d.attempt(w.Context())
			w.Intercept(nil)
			if !errors.Is(err, gate.ErrDraining) || made.Load() > 0 {
				w.Errorf("%v, after %d calls", err, made.Load())
			}
			if _, err := d.processPage(w.Context()); !errors.Is(err, gate.ErrDraining) || calls > 0 {
				w.Errorf("%v, %d calls", err, calls)
			}
			if !x.cache.at(j.Ref()).purse.turn.TryAcquire(1) {
				w.Error("other pages wait for the budget")
			}
		})
}
