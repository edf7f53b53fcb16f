package executor

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// TestEndFails makes the database fail after a range was done: while a job with too many counters
// is ended, and while the job's failures are counted. The delivery must not count the range as
// ended.
func TestEndFails(t *testing.T) {
	for _, c := range []struct {
		name, method string
		change       func(d *delivery)
		ended, wrong bool
	}{
		{name: "nothing", ended: true},
		{name: "too many counters", method: "Commit", change: func(d *delivery) { d.state.over = true }, wrong: true},
		{name: "a failure", method: "RunQuery", change: func(d *delivery) { d.record.Recorded = 1 }, wrong: true},
		{name: "a failure of its own", method: "RunQuery", change: func(d *delivery) { d.record.Failed = "j" },
			wrong: true},
	} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Limit = 5
			d := loaded(w, x, j, func(r *record.Range) { r.Finish(now()) })
			if c.change != nil {
				c.change(d)
				refuse(w, c.method, errInjected)
			}
			if ended, err := d.runRange(w.Context()); ended != c.ended || (err != nil) != c.wrong || d.state.over {
				w.Errorf("%s: ended %v, %v", c.name, ended, err)
			}
			w.Intercept(nil)
		})
	}
}

// TestOneDelivery checks that a job for one worker needs only one task.
func TestOneDelivery(t *testing.T) {
	inWorld(t, 35, function.Update, func(*testworld.Call) error { return nil },
		func(w *testworld.World, x *Executor) {
			deliveries := 0
			w.Range = func(ctx context.Context, queued tasks.Delivery) error {
				deliveries++
				return x.Deliver(ctx, queued)
			}
			w.Begin(w.NewJob("j", "m"))
			time.Sleep(30 * time.Second)
			got := said(w, "j")
			if synctest.Wait(); got != "succeeded, 35 processed by 4 pages" || deliveries != 1 {
				w.Errorf("%s, in %d deliveries", got, deliveries)
			}
		})
}

// TestLeavesEarly checks that a delivery leaves the gate before it enqueues tasks.
func TestLeavesEarly(t *testing.T) {
	inWorld(t, 5, function.Update, func(c *testworld.Call) error {
		if c.ID == 3 {
			return errBad
		}
		return nil
	}, func(w *testworld.World, x *Executor) {
		take(w)
		d := loaded(w, x, w.NewJob("j", "m"))
		defer d.planner.Close()
		created := 0
		on(w, "CreateTask", func(n int, call func() (any, error)) (any, error) {
			created = n
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			place, err := x.Gate.Enter(ctx, true)
			if err != nil {
				w.Errorf("other tasks wait: %v", err)
			} else {
				place.Leave()
			}
			return call()
		})
		if ended, err := d.runRange(w.Context()); err != nil || !ended || created == 0 {
			w.Errorf("ended %v, %v, %d tasks", ended, err, created)
		}
		w.Intercept(nil)
	})
}

// TestPausedReturnsBudget pauses a job during its page. The process must return the unspent part of
// the budget.
func TestPausedReturnsBudget(t *testing.T) {
	var w *testworld.World
	var j *record.Job
	inWorld(t, 25, function.Update, func(c *testworld.Call) error {
		if c.ID != 5 {
			return nil
		}
		defer time.Sleep(2 * cachedFor)
		return w.Jobs.Pause(context.WithoutCancel(c), j.Ref())
	}, func(world *testworld.World, x *Executor) {
		w, j = world, world.NewJob("j", "m")
		j.Budget, j.Concurrent = []byte(`{"operations":1000000}`), 10
		d := loaded(w, x, j)
		if err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(d.record, j).Body}); err != nil {
			w.Error(err)
		}
		if left := x.cache.at(j.Ref()).purse.left; left != 0 || w.Job("j").State != record.Paused {
			w.Errorf("%s, %v is left", w.Job("j").State, left)
		}
	})
}

// TestRunRange checks deliveries whose predecessors may have died: whether the range has ended, and
// that no crash mark (record.CrashMark) remains.
func TestRunRange(t *testing.T) {
	pause := func(w *testworld.World, d *delivery) {
		if err := w.Jobs.Pause(w.Context(), d.job.Ref()); err != nil {
			w.Fatal(err)
		}
		time.Sleep(2 * cachedFor)
	}
	for _, c := range []struct {
		name   string
		rate   bool
		fail   error
		before func(w *testworld.World, d *delivery)
		ended  bool
		wrong  bool
		state  record.JobState
	}{
		{name: "all is well", ended: true},
		{name: "the database fails", before: func(w *testworld.World, _ *delivery) {
			refuse(w, "RunQuery",
				errInjected)
		},
			wrong: true},
		{name: "the job is paused", rate: true, before: pause, state: record.Paused},
		{name: "the range has another task", before: func(w *testworld.World, d *delivery) {
			update(w, d.record, func(r *record.Range) { r.Generation++ })
		}},
		{name: "another delivery has done the range", before: func(w *testworld.World, d *delivery) {
			update(w, d.record, func(r *record.Range) { r.Finish(now()) })
		}, ended: true},
		{name: "the function is at fault", fail: fault.Fatal(errBad), state: record.Failed},
		{name: "the page is tried again", fail: fault.Refusal{Summary: "refused", Cause: errBad}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inPages(t, 5, func(context.Context, *function.Attempt, string, []int64) error {
				if c.fail != nil && fault.IsFatal(c.fail) {
					return fault.Permanent(errBad)
				}
				return c.fail
			}, func(w *testworld.World, x *Executor) {
				got, j := take(w), w.NewJob("j", "m")
				if c.rate {
					j.Rate = []byte(`{"entities":100}`)
				}
				r := j.RootRange()
				child := r.Child(split.Piece{Start: at(6)[0]}, now())
				r.Cut, r.End = true, child.Start
				insert(w, j, r, child) // the stored child may have no task
				d := load(w, x, j, r, tasks.Delivery{RetryCount: 1, TaskID: "t"})
				defer d.planner.Close()
				if c.before != nil {
					c.before(w, d)
				}
				ended, err := d.runRange(w.Context())
				w.Intercept(nil)
				if c.state == "" {
					c.state = record.Running
				}
				job, stored := w.Job("j"), w.Records(j)[r.ID]
				if ended != c.ended || (err != nil) != c.wrong || job.State != c.state {
					w.Errorf("ended %v, %v; the job is %s", ended, err, job.State)
				}
				time.Sleep(time.Minute)
				if has := got.of(r.ID) != ""; has != c.ended {
					w.Errorf("its child has a task: %v", has)
				}
				if stored.State == record.Pending && stored.Begun != "" || d.place.Leave != nil {
					w.Errorf("mark %q, inside %v", stored.Begun, d.place.Leave != nil)
				}
			})
		})
	}
}

// TestLooksOnce checks that a delivery whose range has not ended does not check whether the job is
// complete. It also checks that a page which was read ahead is not read again.
func TestLooksOnce(t *testing.T) {
	for _, fails := range []bool{true, false} {
		inPages(t, 95, func(context.Context, *function.Attempt, string, []int64) error {
			if fails {
				return errBad
			}
			return nil
		}, func(w *testworld.World, x *Executor) {
			take(w)
			d := loaded(w, x, w.NewJob("j", "m"))
			var looks, reads atomic.Int64
			w.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
				error) {
				if q, ok := req.(*pb.RunQueryRequest); ok {
					if q.GetQuery().GetKind()[0].GetName() == "K" {
						reads.Add(1)
					} else {
						looks.Add(1)
					}
				}
				return handler(ctx, req)
			})
			err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(d.record, d.job).Body})
			w.Intercept(nil)
			synctest.Wait()
			if err != nil || fails != (looks.Load() == 0) || reads.Load() > 6 {
				w.Errorf("%v; fails %v: it looks %d times, and reads %d times", err, fails, looks.Load(), reads.Load())
			}
		})
	}
}

// A panicker is a log that panics.
type panicker struct{ slog.Handler }

func (panicker) Enabled(context.Context, slog.Level) bool  { return true }
func (panicker) Handle(context.Context, slog.Record) error { panic("no log") }

// TestPanics makes a delivery panic. It must leave the gate.
func TestPanics(t *testing.T) {
	inPages(t, 5, func(context.Context, *function.Attempt, string, []int64) error { return errBad },
		func(w *testworld.World, x *Executor) {
			take(w)
			d := loaded(w, x, w.NewJob("j", "m"))
			defer d.planner.Close()
			x.Log = slog.New(panicker{})
			func() {
				defer func() {
					if recover() == nil {
						w.Error("it does not panic")
					}
				}()
				_, _ = d.runRange(w.Context())
			}()
			if d.place.Leave != nil {
				w.Error("it keeps its place")
			}
		})
}

// TestPanicLeaves makes a delivery panic. This process must know that the delivery has ended:
// otherwise, the job's part of the budget would never be returned.
func TestPanicLeaves(t *testing.T) {
	inWorld(t, 5, function.Update, func(*testworld.Call) error { return nil },
		func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			d := loaded(w, x, j)
			x.Random = func() uint64 { panic("a panic") }
			func() {
				defer func() {
					if got := recover(); got != "a panic" {
						w.Errorf("the delivery has panicked with %v", got)
					}
				}()
				_ = x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(d.record, j).Body, RetryCount: 1})
			}()
			if x.cache.inUse(j.Ref()) {
				w.Error("the delivery counts as one that runs")
			}
		})
}
