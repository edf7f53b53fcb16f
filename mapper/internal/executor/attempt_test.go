package executor

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// update changes the stored record of a range, in place of another delivery.
func update(w *testworld.World, r *record.Range, change func(r *record.Range)) {
	w.Helper()
	if _, err := w.Jobs.Store.UpdateRange(context.WithoutCancel(w.Context()), r.Key(), func(r *record.Range) bool {
		change(r)
		return true
	}); err != nil {
		w.Error(err)
	}
}

// TestChangedAmid lets another delivery change the range while the function runs. The delivery must
// plan its page again, within the new bounds.
func TestChangedAmid(t *testing.T) {
	for _, c := range []struct {
		name   string
		retry  int
		change func(r *record.Range)
		alone  bool // whether the page then runs exclusively
		// number of commits by this delivery and the other one; this one must write its crash mark
		// only once
		commits int
	}{
		{name: "it was cut", change: func(r *record.Range) { r.Cut, r.End = true, at(4)[0] }, commits: 4},
		{name: "it was cut, with a mark", retry: 1, change: func(r *record.Range) { r.Cut, r.End = true, at(4)[0] },
			commits: 5},
		{name: "it is suspected now", retry: 1, change: func(r *record.Range) {
			r.Cut, r.End, r.Solo = true, at(4)[0],
				true
		},
			alone: true, commits: 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w *testworld.World
			var d *delivery
			calls, alone, marked := 0, false, false
			inWorld(t, 10, function.Update, func(a *testworld.Call) error {
				a.N += 100
				if calls++; calls == 1 {
					stored := w.Records(d.job)[d.record.ID]
					marked = stored.Begun != ""
					update(w, d.record, c.change)
					_, err := w.Client.Put(context.WithoutCancel(a), testworld.Key(2), &testworld.Thing{N: 50})
					if err != nil {
						return err
					}
				}
				alone = d.place.Exclusive
				return nil
			}, func(world *testworld.World, x *Executor) {
				w = world
				j := w.NewJob("j", "m")
				r := j.RootRange()
				insert(w, j, r)
				x.paces.Expect(j.Ref(), 10) // small entities, so that a page reads them whole
				d = load(w, x, j, r, tasks.Delivery{RetryCount: c.retry, TaskID: "t"})
				defer d.planner.Close()
				commits := 0
				on(w, "Commit", func(n int, call func() (any, error)) (any, error) { commits = n; return call() })
				if _, err := d.runRange(w.Context()); err != nil {
					w.Error(err)
				}
				w.Intercept(nil)
				stored := w.Records(j)[r.ID]
				if stored.State != record.Done || stored.Processed != 3 || w.N(3) != 103 || w.N(4) != 4 {
					w.Errorf("%s, %d processed, 3 is %d, 4 is %d", stored.State, stored.Processed, w.N(3), w.N(4))
				}
				if w.N(2) != 150 || stored.Conflicts > 0 {
					w.Errorf("2 is %d, after %d conflicts: it is not read again", w.N(2), stored.Conflicts)
				}
				if commits != c.commits {
					w.Errorf("%d commits", commits)
				}
				if alone != c.alone || marked != (c.retry > 0) || len(stored.Deaths) > 0 {
					w.Errorf("exclusive %v, marked %v, %d deaths", alone, marked, len(stored.Deaths))
				}
			})
		})
	}
}

// TestFirstDeliverySolo checks that the first delivery of a range writes a crash mark
// (record.CrashMark) if the range is suspected of killing its process. A suspected page without
// entities must end. A single entity must be processed in its page, unless the page was halved
// before.
func TestFirstDeliverySolo(t *testing.T) {
	for _, n := range []int64{5, 1, 0} {
		var w *testworld.World
		var j *record.Job
		marked := false
		inWorld(t, n, function.Update, func(*testworld.Call) error {
			marked = marked || w.Records(j)[j.Root()].Begun != ""
			return nil
		}, func(world *testworld.World, x *Executor) {
			w, j = world, world.NewJob("j", "m")
			take(w)
			d := loaded(w, x, j, func(r *record.Range) {
				if r.Solo = true; n == 0 {
					r.Narrowed = 1
				}
			})
			defer d.planner.Close()
			if _, err := d.runRange(w.Context()); err != nil || w.Records(j)[j.Root()].State != record.Done {
				w.Errorf("of %d entities: %v", n, err)
			}
			if marked != (n > 0) {
				w.Errorf("of %d entities: marked %v", n, marked)
			}
		})
	}
}

// failsOnce returns a function that makes the next call of a method fail, with an error after which
// the client does not try again.
func failsOnce(method string) func(w *testworld.World, _ *delivery) {
	return func(w *testworld.World, _ *delivery) {
		time.Sleep(2 * cachedFor)
		on(w, method, func(n int, call func() (any, error)) (any, error) {
			if n == 1 {
				return nil, status.Error(codes.PermissionDenied, "injected")
			}
			return call()
		})
	}
}

// TestStoppedBeforePage stops a job while a delivery waits before its page. The function must not
// run.
func TestStoppedBeforePage(t *testing.T) {
	pause := func(w *testworld.World, d *delivery) {
		if err := w.Jobs.Pause(w.Context(), d.job.Ref()); err != nil {
			w.Fatal(err)
		}
		time.Sleep(2 * cachedFor)
	}
	fails := func(w *testworld.World, d *delivery) { // makes the next read of the job fail
		time.Sleep(2 * cachedFor)
		var failed atomic.Bool
		w.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			q, ok := req.(*pb.LookupRequest)
			if ok && q.GetKeys()[0].GetPath()[0].GetKind() == record.JobKind && !failed.Swap(true) {
				return nil, status.Error(codes.PermissionDenied, "injected")
			}
			return call(ctx, req)
		})
	}
	other := func(then func(w *testworld.World, d *delivery)) func(w *testworld.World, d *delivery) {
		return func(w *testworld.World, d *delivery) {
			place, err := d.x.Gate.Enter(w.Context(), true)
			if err != nil {
				w.Fatal(err)
			}
			time.AfterFunc(time.Minute, place.Leave)
			then(w, d)
		}
	}
	slot := func(then func(w *testworld.World, d *delivery)) func(w *testworld.World, d *delivery) {
		return func(w *testworld.World, d *delivery) {
			d.x.background.ask(testworld.Key(9))
			time.AfterFunc(10*time.Second, func() { then(w, d) })
		}
	}
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		before func(w *testworld.World, d *delivery)
		s      standing
		wrong  bool
	}{
		{name: "nothing", before: func(*testworld.World, *delivery) {}},
		{name: "another task", before: other(pause), s: stopped},
		{name: "another task, and the database fails", before: other(fails), wrong: true},
		{name: "a slot", change: func(j *record.Job) { j.Background = true }, before: slot(pause), s: stopped},
		{name: "a slot, and the database fails", change: func(j *record.Job) { j.Background = true },
			before: slot(fails),
			wrong:  true},
		{name: "the rate", change: func(j *record.Job) { j.Rate = []byte(`{"entities":1}`) }, before: pause,
			s: stopped},
		{name: "the rate, and the database fails", change: func(j *record.Job) { j.Rate = []byte(`{"entities":1}`) },
			before: fails, wrong: true},
		{name: "the rate, and there is a budget", change: func(j *record.Job) {
			j.Rate, j.Budget = []byte(`{"entities":1}`), []byte(`{"operations":1000000}`)
		}, before: pause, s: stopped},
		{name: "the budget", change: func(j *record.Job) { j.Budget = []byte(`{"operations":1000000}`) },
			before: func(w *testworld.World, d *delivery) { spend(w, d, 1) }, s: stopped},
		{name: "the budget, and the database fails", change: func(j *record.Job) {
			j.Budget = []byte(`{"operations":1000000}`)
		}, before: failsOnce("Commit"), wrong: true},
		{name: "the budget, which can't be read", change: func(j *record.Job) { j.Budget = []byte(`{`) },
			before: func(*testworld.World, *delivery) {}, wrong: true},
		{name: "its mark, and the database fails", before: func(w *testworld.World, d *delivery) {
			d.state.redelivered = true
			failsOnce("Commit")(w, d)
		}, wrong: true},
		{name: "its keys, and the database fails", before: failsOnce("RunQuery"), wrong: true},
		{name: "calls", change: func(j *record.Job) { j.Rate = []byte(`{"calls":0.01}`) },
			before: func(w *testworld.World, d *delivery) {
				if _, _, err := d.x.Store.ReserveRate(w.Context(), d.job, record.CallClockKey(d.job.Ref()),
					new(time.Duration),
					func(q pace.Queue) (time.Duration, int64) { return 100*time.Second - q.Wait, 1 }); err != nil {
					w.Fatal(err)
				}
				time.AfterFunc(10*time.Second, func() { pause(w, d) })
			}, s: stopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			inWorld(t, 5, function.Update, func(a *testworld.Call) error {
				err := a.AwaitCalls(a, 3)
				if err == nil {
					calls++
				}
				return err
			},
				func(w *testworld.World, x *Executor) {
					j := w.NewJob("j", "m")
					if c.change != nil {
						c.change(j)
					}
					time.Sleep(10 * time.Second)
					d := loaded(w, x, j)
					defer d.planner.Close()
					c.before(w, d)
					s, err := d.attempt(w.Context())
					d.leave()
					w.Intercept(nil)
					if s != c.s && err == nil || (err != nil) != c.wrong || (calls > 0) != (c.s == ours && !c.wrong) {
						w.Errorf("%d, %v, %d calls", s, err, calls)
					}
					time.Sleep(2 * time.Minute)
				})
		})
	}
}

// TestSoloDoesNotWait checks that a page suspected of killing its process does not wait for its
// job's rate, because its process does nothing else meanwhile.
func TestSoloDoesNotWait(t *testing.T) {
	for _, solo := range []bool{true, false} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Rate = []byte(`{"entities":1}`)
			d := loaded(w, x, j, func(r *record.Range) { r.Solo = solo })
			begun := time.Now()
			for range 3 {
				p := planner.Plan{At: at(1, 2, 3, 4, 5)}
				settle, s, err := d.admit(w.Context(), &p)
				if err != nil || s != ours || len(p.At) != 5 {
					w.Errorf("%d, %v", s, err)
				}
				settle()
			}
			if took := time.Since(begun); (took == 0) != solo {
				w.Errorf("solo %v: three pages start after %v", solo, took)
			}
		})
	}
}

// TestSplit checks how a delivery cuts a range for idle workers before it processes a page.
func TestSplit(t *testing.T) {
	piece := func(ids ...int64) func() ([]split.Piece, error) {
		all := []split.Piece{{}}
		for i, p := range at(ids...) {
			all[i].End = p
			all = append(all, split.Piece{Start: p})
		}
		return func() ([]split.Piece, error) { return all, nil }
	}
	for _, c := range []struct {
		name   string
		pieces func() ([]split.Piece, error)
		last   bool // whether the page is the range's last one
		change func(r *record.Range)
		other  func(r *record.Range)
		refuse string
		s      standing
		wrong  bool
		idle   int // number of children for idle workers
		busy   int
		whole  bool // whether the range must not be cut again
	}{
		{name: "in three", pieces: piece(100, 200), idle: 2},
		{name: "in six, for four workers", pieces: piece(50, 100, 150, 200, 250), idle: 3, busy: 2},
		{name: "again", pieces: piece(100, 200), change: func(r *record.Range) { r.Cut, r.Workers = true, 2 }, idle: 1,
			busy: 1},
		{name: "a later range", pieces: piece(100, 200), change: func(r *record.Range) {
			r.ID, r.Workers = record.RangeID(r.ID, 0), 2
		}, idle: 1, busy: 1},
		{name: "not at all", pieces: piece(), whole: true},
		{name: "before its last page", pieces: piece(100), last: true, idle: 1, whole: true},
		{name: "no boundaries are found", pieces: func() ([]split.Piece, error) { return nil, errInjected },
			wrong: true},
		{name: "another delivery has cut it", pieces: piece(100), other: func(r *record.Range) { r.Cut = true },
			s: changed},
		{name: "the database fails", pieces: piece(100), refuse: "Commit", wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 300, function.Update, nil, func(w *testworld.World, x *Executor) {
				var idle, busy atomic.Int64
				w.Change(func() {
					w.Range = func(_ context.Context, queued tasks.Delivery) error {
						t, err := body.ParseRange(queued.Body)
						if t.Idle {
							idle.Add(1)
						} else {
							busy.Add(1)
						}
						return err
					}
				})
				j := w.NewJob("j", "m")
				j.Workers, j.PageSize = 4, 100
				d := loaded(w, x, j, func(r *record.Range) {
					if c.change != nil {
						c.change(r)
					}
				})
				defer d.planner.Close()
				p := planned(w, d, 10)
				if p.Pieces = c.pieces; c.last {
					p.Next = nil
				}
				if c.other != nil {
					update(w, d.record, c.other)
				}
				if c.refuse != "" {
					refuse(w, c.refuse, errInjected)
				}
				s, err := d.split(w.Context(), p)
				w.Intercept(nil)
				if s != c.s || (err != nil) != c.wrong || d.state.idle != 0 {
					w.Errorf("%d, %v", s, err)
				}
				time.Sleep(30 * time.Second)
				if idle, busy := int(idle.Load()), int(busy.Load()); idle != c.idle || busy != c.busy {
					w.Errorf("%d tasks for idle workers, and %d others", idle, busy)
				}
				checkSplit(w, d, c.idle+c.busy > 0 || c.other != nil, c.change == nil && c.idle > 0)
				if c.whole && planned(w, d, 10).Pieces != nil {
					w.Error("it is cut again")
				}
			})
		})
	}
}

// checkSplit checks whether a delivery's range was cut, and whether the job's records have the
// average size of an entity.
func checkSplit(w *testworld.World, d *delivery, cut, sized bool) {
	w.Helper()
	all := w.Records(d.job)
	if is := all[d.record.ID].Cut; is != cut {
		w.Errorf("it is cut: %v", is)
	}
	for id, r := range all {
		if sized && r.EntitySize == 0 {
			w.Errorf("the size of entities of %s is unknown", id)
		}
	}
}

// TestPostponeFails makes the database fail, or another delivery change the range, while a delivery
// gives its range a new task.
func TestPostponeFails(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		got, d := take(w), loaded(w, x, w.NewJob("j", "m"))
		refuse(w, "Commit", errInjected)
		if s, err := d.postpone(w.Context()); err == nil || s != ours {
			w.Errorf("%d, %v", s, err)
		}
		w.Intercept(nil)
		update(w, d.record, func(r *record.Range) { r.Cut = true })
		if s, err := d.postpone(w.Context()); err != nil || s != changed {
			w.Errorf("%d, %v", s, err)
		}
		time.Sleep(time.Minute)
		w.Change(func() {
			if len(got.at) > 0 {
				w.Errorf("new tasks %v", got.at)
			}
		})
		d.record, d.state.mark = w.Records(d.job)[d.record.ID], "own"
		if s, err := d.postpone(w.Context()); err != nil || s != superseded || d.state.mark != "" {
			w.Errorf("%d, %v, mark %q", s, err, d.state.mark)
		}
	})
}

// TestReadInTransactionFails makes the read of a transaction fail. This must not count as a fault
// of an entity.
func TestReadInTransactionFails(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		d := loaded(w, x, w.NewJob("j", "m"))
		d.record.Version = 0
		on(w, "Lookup", func(n int, call func() (any, error)) (any, error) {
			if n == 1 {
				return nil, status.Error(codes.InvalidArgument, "injected")
			}
			return call()
		})
		_, err := d.change(w.Context(), func(*record.Range) ([]*record.Range, error) { return nil, nil })
		if err == nil || errors.As(err, new(fault.CommitRefusal)) {
			w.Error(err)
		}
	})
}

// TestPlanSplits lets another delivery cut the range that a delivery is about to split, or makes
// the database fail.
func TestPlanSplits(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(w *testworld.World, d *delivery)
		s      standing
		wrong  bool
	}{
		{name: "nothing"},
		{name: "it was cut", before: func(w *testworld.World, d *delivery) {
			update(w, d.record, func(r *record.Range) { r.Cut = true })
		}, s: changed},
		{name: "the commit fails", before: failsOnce("Commit"), wrong: true},
		{name: "the keys can't be read", before: failsOnce("RunQuery"), wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 300, function.Update, nil, func(w *testworld.World, x *Executor) {
				take(w)
				j := w.NewJob("j", "m")
				j.Workers, j.PageSize = 4, 100
				d := loaded(w, x, j)
				defer d.planner.Close()
				if c.before != nil {
					c.before(w, d)
				}
				_, s, err := d.plan(w.Context())
				w.Intercept(nil)
				if s != c.s || (err != nil) != c.wrong {
					w.Errorf("%d, %v", s, err)
				}
				if has := len(w.Records(j)) > 1; has != (s == ours && err == nil) {
					w.Errorf("it is split: %v", has)
				}
			})
		})
	}
}

// TestNewTraces checks that the tasks of a very large range start new traces.
func TestNewTraces(t *testing.T) {
	for _, estimate := range []int64{0, 10 * 2600} {
		inWorld(t, 20, function.Update, nil, func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"), func(r *record.Range) { r.Cut, r.Estimate = true, estimate })
			defer d.planner.Close()
			if _, _, err := d.plan(w.Context()); err != nil || d.state.newTraces != (estimate > 0) {
				w.Errorf("of %d entities: %v, %v", estimate, d.state.newTraces, err)
			}
		})
	}
}

// TestAdmit checks how much of the job's rate and budget a page reserves, if the job has a rate, a
// budget, or both.
func TestAdmit(t *testing.T) {
	for _, c := range []struct{ rate, budget string }{
		{`{"entities":1}`, `{"operations":1000000}`}, {"", `{"operations":1000000}`}, {`{"entities":1}`, ""}, {},
	} {
		inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Rate, j.Budget = []byte(c.rate), []byte(c.budget)
			d, p := loaded(w, x, j), planner.Plan{At: at(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}
			settle, s, err := d.admit(w.Context(), &p)
			if err != nil || s != ours || len(p.At) != 10 {
				w.Fatalf("%d, %v", s, err)
			}
			purse := &x.cache.at(j.Ref()).purse
			free := purse.turn.TryAcquire(1)
			if free != (c.budget == "") { // the first page's cost is unknown, so other pages wait
				w.Errorf("%+v: other pages need not wait for the budget: %v", c, free)
			}
			if free {
				purse.turn.Release(1)
			}
			begun, left := d.page.grant.At, purse.left
			d.page.used, d.page.reached = &billing.Usage{Writes: 1 + pace.RecordWrites}, 4
			settle()
			if gets := purse.left > left; gets != (c.budget != "") {
				w.Errorf("%+v: of the budget %v is left, after %v", c, purse.left, left)
			}
			if c.rate == "" {
				return
			}
			next, _, _, err := d.keepRate(w.Context(), 4)
			if waits := next.At.Sub(begun); err != nil || waits.Round(time.Second) != 4*time.Second {
				w.Errorf("%+v: the page after one of four entities waits %v: %v", c, waits, err)
			}
		})
	}
}

// TestWaitsCount checks that the pages after a page that has waited long for its calls are smaller.
func TestWaitsCount(t *testing.T) {
	inWorld(t, 200, function.Visit, func(a *testworld.Call) error {
		if a.ID > 1 {
			return nil
		}
		return a.AwaitCalls(a, 1)
	},
		func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Rate, j.PageSize, j.PageTime = []byte(`{"calls":0.01}`), 500, int64(25*time.Second)
			d := loaded(w, x, j, func(r *record.Range) { r.PageSize = 10 })
			defer d.planner.Close()
			if _, _, err := x.Store.ReserveRate(w.Context(), j, record.CallClockKey(j.Ref()),
				new(time.Duration),
				func(q pace.Queue) (time.Duration, int64) { return 20*time.Second - q.Wait, 1 }); err != nil {
				w.Fatal(err)
			}
			if s, err := d.attempt(w.Context()); err != nil || s != ours || d.record.Processed != 10 {
				w.Fatalf("%d, %v: %d processed", s, err, d.record.Processed)
			}
			d.leave()
			if next := d.state.follow.Next; next.PageSize > 150 || next.PageSize < 140 {
				w.Errorf("after a page of 10 entities that took 20 s, the next one may have %d", next.PageSize)
			}
		})
}

// TestUsedIfCommitted checks that only a committed page counts as used. The reservations of other
// pages stay as expected.
func TestUsedIfCommitted(t *testing.T) {
	for _, fails := range []bool{false, true} {
		inWorld(t, 10, function.Visit, nil, func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"))
			defer d.planner.Close()
			p := planned(w, d, 10)
			if fails {
				failsOnce("Commit")(w, d)
			}
			if _, err := d.runPage(w.Context(), p); (err != nil) != fails || (d.page.used == nil) != fails {
				w.Errorf("its commit fails %v: %v, used %+v", fails, err, d.page.used)
			}
			w.Intercept(nil)
		})
	}
}

// TestReadsOn checks when a page reads the next page ahead, and the job's record.
func TestReadsOn(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int64
		solo bool
		age  time.Duration // age of the delivery
		want bool
	}{
		{name: "it goes on", n: 50, want: true}, {name: "there is no rest", n: 10},
		{name: "it is suspected", n: 50, solo: true}, {name: "it ends with the page", n: 50, age: 5 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, c.n, function.Visit, func(*testworld.Call) error { time.Sleep(time.Millisecond); return nil },
				func(w *testworld.World, x *Executor) {
					d := loaded(w, x, w.NewJob("j", "m"), func(r *record.Range) { r.Solo = c.solo })
					defer d.planner.Close()
					p := planned(w, d, 10)
					d.begunAt = time.Now().Add(-c.age)
					time.Sleep(2 * cachedFor)
					synctest.Wait()
					var reads atomic.Int64
					on(w, "Lookup", func(_ int, call func() (any, error)) (any, error) {
						reads.Add(1)
						return call()
					})
					before := x.cache.at(d.job.Ref()).read
					s, err := d.runPage(w.Context(), p)
					synctest.Wait()
					w.Intercept(nil)
					reading := x.cache.at(d.job.Ref()).read.After(before)
					if err != nil || s != ours || reading != c.want {
						w.Errorf("%d, %v; it reads the job: %v", s, err, reading)
					}
					t.Log(reads.Load())
				})
		})
	}
}
