package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// A poison is an entity that the function can't process, in one of many ways.
type poison struct {
	name  string
	do    func(ctx context.Context, f *fleet, a *mapper.Entity[growing]) error
	wants string // in the error that is recorded
	store any    // what is stored in place of the account
}

type growing struct {
	Balance int64
	Note    string `datastore:",noindex,omitempty"`
}

var poisons = []poison{
	{name: "error", wants: "no", do: func(context.Context, *fleet, *mapper.Entity[growing]) error { return errors.New("no") }},
	{name: "permanent error", wants: "never", do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
		return mapper.Permanent(errors.New("never"))
	}},
	{name: "retry after", wants: "later", do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
		return mapper.RetryAfter(errors.New("later"), time.Hour)
	}},
	{name: "panic", wants: "panic: oh", do: func(context.Context, *fleet, *mapper.Entity[growing]) error { panic("oh") }},
	{name: "exit", wants: "the process died 5 times", do: func(ctx context.Context, f *fleet, _ *mapper.Entity[growing]) error { return f.die(ctx) }},
	{name: "hang", wants: "took too long", do: func(ctx context.Context, _ *fleet, _ *mapper.Entity[growing]) error {
		<-ctx.Done()
		time.Sleep(time.Hour) // it does not care
		return nil
	}},
	{name: "goexit", wants: "ended its goroutine", do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
		runtime.Goexit()
		return nil
	}},
	{name: "undecodable", wants: "Balance", store: &struct{ Balance, Owner string }{"much", "somebody"}},
	{name: "oversize", wants: "above the maximum", do: func(_ context.Context, _ *fleet, a *mapper.Entity[growing]) error {
		a.Value.Note = strings.Repeat("x", 1<<20)
		return nil
	}},
}

// TestPoison puts one entity among many that the function can't process: the job
// ends by itself, the others are done, and the one is listed. It is done by a
// retry, once it is mended.
func TestPoison(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5_000
	}
	for _, p := range poisons {
		t.Run(p.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testPoison(t, p, n) })
		})
	}
}

func testPoison(t *testing.T, p poison, n int) {
	var f *fleet
	var mended atomic.Bool
	keys := names(n)
	bad := keys[n*2/3]
	m := mapper.Update("poisoned", func(ctx context.Context, a *mapper.Entity[growing], _ mapper.None) error {
		if p.do != nil && a.Key.Equal(bad) && !mended.Load() {
			return p.do(ctx, f, a)
		}
		a.Value.Balance += 10
		a.Count("credited", 1)
		return nil
	})
	w := newWorld(t, setting{queue: few(60)}, m)
	f = newFleet(w, 1, 3, m)
	w.putAccounts(keys)
	if p.store != nil {
		if _, err := w.client.Put(t.Context(), bad, p.store); err != nil {
			t.Fatal(err)
		}
	}
	job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.None{}, &mapper.StartOptions{ID: "j"})
	if err != nil {
		t.Fatal(err)
	}
	end := func() *mapper.Status {
		ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
		defer cancel()
		s, err := job.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	begun := time.Now()
	if s := end(); s.State != mapper.SucceededWithFailures || s.Failures != 1 || s.Processed != int64(n-1) || s.Counters["credited"] != int64(n-1) {
		t.Errorf("status %+v", s)
	}
	took := time.Since(begun)
	failures, next, err := job.Failures(t.Context(), "")
	if err != nil || next != "" || len(failures) != 1 || !failures[0].Key.Equal(bad) || !strings.Contains(failures[0].Error, p.wants) {
		t.Errorf("failures %+v, %q, %v", failures, next, err)
	}
	t.Logf("%+v; took %v, %d processes died", failures, took, f.killed)

	mended.Store(true)
	if p.store != nil {
		if _, err := w.client.Put(t.Context(), bad, &account{int64(n * 2 / 3), fmt.Sprint("owner ", n*2/3)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := job.Retry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := end(); s.State != mapper.Succeeded || s.Processed != int64(n) || s.Counters["credited"] != int64(n) {
		t.Errorf("after the retry: %+v", s)
	}
	w.wantBalances(keys, 10)
	proof, err := job.Verify(t.Context())
	if err != nil || len(proof.Problems) > 0 {
		t.Errorf("proof %+v, %v", proof, err)
	}
	time.Sleep(2 * time.Hour) // for functions that were left behind
}

// TestInnocents has processes die of one entity, and of nothing that has to do with
// entities, with 20 pages in flight in each: nobody but that one is blamed.
func TestInnocents(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			var f *fleet
			keys := names(20_000)
			bad := keys[7777]
			m := mapper.Update("deadly", func(ctx context.Context, a *mapper.Entity[growing], _ mapper.None) error {
				if a.Key.Equal(bad) {
					time.Sleep(5 * time.Millisecond)
					return f.die(ctx)
				}
				time.Sleep(time.Millisecond)
				a.Value.Balance += 10
				return nil
			})
			w := newWorld(t, setting{queue: few(60)}, m)
			f = newFleet(w, seed, 3, m)
			w.putAccounts(keys)
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.None{}, &mapper.StartOptions{PageSize: 100})
			if err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			go func() {
				for {
					select {
					case <-time.After(time.Duration(100+seed*200) * time.Millisecond):
						f.killAny()
					case <-stop:
						return
					}
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
			defer cancel()
			s, err := job.Wait(ctx)
			if err != nil || s.Failures != 1 || s.Processed != 19_999 {
				t.Errorf("seed %d: %+v, %v", seed, s, err)
			}
			close(stop)
			failures, _, err := job.Failures(t.Context(), "")
			if err != nil || len(failures) != 1 || !failures[0].Key.Equal(bad) {
				t.Errorf("seed %d: failures %+v, %v", seed, failures, err)
			}
			t.Logf("seed %d: %d processes died, %d tasks, %v", seed, f.killed, s.Tasks, s.Ended.Sub(s.Created))
			w.wantBalances(keys[:7777], 10)
		})
	}
}
