package executor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// TestGoesOn checks up to which age a delivery continues with the rest of its range, and up to
// which age it may start a page. The queue's deadline is ten minutes, and a page takes at most 14
// seconds.
func TestGoesOn(t *testing.T) {
	// the last 20 s are for a wait for the job's rate
	const start = 570*time.Second - 14*time.Second - 20*time.Second
	for _, c := range []struct {
		name    string
		age     time.Duration
		timeout time.Duration // time limit for an entity; 0: 10 s
		over    bool          // whether there is a function over pages
		drains  bool
		goes    bool
		starts  bool
	}{
		{name: "at its start", goes: true, starts: true},
		{name: "in the first quarter", age: 150*time.Second - 1, goes: true, starts: true},
		{name: "after a quarter", age: 150 * time.Second, starts: true},
		{name: "while a page still fits", age: start - 1, starts: true},
		{name: "when no page fits", age: start},
		{name: "with a function over pages", age: start - function.MaxInTransaction - 1, over: true, starts: true},
		{name: "with a function over pages, too late", age: start - function.MaxInTransaction, over: true},
		{name: "with long pages", age: 100 * time.Second, timeout: 8 * time.Minute},
		{name: "while it drains", drains: true, starts: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				d := loaded(w, x, w.NewJob("j", "m"))
				d.begunAt = time.Now().Add(-c.age)
				if c.timeout > 0 {
					d.job.Timeout = int64(c.timeout)
				}
				if c.over {
					d.functions.OverPage = func(_ context.Context, _ *function.Attempt, _ string,
						_ []any) error {
						return nil
					}
				}
				if c.drains {
					_, _ = x.Gate.Drain(w.Context())
				}
				if goes, starts := d.mayGoOn(), d.mayStart(); goes != c.goes || starts != c.starts {
					w.Errorf("goes on %v, starts a page %v", goes, starts)
				}
			})
		})
	}
}

// TestNextPage checks the size of the next pages. The job's pages have at most 100 entities, and
// may take two seconds.
func TestNextPage(t *testing.T) {
	for _, c := range []struct {
		name     string
		reached  int
		ran      time.Duration // how long the function took for the page, including its waits
		batch    int
		narrowed int64
		want     int64
	}{
		{"fast", 10, time.Second, 0, 0, 100},
		{"half of the deadline", 10, 100 * time.Second, 0, 0, 30},
		{"one entity takes longer", 1, 400 * time.Second, 0, 0, 1},
		{"whole batches", 10, time.Second, 30, 0, 90},
		{"a batch larger than a page", 10, time.Second, 200, 0, 100},
		{"after a page was cut off", 10, time.Second, 10, 15, 30},
		{"after a page was cut off, without batches", 10, time.Second, 0, 15, 100},
		{"no time at all", 10, 0, 0, 0, 100},
	} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.PageSize = 100
			d := loaded(w, x, j, func(r *record.Range) { r.Narrowed = c.narrowed })
			d.functions.BatchSize, d.page.ran = c.batch, c.ran
			o := page.Failed(nil)
			o.Reached = c.reached
			if got := d.nextPageSize(o); got != c.want {
				w.Errorf("%s: %d, want %d", c.name, got, c.want)
			}
		})
	}
}

// TestCut checks a planned cut in the commit of a page.
func TestCut(t *testing.T) {
	piece := func(ids ...int64) (all []split.Piece) {
		for i, p := range at(ids...) {
			s := split.Piece{Start: p}
			if all = append(all, s); i > 0 {
				all[i-1].End = p
			}
		}
		return all
	}
	for _, c := range []struct {
		name   string
		pieces []split.Piece
		err    error
		want   int
		wrong  bool
	}{
		{"in two", piece(1, 5), nil, 2, false}, {"not at all", piece(1), nil, 1, false},
		{"the search fails", piece(1, 5), errInjected, 0, false}, {"out of order", nil, planner.ErrCut, 0, true},
	} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"))
			p := planner.Plan{Pieces: func() ([]split.Piece, error) { return c.pieces, c.err }}
			pieces, err := d.cut(w.Context(), p, page.Failed(nil))
			if len(pieces) != c.want || (err != nil) != c.wrong || c.wrong && !errors.Is(err, c.err) {
				w.Errorf("%s: %v, %v", c.name, pieces, err)
			}
			p.At = at(1)
			of, err := d.outcome(w.Context(), p, page.Failed(nil))
			if (err != nil) != c.wrong || len(of.Cut) != c.want {
				w.Errorf("%s: the commit cuts it in %d, %v", c.name, len(of.Cut), err)
			}
		})
	}
}

// slow returns a delivery of a job's first page, and the results of 50 entities that took a minute.
// The range has 200 entities, and the job four workers.
func slow(w *testworld.World, x *Executor, change func(r *record.Range)) (*delivery, planner.Plan, *page.Results) {
	w.Helper()
	j := w.NewJob("j", "m")
	j.Workers, j.PageSize = 4, 100
	d := loaded(w, x, j, func(r *record.Range) {
		r.Cut, r.Estimate, r.Exact, r.FairShare, r.Workers = true, 200, true, 50, 1
		change(r)
	})
	p, err := d.planner.Plan(w.Context(), d.job, d.record)
	if err != nil {
		w.Fatal(err)
	}
	o := page.Failed(nil)
	o.Reached, o.Ran, o.Spent = 50, time.Minute, time.Minute
	d.page.ran = time.Minute
	time.Sleep(10 * time.Second)
	for range 50 {
		x.dispatch.Note(time.Now().Add(-time.Second), time.Now())
	}
	return d, p, o
}

// TestLeftAfter checks what a task knows about its load, and whether it can give work away.
func TestLeftAfter(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *record.Range)
		ok     bool
	}{
		{"a range", func(*record.Range) {}, true},
		{"nobody knows what other workers have", func(r *record.Range) { r.FairShare = 0 }, false},
		{"a suspected range", func(r *record.Range) { r.Solo = true }, false},
		{"a single entity", func(r *record.Range) { r.Alone, r.Start = true, at(1)[0] }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 200, function.Visit, nil, func(w *testworld.World, x *Executor) {
				d, p, o := slow(w, x, c.change)
				defer d.planner.Close()
				x.cache.at(d.job.Ref()).looking.Store(true) // a read that has not ended: nobody learns more meanwhile
				l, ok := d.leftAfter(w.Context(), p, o, 50)
				if ok != c.ok || ok && (l.Left != 150 || l.Page != d.nextPageSize(o) || l.Page == 0 ||
					l.Task < time.Second/2) {
					w.Errorf("%v: %+v", ok, l)
				}
				late := d.late(w.Context(), p)
				for _, is := range []struct {
					ran  time.Duration
					late bool
				}{
					{time.Minute, c.ok}, {time.Minute + lawEvery - 1, false}, {time.Minute + lawEvery, c.ok},
				} {
					if o.Ran = is.ran; late(o, 50, 80) != is.late {
						w.Errorf("after %v the page ends: %v", is.ran, !is.late)
					}
				}
			})
		})
	}
}

// TestCutByLaw checks how the rest of a slow range is cut after a page, with idle workers and
// without. A task that will end in time must not search for boundaries.
func TestCutByLaw(t *testing.T) {
	for _, c := range []struct {
		name string
		open int64         // number of open ranges of the job
		rest time.Duration // the job's remaining work
		ran  time.Duration
		idle int64
		cuts bool
	}{
		{"three workers are idle", 1, 0, time.Minute, 3, true}, {"one worker is idle", 3, 0, time.Minute, 1, true},
		{"all have work", 4, 0, time.Minute, 0, true}, {"it is fast", 1, 0, time.Millisecond, 0, false},
		{"others have more work", 4, time.Hour, time.Minute, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 200, function.Visit, nil, func(w *testworld.World, x *Executor) {
				d, p, o := slow(w, x, func(r *record.Range) { r.Exact = false })
				defer d.planner.Close()
				o.Ran, d.state.idle = c.ran, 7
				synctest.Wait()
				outlook := &outlook{split.Outlook{Open: c.open, Rest: c.rest}, time.Now()}
				x.cache.at(d.job.Ref()).outlook.Store(outlook)
				var searches atomic.Int64
				on(w, "RunQuery", func(_ int, call func() (any, error)) (any, error) { searches.Add(1); return call() })
				pieces, err := d.cut(w.Context(), p, o)
				w.Intercept(nil)
				if err != nil || (len(pieces) > 1) != c.cuts || (searches.Load() > 0) != c.cuts ||
					c.cuts && d.state.idle != c.idle {
					w.Errorf("%d pieces, for %d idle workers, by %d queries; %v", len(pieces), d.state.idle,
						searches.Load(), err)
				}
			})
		})
	}
}

// TestLookAround checks when a process reads how much work its job still has, and what it assumes
// before.
func TestLookAround(t *testing.T) {
	for _, share := range []int64{0, 50} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Workers = 4
			insert(w, j, j.RootRange())
			reads, load := 0, split.Load{Workers: 4, Left: 1_000_000, Here: time.Second}
			on(w, "RunQuery", func(n int, call func() (any, error)) (any, error) {
				reads = n
				time.Sleep(time.Millisecond)
				return call()
			})
			look := func(what string, fresh bool, age time.Duration, want int) {
				w.Helper()
				o, got, ok := x.remainingWork(w.Context(), j, share, time.Millisecond, load)
				if ok != (fresh || share > 0) || got != age || fresh && o.Open != 1 || !fresh && o.Entities != 4*share {
					w.Errorf("%s: %+v of age %v, known %v", what, o, got, ok)
				}
				time.Sleep(time.Millisecond / 2)
				synctest.Wait()
				if reads != want {
					w.Errorf("%s: %d reads, want %d", what, reads, want)
				}
			}
			look("at first", false, 0, 1)
			look("during the read", false, 0, 1)
			time.Sleep(time.Millisecond)
			look("after it", true, 2*time.Millisecond, 1)
			time.Sleep(247500 * time.Microsecond)
			look("just before it is outdated", true, 250*time.Millisecond, 1)
			time.Sleep(52 * time.Millisecond)
			look("later", true, 302500*time.Microsecond, 2)
			time.Sleep(time.Millisecond)
			look("soon after", true, 1500*time.Microsecond, 2)
			time.Sleep(time.Minute)
			look("after a minute", true, time.Minute+2*time.Millisecond, 3)
			time.Sleep(time.Second)
			look("after a minute and a second", true, time.Second+500*time.Microsecond, 3)
			time.Sleep(time.Minute)
			refuse(w, "RunQuery", errInjected)
			time.Sleep(time.Minute)
			o, age, ok := x.remainingWork(w.Context(), j, share, time.Millisecond, split.Load{Workers: 4})
			if !ok || age < time.Minute || o.Open != 1 {
				w.Errorf("%+v of age %v", o, age)
			}
			time.Sleep(time.Minute)
			if _, again, _ := x.remainingWork(w.Context(), j, share, time.Millisecond,
				split.Load{Workers: 4}); again <= age {
				w.Errorf("a read that fails makes the age %v, after %v", again, age)
			}
			synctest.Wait()
		})
	}
}

// TestGivesWork runs a job for four workers, whose first pages are slow. Its task must give work to
// the other workers, and end pages early for this.
func TestGivesWork(t *testing.T) {
	for _, c := range []struct {
		name   string
		slow   func(id int64) bool
		most   time.Duration
		ranges int
	}{
		{"all are slow", func(int64) bool { return true }, 40 * time.Second, 4},
		{"the last ones are slow", func(id int64) bool { return id > 100 }, 30 * time.Second, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 200, function.Update, func(a *testworld.Call) error {
				if a.N += 1000; c.slow(a.ID) {
					time.Sleep(500 * time.Millisecond)
				}
				return nil
			}, func(w *testworld.World, _ *Executor) {
				j := w.NewJob("j", "m")
				j.Workers, j.PageSize, j.PageTime = 4, 100, int64(20*time.Second)
				w.Begin(j)
				time.Sleep(c.most)
				got, first := said(w, "j"), 0
				for _, r := range w.Records(j) {
					if !r.Continued {
						first++
					}
					if r.EntitySize == 0 {
						w.Errorf("the size of entities of %s is unknown", r.ID)
					}
				}
				if fmt.Sprintf("%.24s", got) != "succeeded, 200 processed" || first < c.ranges {
					w.Errorf("%s, in %d ranges", got, first)
				}
			})
		})
	}
}
