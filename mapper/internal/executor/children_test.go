package executor

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// A taken records the tasks of ranges that the queue has delivered, without running them.
type taken struct {
	mu    sync.Mutex
	begun time.Time
	at    map[string][]time.Duration // times of the deliveries, by the ID of the range
}

// take makes each delivery of a range's task succeed at once, and records it.
func take(w *testworld.World) *taken {
	t := &taken{begun: time.Now(), at: make(map[string][]time.Duration)}
	w.Change(func() {
		w.Range = func(_ context.Context, queued tasks.Delivery) error {
			of, err := body.ParseRange(queued.Body)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.at[of.Range] = append(t.at[of.Range], time.Since(t.begun))
			return err
		}
	})
	return t
}

// of returns the times of the deliveries for a range's children, as text, in the order of the
// children.
func (t *taken) of(parent string) string {
	synctest.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	text := ""
	for n := range int64(10) {
		for _, at := range t.at[record.RangeID(parent, n)] {
			text += fmt.Sprintf("%d after %v ", n, at.Truncate(time.Second))
		}
	}
	return text
}

// TestBeaten lets another delivery do a range, and die before it has enqueued the children's tasks.
// This delivery must enqueue them, except the task of the child with which the other delivery
// continues.
func TestBeaten(t *testing.T) {
	for _, c := range []struct {
		name   string
		n      int64
		fail   error // the function's error for entity 3
		old    bool  // whether the other delivery is too old to continue
		itself bool  // whether this delivery itself has done the range, and the answer was lost
		after  bool  // whether this delivery starts only afterwards
		want   string
	}{
		{name: "all of it", n: 5},
		{name: "the other one goes on", n: 15},
		{name: "the other one does not go on", n: 15, old: true, want: "0 after 0s "},
		{name: "its own answer was lost", n: 15, itself: true, want: "0 after 0s "},
		{name: "it comes later", n: 15, after: true, want: "0 after 0s "},
		{name: "an entity is tried again", n: 5, fail: errBad, want: "0 after 1s "},
		{name: "an entity is tried again, and the other one goes on", n: 15, fail: errBad, want: "1 after 1s "},
		{name: "an entity is tried again, and the other one does not go on", n: 15, fail: errBad, old: true,
			want: "0 after 0s 1 after 1s "},
		{name: "an entity has failed", n: 5, fail: fault.Permanent(errBad)},
		{name: "an entity has failed, and the other one does not go on", n: 15, fail: fault.Permanent(errBad),
			old:  true,
			want: "0 after 0s "},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, c.n, function.Update, func(a *testworld.Call) error {
				if a.N += 100; a.ID == 3 {
					return c.fail
				}
				return nil
			}, func(w *testworld.World, x *Executor) {
				got := take(w)
				j := w.NewJob("j", "m")
				other := loaded(w, x, j)
				defer other.planner.Close()
				d := other
				if !c.itself && !c.after {
					d = load(w, x, j, other.record, tasks.Delivery{})
				}
				if c.old {
					other.begunAt = time.Now().Add(-5 * time.Minute)
				}
				if c.itself {
					on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
						answer, err := call()
						if n == 1 && err == nil {
							err = errInjected
						}
						return answer, err
					})
				} else if s, err := other.attempt(w.Context()); s != ours || err != nil {
					w.Fatalf("%d, %v", s, err)
				}
				if c.after {
					d = load(w, x, j, other.record, tasks.Delivery{RetryCount: 1})
				}
				other.leave()
				time.Sleep(10 * time.Millisecond)
				ended, err := d.runRange(w.Context())
				d.planner.Close()
				if err != nil || !ended || d.record.State != record.Done {
					w.Errorf("ended %v, %v, %s", ended, err, d.record.State)
				}
				time.Sleep(time.Minute)
				if got := got.of(j.Root()); got != c.want {
					w.Errorf("tasks of children: %s, want %s", got, c.want)
				}
			})
		})
	}
}

// TestChildrenFail makes a call fail in a delivery whose range was done by another delivery. The
// queue must deliver its task again. Afterwards, all children must have tasks.
func TestChildrenFail(t *testing.T) {
	for _, c := range []struct {
		method string
		from   int // number of the first call that fails
		fail   error
	}{
		{"Lookup", 1, nil}, {"Lookup", 2, nil}, {"Lookup", 1, errBad}, {"Lookup", 2, errBad}, {"Lookup", 3, nil},
		{"Lookup", 3, errBad},
		{"Lookup", 4, errBad},
		{"CreateTask", 1, errBad},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			inWorld(t, 15, function.Update, func(a *testworld.Call) error {
				if a.N += 100; a.ID == 3 {
					return c.fail
				}
				return nil
			}, func(w *testworld.World, x *Executor) {
				got, j := take(w), w.NewJob("j", "m")
				other := loaded(w, x, j)
				d := load(w, x, j, other.record, tasks.Delivery{})
				if s, err := other.attempt(w.Context()); s != ours || err != nil {
					w.Fatalf("%d, %v", s, err)
				}
				other.leave()
				other.planner.Close()
				defer d.planner.Close()
				time.Sleep(10 * time.Millisecond)
				reads := 0
				on(w, c.method, func(n int, call func() (any, error)) (any, error) {
					if reads = n; n >= c.from {
						return nil, errInjected
					}
					return call()
				})
				_, err := d.runRange(w.Context())
				w.Intercept(nil)
				if err == nil || reads < c.from {
					w.Fatalf("after %d calls: %v", reads, err)
				}
				if again := load(w, x, j, d.record, tasks.Delivery{RetryCount: 1}); again != nil {
					if ended, err := again.runRange(w.Context()); err != nil || !ended {
						w.Errorf("again: %v, %v", ended, err)
					}
					again.planner.Close()
				}
				time.Sleep(time.Minute)
				tasks := got.of(j.Root())
				if !strings.Contains(tasks, "0 after") || strings.Contains(tasks, "1 after") != (c.fail != nil) {
					w.Errorf("tasks of children: %s", tasks)
				}
			})
		})
	}
}

// TestHandOver checks which deliveries that end with an error enqueue a new task for their range.
func TestHandOver(t *testing.T) {
	other := func(f func(r *record.Range)) func(w *testworld.World, d *delivery) {
		return func(w *testworld.World, d *delivery) {
			if _, err := w.Jobs.Store.UpdateRange(w.Context(), d.record.Key(), func(r *record.Range) bool {
				f(r)
				return true
			}); err != nil {
				w.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		gone   bool
		cause  error
		before func(w *testworld.World, d *delivery)
		want   bool
		tasks  int
	}{
		{name: "the first range fails: the queue delivers its task again", cause: errBad},
		{name: "a later range fails", gone: true, cause: errBad, want: true, tasks: 1},
		{name: "a later range, and it has a task", gone: true, cause: errBad, want: true, tasks: 1,
			before: func(w *testworld.World, d *delivery) {
				if err := d.enqueueAgain(w.Context()); err != nil {
					w.Fatal(err)
				}
			}},
		{name: "a later range, and the queue fails", gone: true, cause: errBad,
			before: func(w *testworld.World, _ *delivery) { refuse(w, "CreateTask", errInjected) }},
		{name: "the process drains", cause: gate.ErrDraining, want: true, tasks: 1},
		{name: "the process drains before a later range", gone: true, cause: gate.ErrDraining, want: true, tasks: 1},
		{name: "it drains, and may have died before", cause: gate.ErrDraining,
			before: func(_ *testworld.World, d *delivery) { d.state.redelivered = true }},
		{name: "it drains, and the range is done", cause: gate.ErrDraining,
			before: func(_ *testworld.World, d *delivery) { d.record.State = record.Done }},
		{name: "it drains, and the range has another task", cause: gate.ErrDraining, want: true,
			before: other(func(r *record.Range) { r.Generation++ })},
		{name: "it drains, and another delivery has cut the range", cause: gate.ErrDraining,
			before: other(func(r *record.Range) { r.Cut = true })},
		{name: "it drains, and another delivery has done the range", cause: gate.ErrDraining,
			before: other(func(r *record.Range) { r.Finish(now()) })},
		{name: "it drains, and the database fails", cause: gate.ErrDraining,
			before: func(w *testworld.World, _ *delivery) { refuse(w, "Commit", errInjected) }},
		{name: "it drains, and the queue fails", cause: gate.ErrDraining,
			before: func(w *testworld.World, _ *delivery) { refuse(w, "CreateTask", errInjected) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 5, function.Update, nil, func(w *testworld.World, x *Executor) {
				got, j := take(w), w.NewJob("j", "m")
				d := loaded(w, x, j)
				defer d.planner.Close()
				if c.before != nil {
					c.before(w, d)
				}
				was := d.record.Generation
				has := d.handOver(w.Context(), c.gone, c.cause)
				w.Intercept(nil)
				time.Sleep(time.Minute)
				synctest.Wait()
				got.mu.Lock()
				defer got.mu.Unlock()
				if has != c.want || len(got.at[j.Root()]) != c.tasks {
					w.Errorf("handed over %v, %d tasks", has, len(got.at[j.Root()]))
				}
				stored := w.Records(j)[j.Root()]
				if newer := c.tasks > 0 && !c.gone; newer && stored.Generation != was+1 || c.gone &&
					stored.Generation != was {
					w.Errorf("generation %d after %d", stored.Generation, was)
				}
			})
		})
	}
}

// TestGoOn checks when a delivery continues with the rest of its range, and when it enqueues a task
// for the rest.
func TestGoOn(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *testworld.World, x *Executor, j *record.Job)
		goes   bool
		wrong  error
		tasks  string
	}{
		{name: "nothing has changed", goes: true},
		{name: "the job is paused", change: func(_ *testworld.World, _ *Executor,
			j *record.Job) {
			j.State = record.Paused
		}},
		{name: "the job has moved", change: func(_ *testworld.World, _ *Executor, j *record.Job) {
			j.Queue = record.Owner(w2)
		}},
		{name: "the job was resumed", change: func(_ *testworld.World, _ *Executor, j *record.Job) { j.Generation++ },
			tasks: "0 after 2s "},
		{name: "ranges have become pending", change: func(_ *testworld.World, _ *Executor, j *record.Job) { j.Epoch++ },
			tasks: "0 after 2s "},
		{name: "the process drains", change: func(w *testworld.World, x *Executor, _ *record.Job) {
			_, _ = x.Gate.Drain(w.Context())
		}, tasks: "0 after 2s "},
		{name: "the database fails", wrong: errInjected},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 15, function.Update, func(*testworld.Call) error { return nil },
				func(w *testworld.World, x *Executor) {
					got, j := take(w), w.NewJob("j", "m")
					d := loaded(w, x, j)
					defer d.planner.Close()
					if s, err := d.attempt(w.Context()); err != nil || s != ours || d.state.follow.Next == nil {
						w.Fatalf("%d, %v", s, err)
					}
					d.leave()
					next := d.state.follow.Next
					if _, err := x.Store.UpdateJob(w.Context(), j.Ref(), func(j *record.Job) (bool, error) {
						if c.change != nil {
							c.change(w, x, j)
						}
						return c.change != nil, nil
					}); err != nil {
						w.Fatal(err)
					}
					time.Sleep(2 * time.Second) // until the cached record of the job is too old
					if c.wrong != nil {
						refuse(w, "Lookup", c.wrong)
					}
					goes, err := d.goOn(w.Context())
					w.Intercept(nil)
					if goes != c.goes || (err != nil) != (c.wrong != nil) {
						w.Errorf("goes on %v, %v", goes, err)
					}
					w.Change(func() { // continue in another process
						jobs := *w.Jobs
						jobs.Gate = gate.New()
						w.Jobs = &jobs
					})
					if goes && (d.record != next || d.generation != next.Generation) {
						w.Error("it goes on with another range")
					}
					time.Sleep(time.Minute)
					if got := got.of(j.Root()); got != c.tasks {
						w.Errorf("tasks: %s, want %s", got, c.tasks)
					}
				})
		})
	}
}

const w2 = "projects/test/locations/here/queues/other"

// TestTakeOver checks which record a delivery has after a failed commit.
func TestTakeOver(t *testing.T) {
	mine, theirs := time.Unix(10, 0), time.Unix(20, 0)
	for _, c := range []struct {
		standing standing
		done     time.Time
		takes    bool
		beaten   bool
	}{
		{done, theirs, true, true}, {done, mine, true, false}, {changed, theirs, true, false},
		{superseded, theirs, false, false}, {stopped, theirs, false, false}, {ours, theirs, false, false},
	} {
		known, found := &record.Range{ID: "known"}, &record.Range{ID: "found", Done: c.done}
		d := &delivery{record: known, state: currentRange{finished: []time.Time{time.Unix(5, 0), mine}}}
		d.takeOver(finding{c.standing, found})
		if (d.record == found) != c.takes || d.state.beaten != c.beaten {
			t.Errorf("%+v: takes over %v, beaten %v", c, d.record == found, d.state.beaten)
		}
	}
}

// TestChildren checks which children get tasks, and the contents of these tasks. The range has
// seven children. The first one already has a task, the delivery continues with the fourth one, two
// are entities to retry, and one is a failure.
func TestChildren(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		r := j.RootRange()
		id := func(n int64) string { return record.RangeID(r.ID, n) }
		r.Children, r.Retries, r.Recorded = 7, 2, 1
		due := time.Now().Add(time.Hour).UTC()
		for _, fresh := range []bool{true, false} {
			d := &delivery{x: x, job: j, record: r, state: currentRange{enqueued: 1, idle: 2, newTraces: fresh}}
			all := d.children(&record.Range{ID: id(3)}, map[string]time.Time{id(5): due})
			var got []string
			for _, task := range all {
				of, err := body.ParseRange(task.Body)
				if err != nil {
					w.Fatal(err)
				}
				for n := range int64(8) {
					if of.Range == id(n) {
						got = append(got, fmt.Sprintf("%d idle %v late %v trace %v", n, of.Idle,
							task.ScheduleTime.Equal(due),
							task.NewTrace))
					}
				}
			}
			want := []string{"1 idle true", "2 idle true", "4 idle false", "5 idle false"}
			if len(got) != len(want) {
				w.Fatalf("tasks %q", got)
			}
			for i, text := range want {
				text += fmt.Sprintf(" late %v trace %v", strings.HasPrefix(text, "5"), fresh)
				if got[i] != text {
					w.Errorf("%s, want %s", got[i], text)
				}
			}
		}
	})
}

// TestWaitsKnown checks that a delivery which has committed its page need not read the children's
// records to know when failed entities are retried. Another delivery must read them.
func TestWaitsKnown(t *testing.T) {
	for _, known := range []bool{true, false} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			got, j := take(w), w.NewJob("j", "m")
			d := loaded(w, x, j, func(r *record.Range) { r.Children, r.Retries = 1, 1 })
			if known {
				d.state.follow.Waits = map[string]time.Time{record.RangeID(j.Root(),
					0): time.Now().Add(10 * time.Second)}
			}
			refuse(w, "Lookup", errInjected)
			err := d.enqueueChildren(w.Context())
			w.Intercept(nil)
			time.Sleep(time.Minute)
			if tasks := got.of(j.Root()); (err == nil) != known || known != (tasks == "0 after 10s ") {
				w.Errorf("known %v: %v, %s", known, err, tasks)
			}
		})
	}
}

// TestTasksOnce checks that the task of each range is enqueued by only one call.
func TestTasksOnce(t *testing.T) {
	inWorld(t, 300, function.Update, func(c *testworld.Call) error {
		c.N += 1000
		time.Sleep(100 * time.Millisecond)
		return nil
	}, func(w *testworld.World, _ *Executor) {
		var mu sync.Mutex
		names := make(map[string]int)
		w.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
			error) {
			if create, ok := req.(*cloudtaskspb.CreateTaskRequest); ok {
				mu.Lock()
				names[create.Task.GetName()]++
				mu.Unlock()
			}
			return handler(ctx, req)
		})
		j := w.NewJob("j", "m")
		j.Workers, j.PageSize = 4, 50
		w.Begin(j)
		time.Sleep(50 * time.Second)
		w.Intercept(nil)
		if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 300 processed") {
			w.Error(got)
		}
		for name, n := range names {
			if n > 1 && name != "" {
				w.Errorf("%d calls enqueue %s", n, name)
			}
		}
		if len(names) < 4 {
			w.Errorf("%d tasks", len(names))
		}
	})
}
