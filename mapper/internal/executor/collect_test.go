package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// sheet returns the key of the entity that the function over a page puts.
func sheet(sum int64) *datastore.Key { return datastore.IDKey("Sheet", sum, nil) }

// inPages runs a test in a synctest bubble, with n entities and a VisitPages mapper. The function
// over is called with the IDs of a page's entities.
func inPages(t *testing.T, n int64, over func(ctx context.Context, a *function.Attempt, name string, ids []int64) error,
	test func(w *testworld.World, x *Executor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := testworld.Mapper("m", function.Visit, func(c *testworld.Call) error {
			c.Collect(c.ID)
			return nil
		})
		m.PreparePage = func(json.RawMessage) (function.PageFunc, error) {
			return func(ctx context.Context, a *function.Attempt, name string, collected []any) error {
				var ids []int64
				for _, v := range collected {
					ids = append(ids, v.(int64))
				}
				return over(ctx, a, name, ids)
			}, nil
		}
		w := testworld.New(t, n, m)
		x := New(w.Client, w.Jobs)
		w.Range = x.Deliver
		test(w, x)
	})
}

// TestOverPage checks that the effect of the function over a page is committed with the page. If
// the page is not committed, the function's OnRollback must be called.
func TestOverPage(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(a *function.Attempt, try int) error // the result of over for the first page
		want string
		lost int           // number of attempts whose OnRollback was called
		took time.Duration // the least duration of the job
	}{
		{name: "it succeeds", want: "succeeded, 15 processed by 2 pages"},
		{name: "it fails once", fail: func(_ *function.Attempt, try int) error {
			if try == 1 {
				return errBad
			}
			return nil
		}, want: "succeeded, 15 processed by 2 pages", lost: 1, took: time.Second},
		{name: "it fails always", fail: func(*function.Attempt, int) error { return errBad },
			want: "failed, 0 processed by 0 pages", lost: 3},
		{name: "its error is permanent", fail: func(*function.Attempt, int) error { return fault.Permanent(errBad) },
			want: "failed, 0 processed by 0 pages", lost: 1},
		{name: "it says when to try again", fail: func(_ *function.Attempt, try int) error {
			if try == 1 {
				return fault.RetryAfter(errBad, 10*time.Minute)
			}
			return nil
		}, want: "succeeded, 15 processed by 2 pages", lost: 1, took: 10 * time.Minute},
		{name: "it misuses its page", fail: func(a *function.Attempt, _ int) error {
			a.Count("", 1)
			return nil
		}, want: "failed, 0 processed by 0 pages", lost: 1},
		{name: "it takes too long once", fail: func(_ *function.Attempt, try int) error {
			if try == 1 {
				time.Sleep(2 * function.MaxInTransaction)
			}
			return nil
		}, want: "succeeded, 15 processed by 2 pages", took: function.MaxInTransaction},
		{name: "it ends its goroutine once", fail: func(_ *function.Attempt, try int) error {
			if try == 1 {
				runtime.Goexit()
			}
			return nil
		}, want: "succeeded, 15 processed by 2 pages", lost: 1},
		{name: "it panics once", fail: func(_ *function.Attempt, try int) (err error) {
			defer function.Recovered(&err)
			if try == 1 {
				panic(errBad)
			}
			return nil
		}, want: "succeeded, 15 processed by 2 pages", lost: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex // a call that took too long still runs during the next call
			tries, lost := 0, 0
			var names []string
			var ended time.Time
			inPages(t, 15, func(_ context.Context, a *function.Attempt, name string, ids []int64) error {
				mu.Lock()
				names = append(names, name)
				tries++
				try := tries
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					ended = time.Now()
				}()
				a.OnLost(func(context.Context) {
					mu.Lock()
					defer mu.Unlock()
					lost++
				})
				sum := int64(0)
				for _, id := range ids {
					sum += id
				}
				a.Put(sheet(sum), &testworld.Thing{N: sum})
				a.Count("sum", sum)
				if c.fail != nil && slices.Contains(ids, 1) {
					return c.fail(a, try)
				}
				return nil
			}, func(w *testworld.World, _ *Executor) {
				begun := time.Now()
				j := w.NewJob("j", "m")
				w.Begin(j)
				time.Sleep(time.Hour)
				synctest.Wait()
				job := w.Job("j")
				if got := said(w, "j"); got != c.want || lost != c.lost || ended.Sub(begun) < c.took {
					w.Errorf("%s after %v, %d lost; %s", got, ended.Sub(begun), lost, job.Error)
				}
				checkSheets(w, job, strings.HasPrefix(c.want, "succeeded"))
				for i, name := range names {
					if slices.Contains(names[:i], name) {
						w.Errorf("the name %s is given twice", name)
					}
				}
			})
		})
	}
}

// checkSheets checks that the effects of both pages are stored, or that none is.
func checkSheets(w *testworld.World, job *record.Job, are bool) {
	w.Helper()
	first := w.Client.Get(w.Context(), sheet(55), new(testworld.Thing))
	second := w.Client.Get(w.Context(), sheet(65), new(testworld.Thing))
	if !are {
		if first == nil || second == nil {
			w.Error("an effect of a failed page is stored")
		}
		return
	}
	sum, err := job.RecordedTotals()
	if err != nil || fmt.Sprint(sum.Counters) != "map[sum:120]" || first != nil || second != nil {
		w.Errorf("%v, %v; counters %v, %v", first, second, sum.Counters, err)
	}
}

// TestCollectNothing checks that the function over a page is not called if the page has collected
// no values.
func TestCollectNothing(t *testing.T) {
	inPages(t, 0, func(context.Context, *function.Attempt, string, []int64) error { return errBad },
		func(w *testworld.World, _ *Executor) {
			w.Begin(w.NewJob("j", "m"))
			time.Sleep(time.Minute)
			if got := said(w, "j"); got != "succeeded, 0 processed by 1 pages" {
				w.Error(got)
			}
		})
}

// TestCollectCalls lets the function over a page call a service, under a limit of the rate of
// calls. If the page's calls are refused, the page must be retried later.
func TestCollectCalls(t *testing.T) {
	var made []time.Time
	var w *testworld.World
	refused := 0
	inPages(t, 30, func(ctx context.Context, a *function.Attempt, _ string, _ []int64) error {
		err := errors.Join(a.AwaitCalls(ctx, 1), a.AwaitCalls(ctx, 1))
		if err != nil {
			refused++
			return err
		}
		made = append(made, time.Now())
		return nil
	}, func(world *testworld.World, x *Executor) {
		w = world
		j := w.NewJob("j", "m")
		j.Rate = []byte(`{"calls":0.02}`)
		begun := time.Now()
		w.Begin(j)
		time.Sleep(2 * time.Hour)
		if got := said(w, "j"); got != "succeeded, 30 processed by 3 pages" || len(made) != 3 {
			w.Fatalf("%s, %d calls, %d refused", got, len(made), refused)
		}
		if took := made[2].Sub(begun); took < 190*time.Second { // the first two of the 6 calls need not wait
			w.Errorf("the last calls are made after %v", took)
		}
		calls := int64(0)
		for _, r := range w.Records(j) {
			calls += r.Calls
		}
		if calls != 6 {
			w.Errorf("%d calls are recorded", calls)
		}
		if most := x.paces.CallMeter(j.Ref()).Begins(time.Hour); most != time.Hour/2 {
			w.Errorf("runs wait twice each, and may wait %v", most)
		}
	})
}

// TestCollectMeter checks which runs of the function over a page count in the meter's statistics of
// runs that wait for calls.
func TestCollectMeter(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls int           // number of calls that the function announces
		sleep time.Duration // duration of the function
		want  time.Duration // how much of an hour a run may wait at its start afterwards
	}{
		{"it makes calls", 2, 0, time.Hour / 2}, {"it makes none", 0, 0, time.Hour},
		{"it takes too long", 2, 2 * function.MaxInTransaction, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			inPages(t, 5, func(ctx context.Context, a *function.Attempt, _ string, _ []int64) (err error) {
				for range c.calls {
					err = errors.Join(err, a.AwaitCalls(ctx, 1))
				}
				time.Sleep(c.sleep)
				return err
			}, func(w *testworld.World, x *Executor) {
				take(w)
				j := w.NewJob("j", "m")
				j.Rate = []byte(`{"calls":10}`)
				d := loaded(w, x, j)
				defer d.planner.Close()
				_, err := d.runRange(w.Context())
				time.Sleep(time.Minute)
				if most := x.paces.CallMeter(j.Ref()).Begins(time.Hour); most != c.want || err != nil {
					w.Errorf("the next run may wait %v: %v", most, err)
				}
				if c.calls > 0 {
					return
				}
				x.paces.CallMeter(j.Ref()).Ran(10)
				before := x.paces.CallMeter(j.Ref()).Begins(time.Hour)
				if _, err := d.collect(w.Context(), collected()); err != nil {
					w.Error(err)
				}
				if after := x.paces.CallMeter(j.Ref()).Begins(time.Hour); after != before {
					w.Errorf("after a run without calls, the next one may wait %v, and before it %v", after, before)
				}
			})
		})
	}
}

// collected returns the results of a page that has one collected value.
func collected() *page.Results {
	o := page.Failed(nil)
	o.Collected = []any{int64(1)}
	return o
}

// TestCollectRefused refuses the calls of the function over a page, because other processes have
// reserved the rate, or because there are too many calls. The page must fail even if the function
// ignores the error.
func TestCollectRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls int
		hides bool
		other time.Duration // the time for which other processes have reserved the rate
		want  string
		error string
	}{
		{name: "others call", calls: 1, other: 200 * time.Second, want: "succeeded, 15 processed by "},
		{name: "others call, and it hides that", calls: 1, hides: true, other: 200 * time.Second,
			want: "succeeded, 15 processed by "},
		{name: "too many", calls: 7, want: "failed, 0 processed", error: "has announced 7 calls"},
		{name: "too many, and it hides that", calls: 7, hides: true, want: "failed, 0 processed",
			error: "has announced 7 calls"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var x *Executor
			var j *record.Job
			refused := 0
			inPages(t, 15, func(ctx context.Context, a *function.Attempt, _ string, ids []int64) error {
				if c.other > 0 && refused == 0 {
					if _, _, err := x.Store.ReserveRate(context.WithoutCancel(ctx), j, record.CallClockKey(j.Ref()),
						new(time.Duration),
						func(q pace.Queue) (time.Duration, int64) { return c.other - q.Wait, 1 }); err != nil {
						return err
					}
				}
				sum := int64(0)
				for _, id := range ids {
					sum += id
				}
				err := a.AwaitCalls(ctx, c.calls)
				if err != nil {
					refused++
				}
				if a.Count("sum", sum); c.hides {
					return nil
				}
				return err
			}, func(w *testworld.World, executor *Executor) {
				x, j = executor, w.NewJob("j", "m")
				j.Rate, j.Attempts = []byte(`{"calls":0.02}`), 2
				w.Begin(j)
				time.Sleep(12 * time.Hour)
				job := w.Job("j")
				sum, err := job.RecordedTotals()
				if got := said(w, "j"); (err != nil) != (c.error != "") || refused == 0 ||
					!strings.HasPrefix(got, c.want) ||
					!strings.Contains(job.Error, c.error) || c.error == "" && sum.Counters["sum"] != 120 {
					w.Errorf("%s: %s; %d refused; counters %v, %v", got, job.Error, refused, sum.Counters, err)
				}
			})
		})
	}
}

// TestLose checks which functions of OnRollback are reported as failed.
func TestLose(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(context.Context)
		logs bool
	}{
		{"it returns", func(context.Context) {}, false}, {"it panics", func(context.Context) { panic(errBad) }, true},
		{"it takes too long", func(context.Context) { time.Sleep(time.Hour) }, true},
		{"it ends its goroutine", func(context.Context) { runtime.Goexit() }, true},
		{"there is none", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				d := loaded(w, x, w.NewJob("j", "m"))
				var log bytes.Buffer
				x.Log = slog.New(slog.NewTextHandler(&log, nil))
				a := function.NewAttempt(d.job.Ref(), function.Update, nil)
				if c.f != nil {
					a.OnLost(c.f)
				}
				begun := time.Now()
				d.lose(w.Context(), a)
				if said := strings.Contains(log.String(), "a function of OnRollback failed"); said != c.logs ||
					time.Since(begun) > function.MaxInTransaction {
					w.Errorf("after %v it says %q", time.Since(begun), log.String())
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// TestCollectAmidEnd lets another delivery do or change a page during its commit. If the attempt's
// effect is lost, its OnRollback must be called.
func TestCollectAmidEnd(t *testing.T) {
	lost := 0
	for _, c := range []struct {
		name  string
		state func(r *record.Range)
		lost  int
	}{
		{"another delivery has done the range", func(r *record.Range) { r.Finish(now().Add(-time.Second)) }, 1},
		{"the range has another task", func(r *record.Range) { r.Generation++ }, 1},
		{"it was changed", func(r *record.Range) { r.Attempts++ }, 0},
		{"the answer to its own commit is lost", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			lost = 0
			var w *testworld.World
			var d *delivery
			begun := false
			inPages(t, 5, func(_ context.Context, a *function.Attempt, _ string, _ []int64) error {
				a.OnLost(func(context.Context) { lost++ })
				if begun {
					return nil
				}
				if begun = true; c.state == nil {
					on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
						answer, err := call()
						if n == 1 && err == nil {
							err = errInjected
						}
						return answer, err
					})
					return nil
				}
				_, err := w.Jobs.Store.UpdateRange(w.Context(), d.record.Key(), func(r *record.Range) bool {
					c.state(r)
					return true
				})
				return err
			}, func(world *testworld.World, x *Executor) {
				w = world
				d = loaded(w, x, w.NewJob("j", "m"))
				if _, err := d.runRange(w.Context()); err != nil || lost != c.lost {
					w.Errorf("%v, %d lost", err, lost)
				}
			})
		})
	}
}

// TestCollectCanceled cancels a delivery while the function over its page runs. This must not count
// as a failed attempt.
func TestCollectCanceled(t *testing.T) {
	inPages(t, 5, func(ctx context.Context, _ *function.Attempt, _ string, _ []int64) error {
		<-ctx.Done()
		return ctx.Err()
	}, func(w *testworld.World, x *Executor) {
		d := loaded(w, x, w.NewJob("j", "m"))
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		_, err := d.runRange(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || fault.Refused(err) {
			w.Error(err)
		}
		if r := w.Records(d.job)[d.job.Root()]; r.Refusals != 0 || r.State != record.Pending {
			w.Errorf("%s, %d refusals", r.State, r.Refusals)
		}
	})
}
