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

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// A thingBatch is a batch of entities of the type thing. A batchFunc is a mapper's function over
// such a batch.
type (
	thingBatch = []*mapper.Entity[thing]
	batchFunc  = func(context.Context, thingBatch, mapper.NoParams) error
)

// inBatches returns a mapper whose function gets up to size entities in a call.
func inBatches(update bool, size int, fn batchFunc) *mapper.Mapper[mapper.NoParams] {
	if update {
		return mapper.UpdateBatches("batches", size, fn)
	}
	return mapper.VisitBatches("batches", size, fn)
}

// troubled returns the function that TestBatchResults calls for each entity of a batch. It adds
// points to the entity total. It fails on some entities, and on one of them only three times. On
// some it panics, hangs, or lets the whole batch fail.
func troubled(total *datastore.Key, tries *atomic.Int64) func(context.Context, *mapper.Entity[thing]) error {
	return func(ctx context.Context, e *mapper.Entity[thing]) error {
		e.Count("calls", 1)
		switch i := (e.Key.ID - 1) / 7919; {
		case i == 11:
			e.Fail(mapper.Permanent(errors.New("never")))
		case i == 12:
			panic("ouch")
		case i == 13:
			time.Sleep(time.Hour)
		case i == 14:
			return errors.New("a bad batch")
		case i == 15 && tries.Add(1) < 4:
			e.Fail(errors.New("not yet"))
		case i == 16:
			e.Value.Points = 7
			e.Fail(mapper.Skip)
			return nil
		default:
			return putsOthers(ctx, e, i, total)
		}
		e.Value.Points++
		return nil
	}
}

// TestBatchResults runs functions over batches that read, count and put entities. Some single
// entities fail, and some let their whole batch fail, panic or hang. Each entity must have its
// effects once, and only the entities at fault may fail.
func TestBatchResults(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n = 200
	total := datastore.NameKey("Total", "all", nil)
	for _, c := range []struct{ size, atOnce int }{{1, 1}, {7, 1}, {16, 4}, {100, 1}} {
		t.Run(fmt.Sprintf("batches of %d, %d at once", c.size, c.atOnce), func(t *testing.T) {
			var tries atomic.Int64
			one := troubled(total, &tries)
			m := inBatches(true, c.size, func(ctx context.Context, batch thingBatch, _ mapper.NoParams) error {
				if len(batch) > c.size {
					t.Errorf("a batch of %d", len(batch))
				}
				time.Sleep(10 * time.Millisecond)
				for _, e := range batch {
					if err := one(ctx, e); err != nil {
						return err
					}
				}
				return nil
			}).WithConcurrency(c.atOnce)
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 3},
				func(t *testing.T, w *mappertest.Env) {
					things(t, w.Client, n)
					status := runTo(t, w, m, &mapper.StartOptions{PageSize: 100,
						Retries: mapper.RetryPolicy{MaxAttempts: 4}})
					if status.Failures != 4 || status.Counters["calls"] != n-4 ||
						status.State != mapper.StateSucceededWithFailures {
						t.Errorf("%s, %d failures, %v", status.State, status.Failures, status.Counters)
					}
					var sum thing
					if err := w.Client.Get(t.Context(), total, &sum); err != nil || sum.Points != n/10 {
						t.Errorf("the total is %d, %v, want %d", sum.Points, err, n/10)
					}
					for kind, want := range map[string]int{"Copy": n/10 - 1, "Thing": n} {
						var all []thing
						if _, err := w.Client.GetAll(t.Context(), datastore.NewQuery(kind), &all); err != nil ||
							len(all) != want {
							t.Errorf("%d entities of %s, %v, want %d", len(all), kind, err, want)
						}
						points := int64(0)
						for _, e := range all {
							points += e.Points
						}
						if kind == "Thing" && points != n-5 {
							t.Errorf("they have %d points together", points)
						}
					}
				})
		})
	}
}

// TestBatchConflicts lets another client change three entities of a batch while the function runs.
// The function must run again on these three, in one batch, and no write may be lost.
func TestBatchConflicts(t *testing.T) {
	t.Parallel()
	var w *mappertest.Env
	var mu sync.Mutex
	var sizes []int
	m := inBatches(true, 50, func(ctx context.Context, batch thingBatch, _ mapper.NoParams) error {
		mu.Lock()
		sizes = append(sizes, len(batch))
		first := len(sizes) == 1
		mu.Unlock()
		for i, e := range batch {
			if first && i%20 == 5 {
				if _, err := w.Client.Put(ctx, e.Key, &thing{Points: e.Value.Points + 1000}); err != nil {
					return err
				}
			}
			e.Value.Points++
			e.Count("points", e.Value.Points)
		}
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 1}, func(t *testing.T, env *mappertest.Env) {
		w = env
		things(t, w.Client, 50)
		status := runTo(t, w, m, nil)
		if want := []int{50, 3}; !slices.Equal(sizes, want) || status.Counters["points"] != 50+3000 ||
			status.Conflicts != 3 {
			t.Errorf("batches of %v, want %v; %+v", sizes, want, status)
		}
		var all []thing
		if _, err := w.Client.GetAll(t.Context(), datastore.NewQuery("Thing"), &all); err != nil {
			t.Fatal(err)
		}
		points := int64(0)
		for _, e := range all {
			points += e.Points
		}
		if points != 50+3000 {
			t.Errorf("they have %d points", points)
		}
	})
}

// TestBatchSpeed calls a service that takes a second for a request of any size. The job must send
// full requests, so it takes hardly longer than 100 requests by 10 workers.
func TestBatchSpeed(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n, size, workers = 10_000, 100, 10
	for _, update := range []bool{false, true} {
		for _, takes := range []time.Duration{time.Second, 10 * time.Second} {
			t.Run(fmt.Sprintf("update %v, %v", update, takes), func(t *testing.T) {
				var calls atomic.Int64
				m := inBatches(update, size, func(_ context.Context, batch thingBatch, _ mapper.NoParams) error {
					calls.Add(1)
					time.Sleep(takes)
					for _, e := range batch {
						e.Value.Points++
					}
					return nil
				})
				mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: workers},
					func(t *testing.T, w *mappertest.Env) {
						things(t, w.Client, n)
						status := runTo(t, w, m, nil)
						took, ideal := status.Ended.Sub(status.Created), n/size/workers*takes
						t.Logf("%v, ideal %v, %d calls", took, ideal, calls.Load())
						if took > ideal*3/2 || calls.Load() > n/size*3/2 || status.Processed != n {
							t.Errorf("%v, want %v; %d calls; %d processed", took, ideal, calls.Load(), status.Processed)
						}
					})
			})
		}
	}
}

// TestBatchesAtFault runs functions that fail on every batch: one for a minute, and one always. The
// first job must continue after the minute. The second job must fail.
func TestBatchesAtFault(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, always := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			begun := time.Now()
			m := mapper.UpdateBatches("batches", 100,
				func(_ context.Context, batch []*mapper.Entity[account], _ mapper.NoParams) error {
					calls.Add(1)
					time.Sleep(10 * time.Millisecond)
					if always || time.Since(begun) < time.Minute {
						return errors.New("it is down")
					}
					for _, a := range batch {
						a.Value.Balance += 10
					}
					return nil
				})
			w := newWorld(t, setting{}, m)
			keys := names(1000)
			w.putAccounts(keys)
			s := over(w, m, &mapper.StartOptions{ExpectedWorkers: 4})
			switch {
			case always && (s.State != mapper.StateFailed || s.Processed > 0):
				t.Errorf("%+v", s)
			case !always && (s.State != mapper.StateSucceeded || s.Processed != 1000):
				t.Errorf("%+v", s)
			}
			if calls.Load() > 2000 {
				t.Errorf("%d calls", calls.Load())
			}
			time.Sleep(48 * time.Hour)
			credit := int64(10)
			if always {
				credit = 0
			}
			w.wantBalances(keys, credit)
		})
	}
}

// TestBusyBatchService calls a service that accepts ten requests a second. The job must adapt its
// rate to that.
func TestBusyBatchService(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const calls, size = 1500, 10
	for _, update := range []bool{true, false}[:testflag.Size(t, 1, 1, 2)] {
		t.Run(fmt.Sprintf("update %v", update), func(t *testing.T) {
			s := &busyService{limit: func(time.Duration) int { return 10 }, takes: 100 * time.Millisecond,
				settled: 40 * time.Second}
			m := inBatches(update, size, func(_ context.Context, batch thingBatch, _ mapper.NoParams) error {
				for _, e := range batch {
					e.Value.Points++
				}
				return s.call()
			})
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 50},
				func(t *testing.T, w *mappertest.Env) {
					things(t, w.Client, calls*size)
					status := runTo(t, w, m, nil)
					took, ideal := status.Ended.Sub(status.Created), calls/10*time.Second
					t.Logf("%v, ideal %v, %d calls accepted, %d refused, %d of the last %d", took, ideal, s.accepted,
						s.refused, s.laterRefused, s.later)
					if status.State != mapper.StateSucceeded || took > ideal*2 || s.laterRefused*12 > s.later {
						t.Errorf("%s after %v, want %v", status.State, took, ideal)
					}
				})
		})
	}
}

// TestBatchPreview rehearses a job over batches, runs it on a share of the keys, and undoes it.
func TestBatchPreview(t *testing.T) {
	t.Parallel()
	m := inBatches(true, 20, func(_ context.Context, batch thingBatch, _ mapper.NoParams) error {
		for _, e := range batch {
			e.Value.Points += 5
		}
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
		points := func() (sum int64) {
			var all []thing
			if _, err := w.Client.GetAll(t.Context(), datastore.NewQuery("Thing"), &all); err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				sum += e.Points
			}
			return sum
		}
		things(t, w.Client, 100)
		status := runTo(t, w, m, &mapper.StartOptions{ID: "dry", DryRun: true})
		if status.Counters["would(change Points)"] != 100 || points() != 0 {
			t.Errorf("%v, %d points", status.Counters, points())
		}
		time.Sleep(time.Second)
		j, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Thing",
			Filters: []mapper.Filter{mapper.Share(0, 30, 100)}}, mapper.NoParams{}, &mapper.StartOptions{ID: "canary"})
		if err != nil {
			t.Fatal(err)
		}
		status, err = j.Wait(t.Context())
		if err != nil || points() != 5*status.Processed || status.Processed == 0 || status.Processed == 100 {
			t.Fatalf("%v, %d points, %+v", err, points(), status)
		}
		time.Sleep(time.Second)
		undo, err := j.Undo(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if status, err := undo.Wait(t.Context()); err != nil || status.Err() != nil || points() != 0 {
			t.Errorf("%v, %d points, %+v", err, points(), status)
		}
	})
}
