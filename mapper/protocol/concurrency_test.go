package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestConcurrency runs a job with 10 workers, each with 50 concurrent calls of a function that
// waits 100 ms. For 15,000 entities, the calls need 3 s. The job may take at most 1.1 times as
// long.
func TestConcurrency(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n, workers, atOnce = 15_000, 10, 50
	for _, update := range []bool{false, true} {
		t.Run(fmt.Sprintf("update %v", update), func(t *testing.T) {
			var running, most atomic.Int64
			fn := func(_ context.Context, e *mapper.Entity[thing], _ mapper.NoParams) error {
				for now := running.Add(1); now > most.Load(); {
					most.Store(now)
				}
				time.Sleep(100 * time.Millisecond)
				running.Add(-1)
				e.Count("calls", 1)
				e.Value.Points++
				return nil
			}
			m := mapper.Visit("wait", fn)
			if update {
				m = mapper.Update("wait", fn)
			}
			m.WithConcurrency(atOnce)
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: workers},
				func(t *testing.T, w *mappertest.Env) {
					things(t, w.Client, n)
					status := runTo(t, w, m, nil)
					took, ideal := status.Ended.Sub(status.Created), n/(workers*atOnce)*100*time.Millisecond
					t.Logf("%v, ideal %v, %d at once", took, ideal, most.Load())
					if status.State != mapper.StateSucceeded || status.Counters["calls"] != n || took > ideal*11/10 {
						t.Errorf("%s after %v, want %v; %v", status.State, took, ideal, status.Counters)
					}
					if got := most.Load(); got > workers*atOnce || got < workers*atOnce*8/10 {
						t.Errorf("%d calls at once", got)
					}
					if got := status.Settings.Concurrency; got != atOnce {
						t.Errorf("its concurrency is %d", got)
					}
				})
		})
	}
}

// putsOthers adds points to a thing. For some things it also adds points to the entity total, or
// puts a copy of the thing.
func putsOthers(ctx context.Context, e *mapper.Entity[thing], i int64, total *datastore.Key) error {
	switch i % 10 {
	case 0:
		var sum thing
		if err := e.Get(ctx, total, &sum); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
			return err
		}
		sum.Points++
		e.Put(total, &sum)
	case 1:
		e.Put(datastore.IncompleteKey("Copy", nil), &thing{i})
	}
	e.Value.Points++
	return nil
}

// TestConcurrencyResults runs an Update with concurrent calls that read, count, put, fail, panic
// and hang. Each entity must have its effects once, and only the entities at fault may fail.
func TestConcurrencyResults(t *testing.T) {
	t.Parallel()
	const n = 120
	total := datastore.NameKey("Total", "all", nil)
	m := mapper.Update("mixed", func(ctx context.Context, e *mapper.Entity[thing], _ mapper.NoParams) error {
		time.Sleep(time.Duration(e.Key.ID%7) * time.Millisecond)
		e.Count("calls", 1)
		switch i := (e.Key.ID - 1) / 7919; i {
		case 11:
			return mapper.Permanent(errors.New("never"))
		case 12:
			panic("ouch")
		case 13:
			time.Sleep(time.Hour)
		default:
			return putsOthers(ctx, e, i, total)
		}
		e.Value.Points++
		return nil
	}).WithConcurrency(16)
	mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 3},
		func(t *testing.T, w *mappertest.Env) {
			things(t, w.Client, n)
			status := runTo(t, w, m, &mapper.StartOptions{PageSize: 40, Retries: mapper.RetryPolicy{MaxAttempts: 2}})
			if status.Failures != 3 || status.Counters["calls"] != n-3 {
				t.Errorf("%d failures, %v", status.Failures, status.Counters)
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
				for _, e := range all {
					if kind == "Thing" && e.Points > 1 {
						t.Errorf("one has %d points", e.Points)
					}
				}
			}
		})
}
