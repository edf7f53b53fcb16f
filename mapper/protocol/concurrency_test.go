package protocol_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestConcurrency has functions wait 100 ms for each of 30,000 entities, on 10 workers with 50 calls
// at once: the job takes at most 1.1 of the 6 s that the calls take then.
func TestConcurrency(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n, workers, atOnce = 30_000, 10, 50
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
