package bench

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/mapper"
)

// TestQueriesAPage runs jobs of one to two hundred pages on models of Datastore emulators. Besides
// reading pages, a job may make at most 1.5 queries and counts for each full page. On models with
// slow queries, a job of many pages must be at least as fast as the loop of BenchmarkPeers. With -v
// it prints the time of each on its model.
func TestQueriesAPage(t *testing.T) {
	for i, m := range models {
		for _, n := range []int{500, 2_000, 20_000, 100_000} {
			for _, workers := range []int{8, 32, 100} {
				t.Run(fmt.Sprintf("%s/%d/%d", m.name, n, workers), func(t *testing.T) {
					if n > 20_000 && (testing.Short() || workers != 32) {
						t.Skip("left out: jobs of 100,000 entities in -short, and with other than 32 workers")
					}
					if n > 20_000 || n == 20_000 && (workers != 32 || i > 0) {
						nightly.Leave(t)
					}
					synctest.Test(t, func(t *testing.T) { queriesAPage(t, m, n, workers) })
				})
			}
		}
	}
}

func queriesAPage(t *testing.T, m model, n, workers int) {
	w := newWorldOn(t, workers, m.options, m.network(n))
	all := make([]*datastore.Key, n)
	for i := range all {
		all[i] = datastore.IDKey(accounts, int64(i+1), nil)
	}
	for keys := range slices.Chunk(all, 500) {
		_, err := w.client.PutMulti(t.Context(), keys, make([]account, len(keys)))
		w.must(err)
	}
	w.network.on.Store(true)
	begun := time.Now()
	w.must(peer{w.client, workers, 500}.run(t.Context(), func(a *account) { a.Balance += loopRaise }))
	loop := time.Since(begun)

	begun = time.Now()
	w.calls.reset()
	job, err := raise.Start(t.Context(), w.processes[0], mapper.Query{Kind: accounts}, mapper.NoParams{}, nil)
	w.must(err)
	status, _ := w.await(job)
	took := status.Ended.Sub(begun)
	w.network.on.Store(false)
	calls := float64(w.calls.total()) / float64(status.Pages)
	full := float64((n + 499) / 500)
	// Finding the boundary of each of the first ranges may take a query.
	if most := max(1.5*full, float64(min(workers, n/50))+6); float64(w.calls.cutting) > most {
		t.Errorf("%d queries and counts to decide where to cut, want at most %.1f; the job's calls were\n%v",
			w.calls.cutting, most, &w.calls)
	}
	if faster := loop.Seconds() / took.Seconds(); m.query > 0 && n >= 20_000 && faster < 1 {
		t.Errorf("%.2f times as fast as the loop, want 1; the job's calls were\n%v", faster, &w.calls)
	}
	for keys := range slices.Chunk(all, 500) {
		now := make([]account, len(keys))
		w.must(w.client.GetMulti(t.Context(), keys, now))
		if i := slices.IndexFunc(now, func(a account) bool { return a.Balance != 1+loopRaise }); i >= 0 {
			t.Fatalf("%v has a balance of %d after a job and a loop, want %d", keys[i], now[i].Balance, 1+loopRaise)
		}
	}
	t.Logf("%.2f times as fast as the loop, which takes %.3f s; %d pages, %.2f queries a full page to cut, %.2f "+
		"calls a page",
		loop.Seconds()/took.Seconds(), loop.Seconds(), status.Pages, float64(w.calls.cutting)/full, calls)
}
