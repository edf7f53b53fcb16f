package protocol_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A caller is a function that takes a while, and counts its calls for each account.
type caller struct {
	mu    sync.Mutex
	calls map[string]int
}

const callTime = 100 * time.Millisecond

func (c *caller) function(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
	c.mu.Lock()
	if c.calls == nil {
		c.calls = make(map[string]int)
	}
	c.calls[a.Key.Name]++
	c.mu.Unlock()
	time.Sleep(callTime)
	a.Value.Balance += 10
	a.Count("credited", 1)
	return nil
}

// wantOnce checks that the function was called once for each of n accounts.
func (c *caller) wantOnce(t *testing.T, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	more := 0
	for _, calls := range c.calls {
		if calls > 1 {
			more++
		}
	}
	if len(c.calls) != n || more > 0 {
		t.Errorf("the function was called for %d accounts of %d, and for %d of them more than once", len(c.calls), n,
			more)
	}
}

// TestDrain drains the processes of a job one after the other, while they process pages. Each
// process must end its pages after the current entity, and commit them. No entity may be processed
// twice, no range may be suspected of killing its process, and no delivery may be refused.
func TestDrain(t *testing.T) {
	t.Parallel()
	for name, define := range map[string]func(string, func(context.Context, *mapper.Entity[account],
		mapper.NoParams) error) *mapper.Mapper[mapper.NoParams]{
		"update": mapper.Update[account, mapper.NoParams], "visit": mapper.Visit[account, mapper.NoParams],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const n = 3000
				latency := faults.New(1,
					faults.Rule{Kind: faults.SlowCall, Latency: faults.Uniform{Min: 5 * time.Millisecond,
						Max: 20 * time.Millisecond}})
				var c caller
				m := define("drained", c.function)
				w := newWorld(t, setting{queue: few(20), emulator: emulator.Options{Faults: latency}}, m)
				w.putAccounts(names(n))
				f := newFleet(w, 1, 3, m)
				job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				rng := rand.New(rand.NewPCG(1, 1))
				for range 12 {
					time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
					p, begun := f.pick(), time.Now()
					if err := f.drain(p, 8*time.Second); err != nil {
						t.Error(err)
					}
					if took := time.Since(begun); took > callTime+500*time.Millisecond {
						t.Errorf("a process drained for %v", took)
					}
					if s := w.status(job); s.State.Ended() {
						t.Errorf("the job has ended before a process drained: %+v", s)
					}
				}
				s := w.wait(job)
				if s.Processed != n || s.Ended.Sub(s.Created) > time.Minute {
					t.Errorf("status %+v", s)
				}
				c.wantOnce(t, n)
				var all []datastore.PropertyList
				if _, err := w.client.GetAll(t.Context(), datastore.NewQuery(record.RangeKind), &all); err != nil {
					t.Fatal(err)
				}
				for _, list := range all {
					for _, name := range []string{"refusals", "deaths", "solo", "narrowed", "alone"} {
						if v := propertyOf(list, name); v != nil {
							t.Errorf("a range has %s: %v", name, v)
						}
					}
				}
			})
		})
	}
}

// TestDrainOfWaiting drains a process whose deliveries wait for a rate, and a process that is
// ending a job. Both must drain at once, and other processes must continue.
func TestDrainOfWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 600
		var c caller
		m := mapper.Update("drained", c.function)
		var a additions
		w := newWorld(t, setting{queue: few(20), emulator: emulator.Options{Interceptor: a.intercept}}, m)
		w.putAccounts(names(n))
		f := newFleet(w, 1, 1, m)
		f.addIn(1, 0)
		drain := func() {
			t.Helper()
			if err := f.drain(f.pick(), time.Second); err != nil {
				t.Error(err)
			}
		}
		var platform sync.WaitGroup
		a.kept = func(n int64) {
			if n == 2 {
				platform.Go(drain)
			}
		}
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{Rate: mapper.Rate{EntitiesPerSecond: 5}, PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(7 * time.Second)
			drain()
		}
		if s := w.wait(job); s.Processed != n {
			t.Errorf("status %+v", s)
		}
		platform.Wait()
		c.wantOnce(t, n)
		if a.drafts.Load() < 2 {
			t.Errorf("%d drafts were kept", a.drafts.Load())
		}
	})
}

// TestDrained checks what an engine does after it has drained, and after a drain that has failed.
func TestDrained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := mapper.Update("hangs", func(ctx context.Context, _ *mapper.Entity[account], _ mapper.NoParams) error {
			<-ctx.Done()
			return ctx.Err()
		})
		var log logged
		w := newWorld(t, setting{log: &log}, hangs)
		w.putAccounts(names(10))
		job, err := hangs.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{EntityTimeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.engine.Drain(ctx); err == nil ||
			!strings.Contains(err.Error(), "deliveries still under way: 1: context deadline exceeded") {
			t.Errorf("drain while a function hangs: %v", err)
		}
		if err := w.engine.Drain(t.Context()); err != nil { // waits until the engine accepts no more deliveries
			t.Error(err)
		}
		if err := w.engine.Drain(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		before := w.status(job)
		time.Sleep(time.Hour)
		if after := w.status(job); after.Processed != before.Processed || after.OpenRanges != before.OpenRanges ||
			after.State != mapper.StateRunning {
			t.Errorf("status %+v, before %+v", after, before)
		}
		// Only the warnings "entities failed" and "tasks are not delivered" are allowed, because no
		// other process takes the tasks.
		wrong := regexp.MustCompile(`level=WARN msg="(?:[^et]|e[^n]|t[^a])`)
		if text := log.String(); strings.Contains(text, slog.LevelError.String()) ||
			!strings.Contains(text, "level=INFO") || wrong.MatchString(text) {
			t.Errorf("the log has %.20000s", text)
		}
		if err := job.Abort(t.Context()); err != nil { // a drained engine can still control jobs
			t.Error(err)
		}
		if err := (*mapper.Engine)(nil).Drain(t.Context()); err == nil {
			t.Error("without an engine: no error")
		}
	})
}

// TestDrainBeforePages drains processes whose deliveries have not yet started their pages, because
// the database is slow. Every delivery must be answered with success, so that no task waits for a
// retry by the queue.
func TestDrainBeforePages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 12_000
		slow := faults.New(1, faults.Rule{Kind: faults.SlowCall, Methods: []string{"RunQuery", "Lookup"},
			Latency: faults.Uniform{Min: 100 * time.Millisecond, Max: 2 * time.Second}})
		w := newWorld(t, setting{queue: few(20), emulator: emulator.Options{Faults: slow}}, addCredit)
		w.putAccounts(names(n))
		f := newFleet(w, 1, 3, addCredit)
		var refused atomic.Int64
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			f.ServeHTTP(answer, r)
			if answer.Code != http.StatusOK {
				refused.Add(1)
			}
			rw.WriteHeader(answer.Code)
		})
		job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{PageSize: 50})
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for range 8 {
			time.Sleep(time.Duration(200+rng.IntN(1000)) * time.Millisecond)
			synctest.Wait() // until all deliveries that were sent have reached the process
			if err := f.retire(f.pick(), 9*time.Second); err != nil {
				t.Error(err)
			}
		}
		if s := w.status(job); s.State.Ended() {
			t.Errorf("the job has ended too early to show anything: %+v", s)
		}
		if s := w.wait(job); s.Processed != n || s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
		if n := refused.Load(); n > 0 {
			t.Errorf("%d deliveries were left to the queue's back-off", n)
		}
	})
}

// TestNoPageBeginsWhileDraining drains a process while it looks up the entities of a page. The
// function must be called for none of them.
func TestNoPageBeginsWhileDraining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		m := mapper.Update("counted", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			calls.Add(1)
			return nil
		})
		var w *world
		var looks atomic.Bool
		var once sync.Once
		drained := make(chan error, 1)
		w = newWorld(t,
			setting{emulator: emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
				handler grpc.UnaryHandler) (any, error) {
				if q, ok := req.(*datastorepb.RunQueryRequest); ok && looks.Load() &&
					strings.Contains(q.String(), `"Account"`) {
					once.Do(func() { go func() { drained <- w.engine.Drain(context.Background()) }() })
					time.Sleep(time.Second)
				}
				return handler(ctx, req)
			}}}, m)
		w.putAccounts(names(100))
		door := &door{handler: w.handler}
		w.handler = door
		door.shut.Store(true)
		_, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "one", ExpectedWorkers: 1})
		w.must(err)
		looks.Store(true)
		door.shut.Store(false)
		w.must(<-drained)
		if n := calls.Load(); n > 0 {
			t.Errorf("the function was called for %d entities", n)
		}
	})
}

// A door passes deliveries on to a handler, unless it is shut.
type door struct {
	handler http.Handler
	shut    atomic.Bool
}

func (d *door) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if d.shut.Load() {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	d.handler.ServeHTTP(rw, r)
}
