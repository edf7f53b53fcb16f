package mapper_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

var (
	seeds     = flag.Int("seeds", 0, "how many seeds TestSimulation runs; 0: 200, or 30 under -short")
	firstSeed = flag.Uint64("seed", 0, "the first of them; 0 is a new one")
)

// TestSimulation runs jobs while everything goes wrong that can, and checks
// after each that every account was credited exactly once, and that the records
// prove it.
func TestSimulation(t *testing.T) {
	seed, n := *firstSeed, *seeds
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if n == 0 {
		if n = 200; testing.Short() {
			n = 30
		}
	}
	t.Logf("seeds %d to %d; replay one by -args -seeds 1 -seed SEED", seed, seed+uint64(n)-1)
	for i := range uint64(n) {
		t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, seed+i) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	faults := emulator.NewFaults(seed, trouble(rng)...)
	faults.Pause()
	checker := &snapshotChecker{T: t}
	w := newWorld(t, setting{
		emulator: emulator.Options{Faults: faults, Pessimistic: rng.IntN(3) == 0, Interceptor: checker.intercept},
		queue:    few(int32(1 + rng.IntN(20))),
	}, addCredit)
	keys := names(100 + rng.IntN(900))
	w.putAccounts(keys)
	faults.Resume()
	job := w.startUnderTrouble(&mapper.StartOptions{ID: "sim", PageSize: 5 + rng.IntN(100), Workers: 1 + rng.IntN(64)})
	var operators sync.WaitGroup
	operators.Go(func() { // somebody pauses, or purges the queue, and resumes
		for range rng.IntN(3) {
			time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
			if rng.IntN(2) == 0 {
				w.purge() // with the chain of sweeps
			} else {
				_ = job.Pause(t.Context()) // it may have taken place, whatever it says
			}
			time.Sleep(time.Duration(rng.IntN(600)) * time.Second)
			for {
				if err := job.Resume(t.Context()); err == nil || errors.Is(err, mapper.ErrState) {
					break
				}
				time.Sleep(time.Second)
			}
		}
	})
	operators.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 30*24*time.Hour)
	defer cancel()
	var s *mapper.Status
	for err := errors.New("not yet"); err != nil; {
		if s, err = job.Wait(ctx); err != nil && ctx.Err() != nil {
			t.Fatalf("the job does not end: %v", err)
		}
	}
	faults.Pause()
	if s.State != mapper.Succeeded || s.Processed != int64(len(keys)) || s.Counters["credited"] != int64(len(keys)) {
		t.Errorf("status %+v of %d accounts", s, len(keys))
	}
	w.wantBalances(keys, 10)
	time.Sleep(time.Hour)
	proof, err := job.Verify(t.Context())
	if err != nil || len(proof.Problems) > 0 {
		t.Errorf("proof %+v, %v", proof, err)
	}
	t.Logf("%d ranges, checked %d times; went wrong: %v", proof.Ranges, checker.checks.Load(), faults.Counts())
}

// trouble draws what goes wrong in one simulation: some of all that can, rarely or
// often.
func trouble(rng *rand.Rand) []emulator.Fault {
	share := func(most float64) float64 { return most * (0.05 + 0.95*rng.Float64()) }
	minutes := func(n int) time.Duration { return time.Duration(rng.IntN(n*60)) * time.Second }
	down := minutes(3)
	all := []emulator.Fault{
		{Kind: emulator.LoseCall, Share: share(0.2)},
		{Kind: emulator.LoseAnswer, Share: share(0.2)},
		{Kind: emulator.LoseAnswer, Share: share(0.2), Code: codes.DeadlineExceeded, Methods: []string{"Commit", "CreateTask"}},
		{Kind: emulator.LoseCall, Share: share(0.1), Code: codes.Internal},
		{Kind: emulator.LoseCall, After: down, Until: down + minutes(2) + time.Second},
		{Kind: emulator.SlowCall, Latency: emulator.Exponential{Mean: time.Duration(1+rng.IntN(100)) * time.Millisecond}},
		{Kind: emulator.SlowCall, Share: share(0.01), Latency: emulator.Uniform{Max: 90 * time.Second}},
		{Kind: emulator.AbortCommit, Share: share(0.3)},
		{Kind: emulator.DeliverTwice, Share: share(0.5), Latency: emulator.Uniform{Max: 5 * time.Minute}},
		{Kind: emulator.DeliverTogether, Share: share(0.5), Latency: emulator.Uniform{Max: time.Second}},
		{Kind: emulator.DeliverLate, Share: share(0.2), Latency: emulator.Uniform{Max: 10 * time.Minute}},
		{Kind: emulator.DeliverShuffled, Share: share(1)},
		{Kind: emulator.CrashReceiver, Share: share(0.3)},
		{Kind: emulator.LoseReply, Share: share(0.3)},
	}
	var some []emulator.Fault
	for _, f := range all {
		if rng.IntN(2) == 0 {
			some = append(some, f)
		}
	}
	return some
}

// startUnderTrouble starts the job as an operator would: again after each error.
func (w *world) startUnderTrouble(o *mapper.StartOptions) *mapper.Job {
	w.Helper()
	for range 1000 {
		job, err := addCredit.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
		if err == nil {
			return job
		}
		time.Sleep(time.Second)
	}
	w.Fatal("the job can't be started")
	return nil
}

// purge empties the queue.
func (w *world) purge() {
	client, err := w.emulator.CloudTasks(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer client.Close()
	_, _ = client.PurgeQueue(w.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queueName}) // it may fail, like all calls
}
