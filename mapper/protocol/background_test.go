package protocol_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// TestBackground runs jobs on a database whose lookups become slow while more than five pages are
// processed at the same time. A background job must notice this: of its 20 workers it must keep
// about five busy. It must be possible to pause and resume the job, and to drain its process at
// once, while pages wait.
func TestBackground(t *testing.T) {
	t.Parallel()
	for _, background := range []bool{false, true} {
		if testing.Short() && !background {
			continue // only the comparison with a job that does not give way
		}
		synctest.Test(t, func(t *testing.T) {
			var inside atomic.Int64
			m := mapper.Visit("slow", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
				inside.Add(1)
				defer inside.Add(-1)
				time.Sleep(100 * time.Millisecond)
				return nil
			})
			busy := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				if _, ok := req.(*datastorepb.LookupRequest); ok {
					time.Sleep(time.Duration(1+max(0, inside.Load()-5)) * 10 * time.Millisecond)
				}
				return h(ctx, req)
			}
			w := newWorld(t, setting{queue: few(20), emulator: emulator.Options{Interceptor: busy}}, m)
			w.putAccounts(names(30_000))
			mean := func(d time.Duration) float64 { // the mean number of calls of the function at the same time
				sum, n := int64(0), int64(0)
				for end := time.Now().Add(d); time.Now().Before(end); n++ {
					time.Sleep(73 * time.Millisecond)
					synctest.Wait()
					sum += inside.Load()
				}
				return float64(sum) / float64(n)
			}
			pause(t) // in this pause, background jobs start no page
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 10, Background: background})
			if err != nil {
				t.Fatal(err)
			}
			if got := mean(3 * time.Second); (got == 0) != background {
				t.Errorf("background %v: %.1f pages at once in a pause", background, got)
			}
			time.Sleep(45 * time.Second)
			got, phase := mean(30*time.Second), w.status(job).Phase
			if background && (got < 3 || got > 9 || phase != mapper.PhaseGivingWay) ||
				!background && (got < 18 || phase == mapper.PhaseGivingWay) {
				t.Errorf("background %v: %.1f pages at once, and it is %s", background, got, phase)
			}
			for _, stop := range []func() error{
				func() error { return job.Pause(t.Context()) },
				func() error { return w.engine.Drain(t.Context()) },
			} {
				if err := job.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
				begun := time.Now()
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(4*time.Second - time.Since(begun))
				if n := w.running.Load(); n > 0 {
					t.Errorf("background %v: %d deliveries are under way after a stop", background, n)
				}
			}
		})
	}
}

// pause waits until the start of a minute. Background jobs then pause for four seconds.
func pause(t *testing.T) {
	t.Helper()
	time.Sleep(time.Until(time.Now().Add(time.Minute - 1).Truncate(time.Minute)))
}
