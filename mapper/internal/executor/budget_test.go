package executor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// TestSuffices checks which budgets are sufficient for a page of 100 entities.
func TestSuffices(t *testing.T) {
	const least = 1000 + 3*100*4 + 304 + 101 + pace.RecordWrites + 4
	for _, c := range []struct {
		budget record.Budget
		want   bool
	}{
		{record.Budget{Operations: least}, true}, {record.Budget{Operations: least - 1}, false},
		{record.Budget{Operations: -1}, false}, {record.Budget{Operations: -1, Dollars: 5}, false},
		{record.Budget{Dollars: 100}, true}, {record.Budget{Dollars: 0.0001}, false}, {record.Budget{Dollars: -1},
			false},
		{record.Budget{Dollars: -1, Operations: 1 << 40}, false},
		{record.Budget{Dollars: math.Inf(1)}, false}, {record.Budget{Dollars: math.Inf(1), Operations: 1 << 40}, false},
	} {
		is, text := Suffices(c.budget, 100, 4, 1, billing.NAM5)
		if want := fmt.Sprintf("and %d operations", least); is != c.want || text[len(text)-len(want):] != want {
			t.Errorf("%+v is enough: %v; %s", c.budget, is, text)
		}
	}
}

// TestTakeAll checks what a purse returns, and when it is empty.
func TestTakeAll(t *testing.T) {
	for _, c := range []struct {
		left, want, rest float64
		busy             bool
	}{
		{left: 0.5, want: 0.5}, {left: -0.5, rest: -0.5}, {left: 0.5, rest: 0.5, busy: true}, {},
	} {
		p := &new(jobCache).at(record.Ref{ID: "j"}).purse
		p.left, p.allowance = c.left, 7
		if c.busy {
			_ = p.turn.TryAcquire(1)
		}
		left, allowance := p.takeAll()
		if left != c.want || p.left != c.rest || !c.busy && allowance != 7 || p.turn.TryAcquire(1) == c.busy {
			t.Errorf("%+v: took %v of allowance %d, and left %v", c, left, allowance, p.left)
		}
	}
}

// TestPagesPay checks, page by page, how much of a job's budget a process has reserved.
func TestPagesPay(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Budget, j.Workers = []byte(`{"operations":1000000}`), 3
		d := loaded(w, x, j)
		budget, purse := record.Budget{Operations: 1000000}, &x.cache.at(j.Ref()).purse
		share := func(u billing.Usage) float64 { return estimate.Share(budget, u, x.Prices) }
		near := func(what string, got, want float64) {
			w.Helper()
			if math.Abs(got-want) > 1e-9 {
				w.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		page := share(billing.Usage{Reads: 14, Writes: 11 + pace.RecordWrites, TaskOps: 4})
		ahead := share(billing.Usage{Reads: 20})
		first, s, err := d.keepBudget(w.Context(), 10)
		if err != nil || s != ours {
			w.Fatalf("%d, %v", s, err)
		}
		near("of pages for three tasks, after one", purse.left, 2*(page+ahead))
		if purse.turn.TryAcquire(1) {
			w.Error("the second page does not wait for the cost of the first one")
		}
		d.page.used = &billing.Usage{Reads: 14, Writes: 1 + pace.RecordWrites, TaskOps: 4}
		first()
		first() // a second call has no effect
		near("after a page without writes", purse.left, 2*(page+ahead)+share(billing.Usage{Writes: 10}))
		if !purse.turn.TryAcquire(1) {
			w.Error("the next page waits")
		}
		purse.turn.Release(1)

		x.paces.Add(j.Ref(), pace.Throughput{Entities: 10, Spent: time.Second})
		before := purse.left
		cost := share(d.usageOf(10, 10*x.paces.Writes(j.Ref(), 1), 0))
		second, s, err := d.keepBudget(w.Context(), 10)
		if err != nil || s != ours || !purse.turn.TryAcquire(1) {
			w.Fatalf("%d, %v: the third page waits for the second one", s, err)
		}
		near("while a second page runs, which another one has read ahead", purse.left, before-cost)
		purse.turn.Release(1)
		second() // the second page was not committed, and counts as spent
		near("after it", purse.left, before-cost)

		d.job.Allowance++ // an operator has renewed the budget
		if _, s, err = d.keepBudget(w.Context(), 10); err != nil || s != ours {
			w.Fatalf("%d, %v", s, err)
		}
		if purse.left < 0 || purse.left > 3*cost || purse.allowance != 1 {
			w.Errorf("%v is left of allowance %d, after a renewal", purse.left, purse.allowance)
		}
	})
}

// TestBudgetRefuses checks which pages can't reserve their cost in the job's budget.
func TestBudgetRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(w *testworld.World, d *delivery, cancel func())
		s      standing
		wrong  bool
		state  record.JobState
		free   bool // whether nothing was reserved, so that no settle is needed
	}{
		{name: "it does", state: record.Running},
		{name: "too little is left", before: func(w *testworld.World, d *delivery, _ func()) { spend(w, d, 1) },
			s:     stopped,
			state: record.Paused},
		{name: "the job has another budget by now", before: func(w *testworld.World, d *delivery, _ func()) {
			d.job.Budget = []byte(`{"operations":1000001}`)
			spend(w, d, 1)
		}, state: record.Running, free: true},
		{name: "the budget can't be read", before: func(_ *testworld.World, d *delivery, _ func()) {
			d.job.Budget = []byte("{")
		}, wrong: true, state: record.Running},
		{name: "the delivery is cancelled while others reserve", before: func(_ *testworld.World, d *delivery,
			cancel func()) {
			_ = d.x.cache.at(d.job.Ref()).purse.turn.TryAcquire(1)
			cancel()
		}, wrong: true, state: record.Running},
		{name: "the database fails", before: func(w *testworld.World, _ *delivery, _ func()) {
			refuse(w, "Commit", errInjected)
		}, wrong: true, s: stopped, state: record.Running},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Budget = []byte(`{"operations":1000000}`)
				d := loaded(w, x, j)
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				if c.before != nil {
					c.before(w, d, cancel)
				}
				commits := 0
				if !c.wrong {
					on(w, "Commit", func(n int, call func() (any, error)) (any, error) { commits = n; return call() })
				}
				settle, s, err := d.keepBudget(ctx, 10)
				w.Intercept(nil)
				if changes := c.state == record.Paused || !c.free; !c.wrong && (commits == 1) != changes {
					w.Errorf("%d changes of the job", commits)
				}
				if s != c.s || (err != nil) != c.wrong || (settle == nil) != (c.wrong || c.s != ours) {
					w.Fatalf("%d, %v", s, err)
				}
				job := w.Job("j")
				if job.State != c.state || c.free && job.Spent != 1 {
					w.Errorf("%s: %s; spent %v", job.State, job.Error, job.Spent)
				}
				if settle != nil {
					settle()
				}
				if !errors.Is(err, context.Canceled) && !x.cache.at(j.Ref()).purse.turn.TryAcquire(1) {
					w.Error("no other page can reserve")
				}
			})
		})
	}
}

// spend changes a job's record so that all of its budget is spent, except a share.
func spend(w *testworld.World, d *delivery, share float64) {
	w.Helper()
	if _, err := w.Jobs.Store.UpdateJob(w.Context(), d.job.Ref(), func(j *record.Job) (bool, error) {
		j.Spent = share
		return true, nil
	}); err != nil {
		w.Fatal(err)
	}
}

// TestGiveBack checks when a process returns the unspent part of a job's budget.
func TestGiveBack(t *testing.T) {
	const keeps, returns = 0.75, 0.5
	idle := func(x *Executor, j *record.Job) { x.giveBackIdle(context.Background(), j.Ref(), x.cache.at(j.Ref())) }
	drained := func(x *Executor, _ *record.Job) { x.GiveBack(context.Background()) }
	forgotten := func(x *Executor, _ *record.Job) {
		for i := range maxCached {
			x.cache.at(record.Ref{ID: fmt.Sprint(i)})
		}
	}
	for _, c := range []struct {
		name   string
		change func(x *Executor, j *record.Job, r *cachedJob)
		then   func(x *Executor, j *record.Job)
		want   float64 // the spent share of the budget afterwards
		calls  int
	}{
		{"idle, and the job runs", nil, idle, keeps, 0},
		{"idle, and the job is paused", func(_ *Executor, j *record.Job, _ *cachedJob) { j.State = record.Paused },
			idle,
			returns, 1},
		{"idle, and the job has moved", func(_ *Executor, j *record.Job, _ *cachedJob) { j.Queue = record.Owner(w2) },
			idle,
			returns, 1},
		{"idle, and nothing is known of the job", func(_ *Executor, _ *record.Job, r *cachedJob) { r.record = nil },
			idle,
			keeps, 0},
		{"idle, and another delivery reads the job", func(_ *Executor, j *record.Job, r *cachedJob) {
			j.State = record.Paused
			_ = r.turn.TryAcquire(1)
		}, idle, keeps, 0},
		{"idle, and all is spent", func(_ *Executor, j *record.Job, r *cachedJob) {
			j.State, r.purse.left = record.Paused, 0
		}, idle, keeps, 0},
		{"drained", nil, drained, returns, 1},
		{"drained, and all is spent", func(_ *Executor, _ *record.Job, r *cachedJob) { r.purse.left = 0 }, drained,
			keeps, 0},
		{"drained, and more was spent", func(_ *Executor, _ *record.Job, r *cachedJob) { r.purse.left = -1 }, drained,
			keeps,
			0},
		{"drained beside a delivery", func(_ *Executor, _ *record.Job, r *cachedJob) { r.inside = 1 }, drained, keeps,
			0},
		{"forgotten", nil, forgotten, returns, 1},
		{"forgotten, and all is spent", func(_ *Executor, _ *record.Job, r *cachedJob) { r.purse.left = 0 }, forgotten,
			keeps, 0},
		{"after a renewal of the budget", func(_ *Executor, _ *record.Job, r *cachedJob) { r.purse.allowance = -1 },
			drained,
			keeps, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Spent = keeps
				r := x.cache.at(j.Ref())
				r.record, r.purse.left = j, 0.25
				if c.change != nil {
					c.change(x, j, r)
				}
				insert(w, j)
				commits := 0
				on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
					commits = n
					return call()
				})
				c.then(x, j)
				synctest.Wait()
				if got := w.Job("j").Spent; got != c.want || commits != c.calls {
					w.Errorf("%v is spent, after %d commits", got, commits)
				}
				if c.calls > 0 && r.purse.left != 0 {
					w.Errorf("%v is returned, and left", r.purse.left)
				}
			})
		})
	}
}

// TestGiveBackAll lets a process return the unspent parts of many jobs' budgets. Only a few calls
// may run at the same time.
func TestGiveBackAll(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		const jobs = 2*source.Parallel + 1
		for i := range jobs {
			j := w.NewJob(fmt.Sprint("j", i), "m")
			j.Spent = 0.5
			insert(w, j)
			x.cache.at(j.Ref()).purse.left = 0.25
		}
		var mu sync.Mutex
		now, most := 0, 0
		on(w, "Commit", func(_ int, call func() (any, error)) (any, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return call()
		})
		x.GiveBack(w.Context())
		w.Intercept(nil)
		mu.Lock()
		defer mu.Unlock()
		if now != 0 {
			w.Errorf("%d calls are under way at its end", now)
		}
		for i := range jobs {
			if spent := w.Job(fmt.Sprint("j", i)).Spent; spent != 0.25 {
				w.Errorf("of job %d, %v is spent", i, spent)
			}
		}
		if most > source.Parallel || most < 2 {
			w.Errorf("%d calls at once", most)
		}
	})
}

// TestUsage checks what a page of ten entities is expected to use.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		query string
		want  billing.Usage
	}{
		{`{"kind":"K"}`, billing.Usage{Reads: 17, Writes: 6 + pace.RecordWrites, TaskOps: 4}},
		{`{"kind":"K","keys_only":true}`, billing.Usage{Reads: 7, Writes: 6 + pace.RecordWrites, TaskOps: 4}},
	} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Query = []byte(c.query)
			if got := loaded(w, x, j).usageOf(10, 5, 3); fmt.Sprint(got) != fmt.Sprint(c.want) {
				w.Errorf("%s: %+v, want %+v", c.query, got, c.want)
			}
		})
	}
}

// TestSpent checks how much of its budget a job has spent at its end. Its function writes nothing.
// The job pays for its pages, for reading ahead in its only delivery, and for other work.
func TestSpent(t *testing.T) {
	inWorld(t, 35, function.Update, func(*testworld.Call) error { return nil },
		func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Budget = []byte(`{"operations":1000000}`)
			w.Begin(j)
			time.Sleep(30 * time.Second)
			x.GiveBack(w.Context())
			const page = 4 + 1 + pace.RecordWrites + 4
			spent := w.Job("j").Spent * 1e6
			if want := float64(1030 + 4*page + 35 + 20); said(w, "j") != "succeeded, 35 processed by 4 pages" ||
				math.Abs(spent-want) > 1 {
				w.Errorf("%s, spent %v operations, want %v", said(w, "j"), spent, want)
			}
		})
}

// TestRenewed renews a job's budget while a process does not know it yet. The process' part of the
// old budget must be void.
func TestRenewed(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Budget, j.Allowance = []byte(`{"operations":1000000}`), 5
		d := loaded(w, x, j)
		d.job.Allowance = 0
		purse := &x.cache.at(j.Ref()).purse
		purse.left = 1e-6
		settle, s, err := d.keepBudget(w.Context(), 10)
		if err != nil || s != ours || purse.allowance != 5 || purse.left > 1e-9 {
			w.Fatalf("%d, %v; %v is left of allowance %d", s, err, purse.left, purse.allowance)
		}
		settle()
	})
}

// TestJustEnough gives the purse exactly the cost of a page. Nothing more must be reserved.
func TestJustEnough(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Budget = []byte(`{"operations":1000000}`)
		d := loaded(w, x, j)
		d.ahead = true
		purse := &x.cache.at(j.Ref()).purse
		purse.left = estimate.Share(record.Budget{Operations: 1000000}, d.usageOf(10, 10, 0), x.Prices)
		refuse(w, "Commit", errInjected)
		settle, s, err := d.keepBudget(w.Context(), 10)
		w.Intercept(nil)
		if err != nil || s != ours || purse.left != 0 {
			w.Fatalf("%d, %v; %v is left", s, err, purse.left)
		}
		settle()
	})
}

// TestPurseOfNewBudget reserves a page's cost in a delivery that does not know the job's new budget
// yet, while another delivery has filled the purse from it. The page must take nothing from this
// purse, because its cost is a share of the old budget.
func TestPurseOfNewBudget(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Budget, j.Workers = []byte(`{"operations":100000}`), 1
		d := loaded(w, x, j)
		x.paces.Add(j.Ref(), pace.Throughput{Entities: 10, Spent: time.Second})
		now, err := w.Jobs.Store.UpdateJob(w.Context(), j.Ref(), func(j *record.Job) (bool, error) {
			j.SetBudget([]byte(`{"operations":50000}`))
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		purse := &x.cache.at(j.Ref()).purse
		purse.renew(now.Allowance)
		purse.left = 0.5
		settle, s, err := d.keepBudget(w.Context(), 500)
		if err != nil || s != ours {
			t.Fatalf("%d, %v", s, err)
		}
		d.page.used = &billing.Usage{Reads: 14}
		settle()
		if purse.left != 0.5 {
			t.Errorf("the new budget's purse has %v, want 0.5", purse.left)
		}
	})
}

// TestOtherBudget sets a budget that is 10,000 times as large while pages of the old one run. The
// unspent rest of these pages is a share of the old budget, and small in the new one.
func TestOtherBudget(t *testing.T) {
	raise := func(w *testworld.World, j *record.Job) {
		if _, err := w.Jobs.Store.UpdateJob(w.Context(), j.Ref(), func(j *record.Job) (bool, error) {
			j.SetBudget([]byte(`{"operations":1000000000}`))
			return true, nil
		}); err != nil {
			w.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		do   func(w *testworld.World, d, next *delivery, j *record.Job) (settle func())
	}{
		{"during a page", func(w *testworld.World, d, next *delivery, j *record.Job) func() {
			settle, _, _ := d.keepBudget(w.Context(), 500)
			raise(w, j)
			return settle
		}},
		{"before a page, which does not know it", func(w *testworld.World, d, next *delivery, j *record.Job) func() {
			raise(w, j)
			settle, _, _ := d.keepBudget(w.Context(), 500)
			return settle
		}},
		{"before a page, which does not know it, and another page does", func(w *testworld.World, d, next *delivery,
			j *record.Job) func() {
			raise(w, j)
			next.job = w.Job("j")
			if settle, _, _ := next.keepBudget(w.Context(), 1); settle != nil {
				settle()
			}
			settle, _, _ := d.keepBudget(w.Context(), 500)
			return settle
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Budget, j.Workers = []byte(`{"operations":100000}`), 1
				d := loaded(w, x, j)
				x.paces.Add(j.Ref(), pace.Throughput{Entities: 10, Spent: time.Second})
				next := load(w, x, j, j.RootRange(), tasks.Delivery{})
				settle := c.do(w, d, next, j)
				if settle == nil {
					w.Fatal("the page may not start")
				}
				d.page.used = &billing.Usage{Reads: 14}
				next.job = w.Job("j") // a second later, every delivery knows the new budget
				last, s, err := next.keepBudget(w.Context(), 1)
				if err != nil || s != ours {
					w.Fatalf("%d, %v", s, err)
				}
				settle()
				last()
				// one page of one entity, and the work around pages
				const most = 5000
				purse := x.cache.at(j.Ref()).purse.left * 1e9
				if spent := w.Job("j").Spent * 1e9; spent > most || purse > spent || purse < -most {
					w.Errorf("%.0f operations are reserved, and %.0f of them are left", spent, purse)
				}
				if !x.cache.at(j.Ref()).purse.turn.TryAcquire(1) {
					w.Error("no other page can reserve")
				}
			})
		})
	}
}

// TestRaisedBeforePause gives a job more budget between two steps of a delivery: it has found that
// too little remains, and has not paused the job yet. The page must start, and the job must not be
// paused.
func TestRaisedBeforePause(t *testing.T) {
	for name, raise := range map[string]func(j *record.Job){
		"a larger budget": func(j *record.Job) { j.SetBudget([]byte(`{"operations":1000000}`)) },
		"a larger budget, from which others have taken": func(j *record.Job) {
			j.SetBudget([]byte(`{"operations":1000000}`))
			j.Spent = 0.9
		},
		"the same budget again": func(j *record.Job) { j.Spent = 0; j.Allowance++ },
		"no limit":              func(j *record.Job) { j.SetBudget(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Budget, j.Workers = []byte(`{"operations":2000}`), 1
				d := loaded(w, x, j)
				spend(w, d, 0.999)
				on(w, "Rollback", func(n int, call func() (any, error)) (any, error) {
					answer, err := call()
					if n == 1 {
						if _, err := w.Jobs.Store.UpdateJob(w.Context(), j.Ref(), func(j *record.Job) (bool, error) {
							raise(j)
							return true, nil
						}); err != nil {
							w.Error(err)
						}
					}
					return answer, err
				})
				settle, s, err := d.keepBudget(w.Context(), 100)
				w.Intercept(nil)
				if job := w.Job("j"); err != nil || s != ours || job.State != record.Running {
					w.Fatalf("%d, %v; the job is %s: %s", s, err, job.State, job.Error)
				}
				settle()
			})
		})
	}
}
