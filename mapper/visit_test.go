package mapper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// TestVisitShared visits entities of which some take long, so that ranges are cut while they are
// read: each is visited, and few are read twice.
func TestVisitShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var visits atomic.Int64
		keys := names(12_000)
		slow := keys[9000].Name
		m := mapper.Visit("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			visits.Add(1)
			time.Sleep(2 * time.Millisecond)
			if a.Key.Name >= slow {
				time.Sleep(30 * time.Millisecond)
			}
			return nil
		})
		w := newWorld(t, setting{queue: few(4)}, m)
		w.putAccounts(keys)
		before := w.emulator.Usage()
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ExpectedWorkers: 4, PageSize: 400})
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(job)
		reads := w.emulator.Usage().Sub(before).Reads
		if s.Processed != 12_000 || visits.Load() != 12_000 {
			t.Errorf("%d visits, %d processed", visits.Load(), s.Processed)
		}
		t.Logf("%d reads, %d tasks, %d pages", reads, s.Tasks, s.Pages)
		if reads > 13_550 {
			t.Errorf("%d reads", reads)
		}
	})
}
