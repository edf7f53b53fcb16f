package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

const (
	contended      = 30_000
	contendedCost  = time.Millisecond // how long the function takes for an entity
	contendedHands = 8                // number of workers
	contendedSeeds = uint64(6)        // the writers' entities are drawn from the seeds 1 to 6
)

// slowRaise adds to each account's balance, and takes the time contendedCost for it.
var slowRaise = mapper.Update("slow-raise",
	func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(contendedCost)
		e.Value.Balance++
		return nil
	})

// BenchmarkContention runs a job, and then a loop, over all entities of a kind while other clients
// write these entities. It runs in virtual time. For each number of writes, it does so once for
// each of contendedSeeds seeds, and reports means. It reports the time of each as a multiple of its
// time without other clients: x-alone for the job, and loop-x-alone. The metric worst-x-alone is
// the slowest seed of the job, and conflicts is how many times the job ran its function again.
func BenchmarkContention(b *testing.B) {
	for range b.N {
		var alone, loopAlone time.Duration
		for _, writes := range []int{0, 25, 100, 400} {
			seeds := contendedSeeds
			if writes == 0 {
				seeds = 1
			}
			var job, loop contention
			ok := b.Run(fmt.Sprintf("writes=%d", writes), func(b *testing.B) {
				for seed := range seeds {
					job.add(runContended(seed+1, writes, true), seeds)
					loop.add(runContended(seed+1, writes, false), seeds)
				}
				if job.err != nil {
					b.Fatal(job.err)
				}
				if writes == 0 {
					alone, loopAlone = job.took, loop.took
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(job.took.Seconds(), "job-s")
				b.ReportMetric(job.took.Seconds()/alone.Seconds(), "x-alone")
				b.ReportMetric(job.worst.Seconds()/alone.Seconds(), "worst-x-alone")
				b.ReportMetric(job.conflicts, "conflicts")
				b.ReportMetric(float64(loop.failed), "loop-failed")
				if loop.err != nil {
					b.Logf("%d of %d loops have failed: %v", loop.failed, seeds, loop.err)
					return
				}
				b.ReportMetric(loop.took.Seconds(), "loop-s")
				b.ReportMetric(loop.took.Seconds()/loopAlone.Seconds(), "loop-x-alone")
			})
			if !ok {
				return
			}
		}
	}
}

// TestContention checks that no write is lost while many clients write the entities that a job
// changes.
func TestContention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if c := contend(t, 1, 3000, 400, true); c.err != nil {
			t.Fatal(c.err)
		}
	})
}

// A contention is the result of a job or a loop that runs while other clients write its entities.
type contention struct {
	took      time.Duration
	worst     time.Duration // the longest time of a run
	conflicts float64       // how many times the job ran its function again
	failed    int           // number of runs that failed
	err       error
}

// add adds one of some runs to their mean, and keeps the longest time and the last error. A run that
// failed counts with the time until it failed.
func (c *contention) add(run contention, runs uint64) {
	c.took += run.took / time.Duration(runs)
	c.worst = max(c.worst, run.took)
	c.conflicts += run.conflicts / float64(runs)
	if run.err != nil {
		c.failed, c.err = c.failed+1, run.err
	}
}

// inBubble runs a part of a benchmark in virtual time, and reports whether it succeeded. Package
// synctest offers virtual time only to tests, so inBubble runs a test.
func inBubble(f func(t *testing.T)) bool {
	return testing.RunTests(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: "bubble", F: func(t *testing.T) { synctest.Test(t, f) },
	}})
}

// runContended runs the job, or the loop, while other clients make a number of writes a second.
func runContended(seed uint64, writes int, job bool) (c contention) {
	if !inBubble(func(t *testing.T) { c = contend(t, seed, contended, writes, job) }) && c.err == nil {
		c.err = fmt.Errorf("the run failed")
	}
	return c
}

// contend runs the job, or the loop, over n accounts. Until it ends, other clients make the given
// number of writes a second, to accounts that they draw from the seed.
func contend(t *testing.T, seed uint64, n, writes int, job bool) (c contention) {
	w := newWorldOn(t, contendedHands, emulator.Options{}, usualNetwork())
	keys := make([]*datastore.Key, n)
	for i := range keys {
		keys[i] = datastore.IDKey(accounts, int64(i+1), nil)
	}
	for first := 0; first < n; first += 500 {
		some := keys[first:min(n, first+500)]
		if _, err := w.client.PutMulti(t.Context(), some, make([]account, len(some))); err != nil {
			return contention{err: err}
		}
	}
	w.network.on.Store(true)
	others, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	added := make([]int64, n)
	var mu sync.Mutex
	if writes > 0 {
		rng := rand.New(rand.NewPCG(seed, 0))
		wg.Go(func() {
			for next := time.Now(); others.Err() == nil; next = next.Add(time.Second / time.Duration(writes)) {
				time.Sleep(time.Until(next))
				i := rng.IntN(n)
				wg.Go(func() {
					if err := raiseOne(t.Context(), w.client, keys[i]); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					added[i] += loopRaise
				})
			}
		})
	}
	time.Sleep(time.Second)
	begun := time.Now()
	if job {
		j, err := slowRaise.Start(t.Context(), w.processes[0], mapper.Query{Kind: accounts}, mapper.NoParams{},
			&mapper.StartOptions{ExpectedWorkers: contendedHands})
		if err != nil {
			return contention{err: err}
		}
		s, _ := w.await(j)
		c.took, c.conflicts = s.Ended.Sub(begun), float64(s.Conflicts)
	} else {
		err := peer{w.client, contendedHands, 500}.run(t.Context(), func(a *account) {
			time.Sleep(contendedCost)
			a.Balance++
		})
		c = contention{took: time.Since(begun), err: err}
	}
	stop()
	wg.Wait()
	w.network.on.Store(false)
	for first := 0; first < n && c.err == nil; first += 500 {
		some := make([]account, min(500, n-first))
		if err := w.client.GetMulti(t.Context(), keys[first:first+len(some)], some); err != nil {
			return contention{err: err}
		}
		for i, a := range some {
			if want := 1 + added[first+i]; a.Balance != want {
				return contention{err: fmt.Errorf("%v has %d, want %d", keys[first+i], a.Balance, want)}
			}
		}
	}
	return c
}

// raiseOne adds loopRaise to an account in a transaction, like another client. It repeats the
// transaction until it succeeds.
func raiseOne(ctx context.Context, client *datastore.Client, key *datastore.Key) error {
	_, err := client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		var a account
		if err := tx.Get(key, &a); err != nil {
			return err
		}
		a.Balance += loopRaise
		_, err := tx.Put(key, &a)
		return err
	}, datastore.MaxAttempts(100))
	return err
}
