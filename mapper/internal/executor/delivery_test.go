package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

var errBad = errors.New("bad")

// inWorld runs a test in a synctest bubble. Its world has n entities, and the executor runs the
// tasks of ranges.
func inWorld(t *testing.T, n int64, mode function.Mode, fn func(c *testworld.Call) error,
	test func(w *testworld.World, x *Executor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := testworld.New(t, n, testworld.Mapper("m", mode, fn))
		x := New(w.Client, w.Jobs)
		w.Range = x.Deliver
		test(w, x)
	})
}

// said describes a job's end as text: its state, totals and failures.
func said(w *testworld.World, id string) string {
	job := w.Job(id)
	var processed, pages int64
	var failed []string
	for _, r := range w.Records(job) {
		if processed += r.Processed; r.State == record.Done && !r.Alone {
			pages++
		}
		if r.Failed != "" {
			failed = append(failed, fmt.Sprint(r.Start.Key.ID))
		}
	}
	text := fmt.Sprintf("%s, %d processed by %d pages", job.State, processed, pages)
	if slices.Sort(failed); len(failed) > 0 {
		text += ", failed " + strings.Join(failed, " ")
	}
	return text
}

// TestDeliver runs whole jobs over 35 entities, in pages of 10.
func TestDeliver(t *testing.T) {
	tries := make(map[int64]int)
	adds := func(c *testworld.Call) error { c.N += 100; return nil }
	for _, c := range []struct {
		name   string
		mode   function.Mode
		fn     func(c *testworld.Call) error
		change func(j *record.Job)
		want   string
		n      map[int64]int64 // the new values of N, by ID
		alone  int             // number of ranges of single entities; 0: any number, -1: none
	}{
		{name: "an update", fn: adds, want: "succeeded, 35 processed by 4 pages", n: map[int64]int64{1: 101, 35: 135}},
		{name: "a visit", mode: function.Visit, fn: adds, want: "succeeded, 35 processed by 4 pages",
			n: map[int64]int64{1: 1, 35: 35}},
		{name: "in pages of one", fn: adds, change: func(j *record.Job) { j.PageSize = 1 }, alone: -1,
			want: "succeeded, 35 processed by 35 pages", n: map[int64]int64{1: 101, 35: 135}},
		{name: "for four workers", fn: adds, change: func(j *record.Job) { j.Workers = 4 },
			want: "succeeded, 35 processed by 4 pages", n: map[int64]int64{1: 101, 35: 135}},
		{name: "one fails once, and is tried again by itself", fn: func(c *testworld.Call) error {
			if tries[c.ID]++; c.ID == 12 && tries[12] == 1 {
				return errBad
			}
			return adds(c)
		}, want: "succeeded, 35 processed by 4 pages", n: map[int64]int64{11: 111, 12: 112}},
		{name: "one fails in each attempt", alone: 1, fn: func(c *testworld.Call) error {
			if c.ID == 12 {
				return errBad
			}
			return adds(c)
		}, want: "succeeded with failures, 34 processed by 4 pages, failed 12", n: map[int64]int64{11: 111, 12: 12}},
		{name: "one fails for good", fn: func(c *testworld.Call) error {
			if c.ID == 12 {
				return fault.Permanent(errBad)
			}
			return adds(c)
		}, want: "succeeded with failures, 34 processed by 4 pages, failed 12", n: map[int64]int64{11: 111, 12: 12}},
		{name: "all fail: it is the function that is at fault", fn: func(*testworld.Call) error { return errBad },
			change: func(j *record.Job) { j.PageSize = 20 }, want: "failed, 0 processed by 0 pages",
			n: map[int64]int64{1: 1}},
		{name: "all fail, and that is what the job is for", fn: func(*testworld.Call) error { return errBad },
			change: func(j *record.Job) { j.PageSize, j.Tolerant, j.Attempts = 20, true, 1 },
			want: "succeeded with failures, 0 processed by 2 pages, failed 1 10 11 12 13 14 15 16 17 18 19 2 20 21 " +
				"22 23 24 " +
				"25 26 27 28 29 3 30 31 32 33 34 35 4 5 6 7 8 9"},
		{name: "more fail than may", fn: func(c *testworld.Call) error {
			if c.ID%5 == 0 {
				return fault.Permanent(errBad)
			}
			return adds(c)
		}, change: func(j *record.Job) { j.Limit, j.LimitStep = 3, 3 },
			want: "paused, 16 processed by 2 pages, failed 10 15 20 5"},
		{name: "slow: the page ends after its time", fn: func(c *testworld.Call) error {
			time.Sleep(time.Second)
			return adds(c)
		}, change: func(j *record.Job) { j.PageTime = int64(3 * time.Second) },
			want: "succeeded, 35 processed by 12 pages", n: map[int64]int64{1: 101, 35: 135}},
		{name: "at a rate", fn: adds, change: func(j *record.Job) { j.Rate = []byte(`{"entities":5}`) },
			want: "succeeded, 35 processed by 4 pages", n: map[int64]int64{35: 135}},
		{name: "with a budget for all", fn: adds, change: func(j *record.Job) {
			j.Budget = []byte(`{"operations":100000}`)
		},
			want: "succeeded, 35 processed by 4 pages", n: map[int64]int64{35: 135}},
		{name: "more counters than a job can have", fn: func(c *testworld.Call) error {
			for i := range 3000 {
				c.Count(fmt.Sprint(c.ID, "-", i), 1)
			}
			return nil
		}, want: "failed, 20 processed by 2 pages"},
		{name: "too many counters, and they are dropped", fn: func(c *testworld.Call) error {
			for i := range 3000 {
				c.Count(fmt.Sprint(c.ID, "-", i), 1)
			}
			return nil
		}, change: func(j *record.Job) { j.CountersDropped = true }, want: "succeeded, 35 processed by 4 pages"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 35, c.mode, c.fn, func(w *testworld.World, _ *Executor) {
				j := w.NewJob("j", "m")
				if c.change != nil {
					c.change(j)
				}
				w.Begin(j)
				time.Sleep(30 * time.Minute)
				if got := said(w, "j"); got != c.want {
					w.Errorf("%s\nwant %s; %s", got, c.want, w.Job("j").Error)
				}
				alone := 0
				for _, r := range w.Records(w.Job("j")) {
					if r.Alone {
						alone++
					}
				}
				if c.alone != 0 && alone != max(0, c.alone) {
					w.Errorf("%d ranges of single entities", alone)
				}
				for id, n := range c.n {
					if got := w.N(id); got != n {
						w.Errorf("%d is %d, want %d", id, got, n)
					}
				}
			})
		})
	}
}

// TestFound checks what a delivery does in different states of its range and job. The range is the
// job's root with 5 entities. The task names generation 3.
func TestFound(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *testworld.World, x *Executor, j *record.Job, r *record.Range)
		queued tasks.Delivery
		runs   bool              // whether the function runs
		state  record.RangeState // the range's state afterwards; empty: unchanged
		wrong  error
	}{
		{name: "as it was enqueued", runs: true, state: record.Done,
			change: func(*testworld.World, *Executor, *record.Job, *record.Range) {}},
		{name: "delivered again", queued: tasks.Delivery{RetryCount: 1}, runs: true, state: record.Done,
			change: func(*testworld.World, *Executor, *record.Job, *record.Range) {}},
		{name: "it has another task", change: func(_ *testworld.World, _ *Executor, _ *record.Job, r *record.Range) {
			r.Generation = 4
		}},
		{name: "it is done", change: func(_ *testworld.World, _ *Executor, _ *record.Job, r *record.Range) {
			r.State, r.Open = record.Done, ""
		}},
		{name: "it is abandoned", change: func(_ *testworld.World, _ *Executor, _ *record.Job, r *record.Range) {
			r.State, r.Open = record.Abandoned, ""
		}},
		{name: "the job is paused", change: func(_ *testworld.World, _ *Executor, j *record.Job, _ *record.Range) {
			j.State = record.Paused
		}},
		{name: "the job was aborted", change: func(_ *testworld.World, _ *Executor, j *record.Job, _ *record.Range) {
			j.State = record.Aborted
		}},
		{name: "another job has the ID", change: func(_ *testworld.World, _ *Executor, j *record.Job, _ *record.Range) {
			j.Incarnation = "76543210fedcba9876543210"
		}},
		{name: "this build does not have the mapper", wrong: function.ErrUnknownMapper,
			change: func(_ *testworld.World, _ *Executor, j *record.Job, _ *record.Range) { j.Mapper = "new" }},
		{name: "the process drains", wrong: gate.ErrDraining,
			change: func(w *testworld.World, x *Executor, _ *record.Job, _ *record.Range) {
				if _, err := x.Gate.Drain(w.Context()); err != nil {
					w.Fatal(err)
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			inWorld(t, 5, function.Update, func(*testworld.Call) error { calls++; return nil },
				func(w *testworld.World, x *Executor) {
					j := w.NewJob("j", "m")
					r := j.RootRange()
					r.Generation = 3
					task := body.TaskOf(r, j)
					c.change(w, x, j, r)
					if _, err := w.Client.Mutate(w.Context(), j.Insert(), r.Insert()); err != nil {
						w.Fatal(err)
					}
					c.queued.Body = task.Body
					if err := x.Deliver(w.Context(), c.queued); !errors.Is(err, c.wrong) || err != nil &&
						c.wrong == nil {
						w.Errorf("%v, want %v", err, c.wrong)
					}
					if (calls > 0) != c.runs {
						w.Errorf("the function ran %d times", calls)
					}
					if c.state == "" {
						c.state = r.State
					}
					for _, now := range w.Records(&record.Job{ID: "j", Incarnation: r.Incarnation}) {
						if now.State != c.state {
							w.Errorf("the range is %s, want %s", now.State, c.state)
						}
					}
				})
		})
	}
}

// TestForged checks that Deliver returns an error for a task with a forged body.
func TestForged(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		if _, err := w.Client.Mutate(w.Context(), j.Insert()); err != nil {
			w.Fatal(err)
		}
		for _, forged := range []string{"", "{}", `{"job":"../j"}`, string(body.TaskOf(j.RootRange(), j).Body)} {
			if err := x.Deliver(w.Context(), tasks.Delivery{Body: []byte(forged)}); err == nil ||
				!strings.Contains(err.Error(), "not a task of ours") && !strings.Contains(err.Error(),
					"there is no range") {
				w.Errorf("%q is a task: %v", forged, err)
			}
		}
	})
}

// TestDrains drains the process during a page. The page must end after the current entity and
// commit, and the rest must get a task.
func TestDrains(t *testing.T) {
	var calls atomic.Int64
	inWorld(t, 35, function.Update, func(c *testworld.Call) error {
		calls.Add(1)
		c.N += 100
		time.Sleep(100 * time.Millisecond)
		return nil
	}, func(w *testworld.World, x *Executor) {
		w.Begin(w.NewJob("j", "m"))
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		if left, err := x.Gate.Drain(ctx); err != nil {
			w.Fatalf("%d left, %v", left, err)
		}
		x.GiveBack(ctx)
		drained := calls.Load()
		time.Sleep(time.Minute)
		if calls.Load() != drained || drained == 0 || drained == 35 {
			w.Fatalf("%d calls until it had drained, and %d after that", drained, calls.Load())
		}
		w.Change(func() { // continue in another process
			jobs := *w.Jobs
			jobs.Gate = gate.New()
			w.Jobs, w.Range = &jobs, New(w.Client, &jobs).Deliver
		})
		time.Sleep(30 * time.Minute)
		if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 35 processed") || calls.Load() != 35 {
			w.Errorf("%s, by %d calls", got, calls.Load())
		}
	})
}

// TestPauses pauses a job while a delivery continues with the rest of its range, and then resumes
// the job.
func TestPauses(t *testing.T) {
	inWorld(t, 100, function.Update, func(c *testworld.Call) error {
		c.N += 100
		time.Sleep(100 * time.Millisecond)
		return nil
	}, func(w *testworld.World, _ *Executor) {
		j := w.NewJob("j", "m")
		w.Begin(j)
		time.Sleep(2500 * time.Millisecond)
		control := w.Jobs
		if err := control.Pause(w.Context(), j.Ref()); err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		if job := w.Job("j"); job.State != record.Paused || w.N(1) != 101 || w.N(100) != 100 {
			w.Errorf("%s: 1 is %d, 100 is %d", job.State, w.N(1), w.N(100))
		}
		if err := control.Resume(w.Context(), j.Ref()); err != nil {
			w.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 100 processed") || w.N(100) != 200 {
			w.Errorf("%s, 100 is %d", got, w.N(100))
		}
	})
}

// TestBudget runs a job whose budget is too small. The job must pause, and each Resume must renew
// the budget.
func TestBudget(t *testing.T) {
	inWorld(t, 2000, function.Update, func(c *testworld.Call) error { c.N += 10_000; return nil },
		func(w *testworld.World, _ *Executor) {
			j := w.NewJob("j", "m")
			j.PageSize, j.Budget = 100, []byte(`{"operations":4000}`)
			w.Begin(j)
			time.Sleep(time.Hour)
			if job := w.Job("j"); job.State != record.Paused || !job.OverBudget || w.N(1) != 10_001 {
				w.Fatalf("%s: %s; 1 is %d", job.State, job.Error, w.N(1))
			}
			for range 10 {
				if w.Job("j").State == record.Paused {
					if err := w.Jobs.Resume(w.Context(), j.Ref()); err != nil {
						w.Fatal(err)
					}
				}
				time.Sleep(10 * time.Minute)
			}
			if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 2000 processed") {
				w.Error(got)
			}
		})
	if err := CheckBudget(record.Budget{Operations: 10}, 100, 4, 1, billing.NAM5); err == nil {
		t.Error("a budget that no page fits is one")
	}
	if err := CheckBudget(record.Budget{Dollars: 100}, 100, 4, 1, billing.NAM5); err != nil {
		t.Error(err)
	}
}

// TestMoved changes entities between their read and the commit. The function must run again on
// them, and no change may be lost. An entity that changes each time must become a failure.
func TestMoved(t *testing.T) {
	var w *testworld.World
	met := make(map[int64]int)
	inWorld(t, 20, function.Update, func(c *testworld.Call) error {
		if met[c.ID]++; c.ID == 5 && met[5] == 1 || c.ID == 15 {
			if _, err := w.Client.Put(context.WithoutCancel(c), testworld.Key(c.ID),
				&testworld.Thing{N: c.N + 1}); err != nil {
				return err
			}
		}
		c.N += 100
		return nil
	}, func(world *testworld.World, _ *Executor) {
		w = world
		j := w.NewJob("j", "m")
		w.Begin(j)
		time.Sleep(time.Hour)
		if n := w.N(5); n != 106 || met[5] != 2 {
			w.Errorf("5 is %d after %d calls", n, met[5])
		}
		if got := said(w, "j"); got != "succeeded with failures, 19 processed by 2 pages, failed 15" {
			w.Errorf("%s, after %d calls for 15", got, met[15])
		}
		// three runs in its page, and twenty in each attempt in its own range
		if met[15] != 63 {
			w.Errorf("%d calls for 15", met[15])
		}
	})
}
