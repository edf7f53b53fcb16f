package mapper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestSlowFunctions compares how long jobs over slow functions take with what
// they would ideally: what is left of a page that took its time is spread, and
// not done one page after the other.
func TestSlowFunctions(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, c := range map[string]struct {
		entities, workers int
		cost              func(i int) time.Duration
		most              float64 // of the ideal
	}{
		"all of them": {2000, 20, func(int) time.Duration { return 100 * time.Millisecond }, 2},
		"a slow tenth": {20000, 20, func(i int) time.Duration {
			return time.Duration(2+98*boolToInt(i >= 9000 && i < 11000)) * time.Millisecond
		}, 2},
		"a slow page": {20000, 20, func(i int) time.Duration {
			return time.Duration(2+98*boolToInt(i >= 10000 && i < 10500)) * time.Millisecond
		}, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ideal time.Duration
			for i := range c.entities {
				ideal += c.cost(i) / time.Duration(c.workers)
			}
			m := mapper.Update("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				time.Sleep(c.cost(int(a.Value.Balance)))
				a.Count("seen", 1)
				return nil
			})
			w := newWorld(t,
				setting{queue: &cloudtaskspb.Queue{
					RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(c.workers)}}}, m)
			w.putAccounts(names(c.entities))
			begun := time.Now()
			s := over(w, m, &mapper.StartOptions{ExpectedWorkers: c.workers})
			ratio := float64(time.Since(begun)) / float64(ideal)
			t.Logf("%s: %.2f of the ideal by %d pages", name, ratio, s.Pages)
			if s.State != mapper.StateSucceeded || s.Counters["seen"] != int64(c.entities) || ratio > c.most {
				t.Errorf("%s: %.2f of the ideal, want at most %.1f: %+v", name, ratio, c.most, s)
			}
		})
	}
}

// TestLargeEntities updates entities of which a page does not fit a commit.
func TestLargeEntities(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	type large struct {
		Text []byte `datastore:",noindex"`
		N    int
	}
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("grow", func(_ context.Context, a *mapper.Entity[large], _ mapper.NoParams) error {
			a.Value.N++
			return nil
		})
		w := newWorld(t, setting{}, m)
		keys := names(60)
		for _, k := range keys {
			if _, err := w.client.Put(t.Context(), k, &large{Text: make([]byte, 900<<10)}); err != nil {
				t.Fatal(err)
			}
		}
		s := over(w, m, nil)
		if s.State != mapper.StateSucceeded || s.Processed != 60 {
			t.Errorf("status %+v", s)
		}
		for _, k := range keys {
			var l large
			if err := w.client.Get(t.Context(), k, &l); err != nil || l.N != 1 || len(l.Text) != 900<<10 {
				t.Errorf("%v: N %d, %d bytes, %v", k, l.N, len(l.Text), err)
			}
		}
	})
}
