package executor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// TestSuspected delivers a range with the entities 1 to 20 in different states of suspicion. An
// earlier delivery may have died an hour ago. This delivery is the second attempt of the task.
func TestSuspected(t *testing.T) {
	dead := func(n int) (s record.Suspicion) {
		s.Solo = true
		for range n {
			s.Deaths = append(s.Deaths, "d")
			s.DeathsCountAt = append(s.DeathsCountAt, time.Unix(0, 0))
		}
		return s
	}
	begun := func(alone bool) record.Suspicion {
		return record.Suspicion{Begun: "before", BegunAt: time.Unix(0, 0), BegunQuiet: alone, Solo: alone}
	}
	for _, c := range []struct {
		name   string
		s      record.Suspicion
		alone  bool // whether the range has only entity 1
		gone   bool // whether entity 1 was deleted
		calls  int  // number of calls of the function
		failed bool // whether the entity is recorded as a failure
		solo   bool // whether the rest of the range is suspected
	}{
		{"nothing has died: all goes on", record.Suspicion{}, false, false, 20, false, false},
		{"a process died that did other things, too: the page is exclusive", begun(false), false, false, 10, false,
			false},
		{"one died that did nothing else: the page is halved", begun(true), false, false, 5, false, true},
		{"an entity whose process died four times is tried again", dead(record.MaxDeaths - 1), true, false, 1, false,
			false},
		{"one whose process died five times is a failure", dead(record.MaxDeaths), true, false, 0, true, false},
		{"it is gone: nothing has failed", dead(record.MaxDeaths), true, true, 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			inWorld(t, 20, function.Update, func(*testworld.Call) error { calls++; return nil },
				func(w *testworld.World, x *Executor) {
					j := w.NewJob("j", "m")
					r := j.RootRange()
					if r.Suspicion = c.s; c.alone {
						r.Alone, r.Start = true, keyspace.At(testworld.Key(1))
					}
					if _, err := w.Client.Mutate(w.Context(), j.Insert(), r.Insert()); err != nil {
						w.Fatal(err)
					}
					if c.gone {
						if err := w.Client.Delete(w.Context(), testworld.Key(1)); err != nil {
							w.Fatal(err)
						}
					}
					// makes the tasks of other ranges fail, so that these ranges stay pending
					w.Range = func(context.Context, tasks.Delivery) error { return errBad }
					if err := x.Deliver(w.Context(), tasks.Delivery{Body: body.TaskOf(r, j).Body, TaskID: "t",
						RetryCount: 1}); err != nil {
						w.Fatal(err)
					}
					failed, solo := false, false
					for _, now := range w.Records(j) {
						failed, solo = failed || now.Failed != "", solo || now.State == record.Pending && now.Solo
						if now.Begun != "" && now.State == record.Pending {
							w.Errorf("a mark is left in %s", now.ID)
						}
					}
					if calls != c.calls || failed != c.failed || solo != c.solo {
						w.Errorf("%d calls, failed %v, the rest is suspected %v; want %d, %v, %v", calls, failed, solo,
							c.calls,
							c.failed, c.solo)
					}
				})
		})
	}
}

// TestPostponed checks when a range whose process may have died gets a new task instead of this
// delivery, and when the new task is due.
func TestPostponed(t *testing.T) {
	deaths := func(n int, after time.Duration) (s record.Suspicion) {
		s.Solo = true
		for range n {
			s.Deaths = append(s.Deaths, "d")
			s.DeathsCountAt = append(s.DeathsCountAt, time.Unix(946684800, 0).Add(after))
		}
		return s
	}
	for _, c := range []struct {
		name   string
		s      record.Suspicion
		alone  bool
		retry  int
		other  func(r *record.Range) // another delivery's change just before
		refuse string
		calls  int
		due    time.Duration // when the new task is due; 0: there is none
		wrong  bool
	}{
		{name: "eight deliveries", s: deaths(0, 0), alone: true, retry: 8, due: 10 * time.Second},
		{name: "seven deliveries", s: deaths(0, 0), alone: true, retry: 7, calls: 1},
		{name: "eight deliveries of an exclusive range", s: deaths(0, 0), retry: 8, due: 10 * time.Second},
		{name: "eight deliveries of a single entity", alone: true, retry: 8, due: 10 * time.Second},
		{name: "eight deliveries of others", retry: 8, calls: 20},
		{name: "deaths that are not certain yet", s: deaths(record.MaxDeaths, time.Minute), alone: true, retry: 1,
			due: time.Minute},
		{name: "fewer deaths", s: deaths(record.MaxDeaths-1, time.Minute), alone: true, retry: 1, calls: 1},
		{name: "deaths of a range", s: deaths(record.MaxDeaths, -time.Minute), retry: 1, due: 10 * time.Second},
		{name: "another task by now", s: deaths(0, 0), alone: true, retry: 8,
			other: func(r *record.Range) { r.Generation++ }},
		{name: "done by now", s: deaths(0, 0), alone: true, retry: 8, other: func(r *record.Range) { r.Finish(now()) }},
		{name: "the database fails", s: deaths(0, 0), alone: true, retry: 8, refuse: "Commit", wrong: true},
		{name: "the queue fails", s: deaths(0, 0), alone: true, retry: 8, refuse: "CreateTask", wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			inWorld(t, 20, function.Update, func(*testworld.Call) error { calls++; return nil },
				func(w *testworld.World, x *Executor) {
					got, j := take(w), w.NewJob("j", "m")
					r := j.RootRange()
					r.PageSize = 20
					if r.Suspicion = c.s; c.alone {
						r.Alone, r.Start = true, at(1)[0]
					}
					insert(w, j, r)
					d := load(w, x, j, r, tasks.Delivery{RetryCount: c.retry, TaskID: "t"})
					defer d.planner.Close()
					if c.other != nil {
						if _, err := x.Store.UpdateRange(w.Context(), r.Key(), func(r *record.Range) bool {
							c.other(r)
							return true
						}); err != nil {
							w.Fatal(err)
						}
					}
					if c.refuse != "" {
						refuse(w, c.refuse, errInjected)
						time.AfterFunc(time.Minute, func() { w.Intercept(nil) })
					}
					if _, err := d.runRange(w.Context()); (err != nil) != c.wrong {
						w.Errorf("%v", err)
					}
					time.Sleep(5 * time.Minute)
					synctest.Wait()
					got.mu.Lock()
					defer got.mu.Unlock()
					due := got.at[r.ID]
					if calls != c.calls || len(due) > 1 || (len(due) > 0) != (c.due > 0) ||
						len(due) > 0 && due[0].Truncate(time.Second) != c.due {
						w.Errorf("%d calls, new tasks after %v", calls, due)
					}
					stored := w.Records(j)[r.ID]
					if stored.State == record.Pending && (stored.Begun != "" || c.due > 0 &&
						stored.Generation != r.Generation+1) {
						w.Errorf("generation %d after %d, mark %q", stored.Generation, r.Generation, stored.Begun)
					}
				})
		})
	}
}

// TestCondemnFails makes the database fail while a delivery checks whether a deadly entity still
// exists. Nothing must be recorded.
func TestCondemnFails(t *testing.T) {
	inWorld(t, 1, function.Update, nil, func(w *testworld.World, x *Executor) {
		d := loaded(w, x, w.NewJob("j", "m"), func(r *record.Range) { r.Alone, r.Start = true, at(1)[0] })
		refuse(w, "Lookup", errInjected)
		s, err := d.condemn(w.Context(), 5)
		w.Intercept(nil)
		if err == nil || w.Records(d.job)[d.record.ID].State != record.Pending {
			w.Errorf("%d, %v", s, err)
		}
	})
}

// TestBegin writes the crash mark (record.CrashMark) of a delivery, while another delivery changes
// the record or answers are lost.
func TestBegin(t *testing.T) {
	for _, c := range []struct {
		name      string
		exclusive bool
		lose      bool // whether the answer to the first commit is lost
		refuse    error
		other     func(r *record.Range)
		s         standing
		wrong     bool
		begun     bool
		mark      string // the mark in the record afterwards; "own": this delivery's mark
	}{
		{name: "it leaves it", begun: true, mark: "own"},
		{name: "the answer is lost", lose: true, begun: true, mark: "own"},
		{name: "another delivery has left one", other: func(r *record.Range) { r.Begun = "other" }, s: changed,
			mark: "other"},
		{name: "the other one has ended", exclusive: true, s: changed},
		{name: "another delivery has done the range", other: func(r *record.Range) { r.Finish(now()) }, s: done},
		{name: "the range has another task", other: func(r *record.Range) { r.Generation++ }, s: superseded},
		{name: "the database fails", refuse: errInjected, wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 5, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				r := j.RootRange()
				insert(w, j, r)
				d := load(w, x, j, r, tasks.Delivery{RetryCount: 1, TaskID: "t"})
				if c.other != nil {
					if _, err := x.Store.UpdateRange(w.Context(), r.Key(), func(r *record.Range) bool {
						c.other(r)
						return true
					}); err != nil {
						w.Fatal(err)
					}
				}
				on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
					if c.refuse != nil {
						return nil, c.refuse
					}
					answer, err := call()
					if c.lose && n == 1 {
						// an error after which the client tries again
						err = status.Error(codes.Unavailable, "injected")
					}
					return answer, err
				})
				s, err := d.begin(w.Context(), c.exclusive, false)
				w.Intercept(nil)
				stored := w.Records(j)[r.ID]
				if c.mark == "own" {
					c.mark = d.state.mark
				}
				if s != c.s || (err != nil) != c.wrong || d.state.begun != c.begun || stored.Begun != c.mark ||
					d.state.mark == "" {
					w.Errorf("%d, %v; begun %v, mark %q of %q", s, err, d.state.begun, stored.Begun, d.state.mark)
				}
				if c.begun && (stored.Attempts > 1 || len(stored.Deaths) > 0 || stored.Solo) {
					w.Errorf("one delivery leaves %+v", stored.Suspicion)
				}
			})
		})
	}
}

// TestUnmark removes the crash mark (record.CrashMark) of a delivery that ends normally. If the
// delivery was cut off, its page may have been too large, and must be halved.
func TestUnmark(t *testing.T) {
	for _, c := range []struct {
		name     string
		mark     string // the delivery's mark
		stored   string // the mark in the record
		cutOff   bool
		dead     bool // whether the delivery's death is recorded
		size     int64
		estimate int64
		done     bool
		refusals int // number of calls that the database refuses
		want     string
		narrowed int64
	}{
		{name: "it has none", stored: "other", size: 10, want: "other"},
		{name: "nobody has one", size: 10},
		{name: "it has one", mark: "own", stored: "own", size: 10},
		{name: "another delivery has one", mark: "own", stored: "other", size: 10, want: "other"},
		{name: "it was cut off", mark: "own", stored: "own", cutOff: true, size: 10, narrowed: 5},
		{name: "it was cut off, of a few entities", mark: "own", stored: "own", cutOff: true, size: 10, estimate: 4,
			narrowed: 2},
		{name: "it was cut off, of one entity", mark: "own", stored: "own", cutOff: true, size: 1},
		{name: "it was cut off, of two entities", mark: "own", stored: "own", cutOff: true, size: 2, narrowed: 1},
		{name: "it was cut off after another one", mark: "own", stored: "other", cutOff: true, size: 10,
			want: "other"},
		{name: "it was cut off, and counts as dead, after another one", mark: "own", stored: "other", dead: true,
			cutOff: true, size: 10, want: "other"},
		{name: "the range is done", mark: "own", stored: "own", cutOff: true, size: 10, done: true, want: "own"},
		{name: "the database fails for a while", mark: "own", stored: "own", size: 10, refusals: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				d := loaded(w, x, j, func(r *record.Range) {
					r.Begun, r.PageSize, r.Estimate = c.stored, c.size, c.estimate
					if c.done {
						r.State, r.Open = record.Done, ""
					}
					if c.dead {
						r.Deaths, r.DeathsCountAt = []string{"own"}, []time.Time{now()}
					}
				})
				commits := 0
				on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
					if commits = n; n <= c.refusals {
						return nil, errInjected
					}
					return call()
				})
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				if c.cutOff {
					cancel()
				}
				d.state.mark = c.mark
				d.unmark(ctx)
				w.Intercept(nil)
				if c.mark == "" && commits > 0 {
					w.Errorf("%d commits", commits)
				}
				if r := w.Records(j)[d.record.ID]; r.Begun != c.want || r.Narrowed != c.narrowed || len(r.Deaths) > 0 {
					w.Errorf("mark %q, narrowed to %d", r.Begun, r.Narrowed)
				}
			})
		})
	}
}
