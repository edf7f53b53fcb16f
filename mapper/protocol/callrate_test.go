package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	night "github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A calledService records the times of its calls.
type calledService struct {
	mu    sync.Mutex
	times []time.Time
}

func (c *calledService) call() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, time.Now())
}

// check checks that calls keep to a rate (calls a second) from the first second to the last, and
// that the job takes as long as its calls need. The start and the end of the job may take spare
// more seconds.
func (c *calledService) check(t *testing.T, s *mapper.Status, rate, spare float64) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortFunc(c.times, time.Time.Compare)
	first := 0
	for i, at := range c.times {
		for at.Sub(c.times[first]) >= time.Second {
			first++
		}
		if n := float64(i - first + 1); n > 2*rate+1 {
			t.Fatalf("%v calls in the second before %v, want %v at most", n, at.Sub(s.Created), 2*rate)
		}
		since := at.Sub(s.Created).Seconds()
		if most := (1.05*since+1)*rate + 1; float64(i) > most {
			t.Fatalf("%d calls after %.2f s, want %.0f at most", i, since, most)
		}
		if least := (0.95*since - spare) * rate; float64(i) < least {
			t.Fatalf("%d calls after %.2f s, want %.0f at least", i, since, least)
		}
	}
	took, ideal := s.Ended.Sub(s.Created).Seconds(), float64(len(c.times))/rate
	t.Logf("%.1f s, ideal %.1f, %d calls, %d tasks, %d pages", took, ideal, len(c.times), s.Tasks, s.Pages)
	if took > 1.05*ideal+spare || took < 0.95*ideal-1 {
		t.Errorf("%.1f s, want %.1f", took, ideal)
	}
}

// TestCallRateHolds checks that announced calls keep to the job's rate. It varies how many entities
// need a call, and how many processes, workers and functions run concurrently.
func TestCallRateHolds(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, c := range []struct {
		processes   int
		queue       int32
		expected    int
		update      bool
		oneIn, each int // every oneIn-th entity needs each calls
		concurrency int
		rate        float64
		takes       time.Duration // how long the service takes for a call
		entities    int
		spare       float64
	}{
		{1, 20, 0, false, 1, 1, 1, 100, 0, 3000, 2},
		{1, 20, 0, true, 1, 1, 1, 100, 100 * time.Millisecond, 3000, 2},
		{1, 20, 0, true, 8, 1, 16, 100, 0, 20_000, 2},
		{1, 20, 0, false, 2, 3, 16, 200, 50 * time.Millisecond, 4000, 2},
		{1, 1, 0, false, 1, 1, 1, 50, 10 * time.Millisecond, 1500, 2},
		{1, 10, 0, false, 1, 1, 1, 2, 3 * time.Second, 100, 5},
		{5, 20, 0, false, 2, 1, 1, 100, 100 * time.Millisecond, 6000, 2},
		{5, 20, 0, true, 1, 1, 16, 500, 200 * time.Millisecond, 15_000, 2},
		{5, 20, 0, false, 8, 1, 16, 50, 0, 12_000, 2},
		{5, 1000, 20, true, 1, 1, 1, 500, 0, 15_000, 2},
		{5, 1000, 20, false, 8, 1, 16, 100, 0, 24_000, 2},
		{1, 1000, 20, true, 2, 2, 1, 100, 0, 3000, 2},
		{5, 1000, 0, false, 1, 1, 16, 50, 0, 10_000, 5},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			if c.entities >= 12_000 || c.queue == 1000 && c.expected == 0 {
				night.Leave(t)
			}
			synctest.Test(t, func(t *testing.T) {
				service := new(calledService)
				fn := func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
					var n int
					if _, err := fmt.Sscanf(a.Key.Name, "user-%d", &n); err != nil {
						return err
					}
					if a.Value.Balance++; n%c.oneIn > 0 {
						return nil
					}
					for range c.each {
						if err := a.AwaitCall(ctx); err != nil {
							return err
						}
						service.call()
						time.Sleep(c.takes)
					}
					return nil
				}
				m := mapper.Visit("call", fn)
				if c.update {
					m = mapper.Update("call", fn)
				}
				injected := faults.New(1, faults.Rule{Kind: faults.SlowCall,
					Latency: faults.Exponential{Mean: 10 * time.Millisecond}})
				w := newWorld(t, setting{queue: few(c.queue), emulator: emulator.Options{Faults: injected}}, m)
				if c.processes > 1 {
					newFleet(w, 1, c.processes, m)
				}
				w.putAccounts(names(c.entities))
				s := over(w, m, &mapper.StartOptions{ExpectedWorkers: c.expected, Concurrency: c.concurrency,
					Rate: mapper.Rate{CallsPerSecond: c.rate}})
				synctest.Wait()
				if s.State != mapper.StateSucceeded {
					t.Fatalf("%s: %s", s.State, s.Error)
				}
				service.check(t, s, c.rate, c.spare)
				if want := int64((c.entities + c.oneIn - 1) / c.oneIn * c.each); s.Calls != want {
					t.Errorf("the status has %d calls, want %d", s.Calls, want)
				}
			})
		})
	}
}

// TestCallRateStops pauses, aborts and drains a job whose functions wait for calls, and changes its
// rate. Each must end the waits within two seconds, and no attempt may be counted as failed.
func TestCallRateStops(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, update := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			service := new(calledService)
			var inside atomic.Int64
			fn := func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				inside.Add(1)
				defer inside.Add(-1)
				if err := a.AwaitCall(ctx); err != nil {
					return err
				}
				service.call()
				a.Value.Balance++
				return nil
			}
			m := mapper.Visit("call", fn)
			if update {
				m = mapper.Update("call", fn)
			}
			m.WithRetryPolicy(mapper.RetryPolicy{MaxAttempts: 1})
			w, ctx := newWorld(t, setting{queue: few(20)}, m), t.Context()
			f := newFleet(w, 1, 2, m)
			w.putAccounts(names(400))
			start := func() *mapper.Job {
				job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
					&mapper.StartOptions{Concurrency: 2, EntityTimeout: 5 * time.Second,
						Rate: mapper.Rate{CallsPerSecond: 1}})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second)
				if n := inside.Load(); n < 10 { // 20 workers, but some of their pages are being committed
					t.Errorf("%d functions wait, want at least 10", n)
				}
				return job
			}
			quiet := func(what string, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				if time.Sleep(2 * time.Second); inside.Load() > 0 {
					t.Errorf("%s: %d functions wait", what, inside.Load())
				}
			}
			job := start()
			quiet("an abort", job.Abort(ctx))
			w.putAccounts(names(400))
			job = start()
			for range 3 { // the other process takes the tasks
				begun := time.Now()
				if err := f.drain(f.pick(), time.Minute); err != nil || time.Since(begun) > 2*time.Second {
					t.Errorf("a drain takes %v: %v", time.Since(begun), err)
				}
				time.Sleep(10 * time.Second)
			}
			quiet("a pause", job.Pause(ctx))
			before := len(service.times)
			if time.Sleep(time.Hour); len(service.times) > before {
				t.Errorf("%d calls while the job is paused", len(service.times)-before)
			}
			if err := job.Resume(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			if err := job.SetRate(ctx, mapper.Rate{CallsPerSecond: mapper.Unlimited}); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			s := w.wait(job)
			synctest.Wait()
			took := s.Ended.Sub(begun)
			if s.State != mapper.StateSucceeded || s.Processed != 400 || took > time.Minute {
				t.Errorf("%s, %d entities, %v after its rate was lifted", s.State, s.Processed, took)
			}
			if update {
				w.wantBalances(names(400), 1)
			}
		})
	}
}

// TestCallRateOfBatches announces calls in functions over batches, and in functions over pages.
func TestCallRateOfBatches(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n, rate = 6000, 20
	service := new(calledService)
	batches := mapper.UpdateBatches("batches", 10,
		func(ctx context.Context, batch []*mapper.Entity[account], _ mapper.NoParams) error {
			if err := batch[0].AwaitCalls(ctx, 2); err != nil {
				return err
			}
			service.call()
			service.call()
			for _, a := range batch {
				a.Value.Balance++
			}
			return nil
		})
	pages := mapper.VisitPages("pages",
		func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) (string, error) {
			return a.Key.Name, nil
		},
		func(ctx context.Context, p *mapper.Page[string], _ mapper.NoParams) error {
			for range 5 {
				if err := p.AwaitCall(ctx); err != nil {
					return err
				}
				service.call()
			}
			return p.AwaitCalls(ctx, 0)
		})
	for name, m := range map[string]*mapper.Mapper[mapper.NoParams]{"batches": batches, "pages": pages} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				*service = calledService{}
				w := newWorld(t, setting{queue: few(10)}, m)
				w.putAccounts(names(n))
				s := over(w, m, &mapper.StartOptions{PageSize: 50, Rate: mapper.Rate{CallsPerSecond: rate}})
				synctest.Wait()
				if s.State != mapper.StateSucceeded || s.Processed != n || s.Calls != int64(len(service.times)) {
					t.Fatalf("%s: %s; %d calls, %d announced", s.State, s.Error, len(service.times), s.Calls)
				}
				service.check(t, s, rate, 2)
			})
		})
	}
}

// TestCallsTooManyForOneRun uses functions over batches and pages that need more calls than the
// rate allows in a delivery. The engine must give them fewer entities.
func TestCallsTooManyForOneRun(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n, rate, each = 1200, 2, 3
	made := new(atomic.Int64)
	batches := mapper.UpdateBatches("batches", 400,
		func(ctx context.Context, batch []*mapper.Entity[account], _ mapper.NoParams) error {
			for _, a := range batch {
				a.Value.Balance++
				if err := a.AwaitCalls(ctx, each); err != nil {
					return nil // the function ignores the error
				}
				made.Add(each)
			}
			return nil
		})
	atOnce := mapper.VisitBatches("at-once", 400,
		func(ctx context.Context, batch []*mapper.Entity[account], _ mapper.NoParams) error {
			if err := batch[0].AwaitCalls(ctx, each*len(batch)); err != nil {
				return err
			}
			made.Add(int64(each * len(batch)))
			return nil
		})
	pages := mapper.VisitPages("pages",
		func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) (string, error) {
			return a.Key.Name, nil
		},
		func(ctx context.Context, p *mapper.Page[string], _ mapper.NoParams) error {
			for range p.Records {
				if err := p.AwaitCalls(ctx, each); err != nil {
					return err
				}
				made.Add(each)
			}
			return nil
		})
	for _, m := range []*mapper.Mapper[mapper.NoParams]{batches, atOnce, pages} {
		t.Run(m.Name(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made.Store(0)
				w := newWorld(t, setting{queue: few(4)}, m)
				w.putAccounts(names(n))
				s := over(w, m, &mapper.StartOptions{PageSize: 400, Rate: mapper.Rate{CallsPerSecond: rate}})
				synctest.Wait()
				if s.State != mapper.StateSucceeded || s.Processed != n || s.Calls != made.Load() {
					t.Errorf("%s: %s; %d calls, %d announced", s.State, s.Error, made.Load(), s.Calls)
				}
				ideal, took := n*each/rate*time.Second, s.Ended.Sub(s.Created)
				t.Logf("%v, ideal %v, %d calls of %d, %d pages", took, ideal, made.Load(), n*each, s.Pages)
				if took > 2*ideal { // the job first has to learn how many calls fit
					t.Errorf("it took %v, want %v", took, ideal)
				}
			})
		})
	}
}

// TestCallsContended lets many functions announce calls at the same time. If the rate were shared
// equally, none of them would get all its calls within a delivery. They must wait for each other,
// so that the job ends.
func TestCallsContended(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n, rate, each = 30, 1, 60
	synctest.Test(t, func(t *testing.T) {
		service := new(calledService)
		m := mapper.Visit("call", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			for range each {
				if err := a.AwaitCall(ctx); err != nil {
					return err
				}
				service.call()
			}
			return nil
		})
		w := newWorld(t, setting{queue: few(20)}, m)
		w.putAccounts(names(n))
		s := over(w, m, &mapper.StartOptions{Rate: mapper.Rate{CallsPerSecond: rate}})
		synctest.Wait()
		took, ideal := s.Ended.Sub(s.Created), n*each/rate*time.Second
		t.Logf("%v, ideal %v, %d calls of %d", took, ideal, len(service.times), n*each)
		if s.State != mapper.StateSucceeded || s.Processed != n || took > 3*ideal {
			t.Errorf("%s: %s; %d entities in %v, want %v", s.State, s.Error, s.Processed, took, ideal)
		}
	})
}

// TestCallsUnlimited announces calls in a job without a rate. They must take no time, and be
// counted. For a job with a rate, the plan and the status must include the time for calls.
func TestCallsUnlimited(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Visit("call", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			return a.AwaitCalls(ctx, 3)
		})
		w, ctx := newWorld(t, setting{queue: few(10)}, m), t.Context()
		w.putAccounts(names(3000))
		run := func(rate mapper.Rate) (*mapper.Job, *mapper.Status) {
			job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{Rate: rate})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			return job, w.status(job)
		}
		if _, s := run(mapper.Rate{}); s.State != mapper.StateSucceeded || s.Calls != 9000 {
			t.Errorf("%s, %d calls", s.State, s.Calls)
		}
		job, s := run(mapper.Rate{CallsPerSecond: 90})
		if s.Phase != mapper.PhaseRateLimited || s.Bottleneck != "it keeps to its rate of 90 calls a second" ||
			s.Progress.EntitiesPerSecond < 25 || s.Progress.EntitiesPerSecond > 35 { // 30, in pages
			t.Errorf("%s: %s, %+v", s.Phase, s.Bottleneck, s.Progress)
		}
		left := 100*time.Second - time.Since(s.Created)
		if d := s.Progress.TimeLeft; d < left*9/10 || d > left*11/10 {
			t.Errorf("%v are left, want about %v", d, left)
		}
		if s := w.wait(job); s.Calls != 9000 {
			t.Errorf("%d calls", s.Calls)
		}
		for each, want := range map[float64]time.Duration{0: 100 * time.Second, 3: 300 * time.Second} {
			est, err := m.Plan(ctx, w.engine, mapper.Query{Kind: "Account"}, &mapper.PlanOptions{CallsPerEntity: each,
				StartOptions: mapper.StartOptions{Rate: mapper.Rate{CallsPerSecond: 30}}})
			if err != nil || est.Duration < want || est.Duration > want+5*time.Second {
				t.Errorf("%+v, %v, want %v", est, err, want)
			}
		}
		_, err := m.Plan(ctx, w.engine, mapper.Query{Kind: "Account"}, &mapper.PlanOptions{CallsPerEntity: -1})
		if !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("%v", err)
		}
	})
}

// TestCallsPlanned compares the plans of jobs whose functions wait for calls with the real jobs.
// Their pages end early, because a page's time includes the waits.
func TestCallsPlanned(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, c := range []struct {
		queue    int32
		each     int // number of calls for an entity
		rate     float64
		entities int
	}{
		{20, 1, 100, 3000}, {180, 1, 200, 2001}, {1, 1, 50, 500}, {20, 2, 500, 200}, {20, 1, 50_000, 3000},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				call := func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
					for range c.each {
						if err := a.AwaitCall(ctx); err != nil {
							return err
						}
					}
					return nil
				}
				m := mapper.Visit("call", call)
				injected := faults.New(1, faults.Rule{Kind: faults.SlowCall,
					Latency: faults.Exponential{Mean: 10 * time.Millisecond}})
				w := newWorld(t, setting{queue: few(c.queue), emulator: emulator.Options{Faults: injected}}, m)
				w.putAccounts(names(c.entities))
				o := mapper.StartOptions{Rate: mapper.Rate{CallsPerSecond: c.rate}}
				plan, err := m.Plan(t.Context(), w.engine, mapper.Query{Kind: "Account"},
					&mapper.PlanOptions{StartOptions: o, CallsPerEntity: float64(c.each),
						TimePerEntity: time.Microsecond})
				if err != nil {
					t.Fatal(err)
				}
				s := over(w, m, &o)
				synctest.Wait()
				t.Logf("planned %d pages, %d tasks, $%.4f; it made %d, %d, $%.4f", plan.Pages, plan.Tasks, plan.Dollars,
					s.Pages, s.Tasks, s.Dollars)
				more := int64(c.queue) // in a short job, the last page of each task may be a short one
				if 5*s.Pages < 2*plan.Pages || 2*(s.Pages-more) > 5*plan.Pages {
					t.Errorf("%d pages, and %d were planned", s.Pages, plan.Pages)
				}
				if cost := s.Dollars / plan.Dollars; cost < 0.5 || cost > 2 {
					t.Errorf("it has cost $%.4f, and $%.4f were planned", s.Dollars, plan.Dollars)
				}
			})
		})
	}
}
