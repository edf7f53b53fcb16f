package mapper_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestHotEntities has other clients change a few accounts all the time, each of
// which alone would make every page conflict that holds it. In both modes of
// concurrency the job ends, the others get their turns, and nothing is lost.
func TestHotEntities(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, pessimistic := range map[string]bool{"optimistic": false, "pessimistic": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testHotEntities(t, pessimistic) })
		})
	}
}

func testHotEntities(t *testing.T, pessimistic bool) {
	slow := emulator.NewFaults(0,
		emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Constant(10 * time.Millisecond)})
	w := newWorld(t, setting{emulator: emulator.Options{Faults: slow, PessimisticConcurrency: pessimistic},
		queue: few(10)},
		slowCredit)
	keys := names(2000)
	w.putAccounts(keys)
	others, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	added := make([]int64, len(keys))
	longest := make([]time.Duration, len(keys))
	for _, hot := range []int{0, 3, 777, 778, 1500} {
		wg.Go(func() {
			for others.Err() == nil {
				begun := time.Now()
				w.addTo(keys[hot])
				added[hot]++
				longest[hot] = max(longest[hot], time.Since(begun))
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			}
		})
	}
	time.Sleep(time.Second)
	s := w.wait(w.startSlow())
	stop()
	wg.Wait()
	for i, k := range keys {
		a := w.account(k)
		if want := int64(i) + 10 + added[i]; a.Balance != want {
			t.Errorf("%v has %d, want %d", k, a.Balance, want)
		}
	}
	for i, n := range added {
		if n > 0 && n < 20 {
			t.Errorf("another client had %d turns at %v, the longest took %v", n, keys[i], longest[i])
		}
	}
	if s.Tasks > 300 {
		t.Errorf("%d tasks for 40 pages and 5 hot entities", s.Tasks)
	}
	t.Logf("%d tasks, %v, turns of others %v", s.Tasks, s.Ended.Sub(s.Created), added[777])
}

// TestHotEntity has another client write one account ten times a second, blindly, so that a page
// with it conflicts nearly always. The entities behind it do not wait for it. It has its turn as
// long as a transaction fits between two writes of the other client, and otherwise is a failure
// that says why.
func TestHotEntity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		takes       time.Duration // the function
		pessimistic bool
		fails       bool
	}{
		{name: "a transaction fits", takes: 5 * time.Millisecond},
		{name: "nothing fits", takes: 200 * time.Millisecond, fails: true},
		{name: "pessimistic", takes: 200 * time.Millisecond, pessimistic: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testHotEntity(t, test.takes, test.pessimistic, test.fails) })
		})
	}
}

func testHotEntity(t *testing.T, takes time.Duration, pessimistic, fails bool) {
	slow := emulator.NewFaults(0,
		emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Constant(35 * time.Millisecond)})
	calls := 0
	add := mapper.Update("add", func(_ context.Context, e *mapper.Entity[account], p credit) error {
		if e.Key.Name == names(51)[50].Name {
			calls++
			time.Sleep(takes)
		}
		e.Value.Balance += p.Amount
		return nil
	})
	w := newWorld(t, setting{emulator: emulator.Options{Faults: slow, PessimisticConcurrency: pessimistic},
		queue: few(4)}, add)
	keys := names(200)
	w.putAccounts(keys)
	others, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	wg.Go(func() {
		for n := 0; others.Err() == nil; n++ {
			<-tick.C
			owner := &datastore.PropertyList{{Name: "Owner", Value: strconv.Itoa(n)}}
			if _, err := w.client.Mutate(t.Context(),
				datastore.NewUpdate(keys[50], owner).WithPropertyMask("Owner")); err != nil {
				t.Error(err)
			}
		}
	})
	time.Sleep(time.Second)
	job, err := add.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, nil)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for s := w.status(job); s.Processed < int64(len(keys)-1); s = w.status(job) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("after %v %d of %d are processed: those behind the hot one wait for it", time.Since(begun),
				s.Processed, len(keys)-1)
		}
		time.Sleep(time.Second)
	}
	s, err := job.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stop()
	wg.Wait()
	t.Logf("%d calls, %v, %d tasks, state %s", calls, s.Ended.Sub(s.Created), s.Tasks, s.State)
	for i, k := range keys {
		want := int64(i) + 10
		if fails && i == 50 {
			want -= 10
		}
		if a := w.account(k); a.Balance != want {
			t.Errorf("%v has %d, want %d", k, a.Balance, want)
		}
	}
	if s.Ended.Sub(s.Created) > 10*time.Minute {
		t.Errorf("it took %v", s.Ended.Sub(s.Created))
	}
	failures, _, err := job.FailuresPage(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case fails && (len(failures) != 1 || !strings.Contains(failures[0].Error, "other clients change the entity")):
		t.Errorf("the failures are %+v", failures)
	case !fails && len(failures) > 0:
		t.Errorf("the failures are %+v", failures)
	}
}

// addTo adds 1 to the balance of an account, as another client would: until it has
// succeeded.
func (w *world) addTo(key *datastore.Key) {
	for {
		_, err := w.client.RunInTransaction(context.Background(), func(tx *datastore.Transaction) error {
			var a account
			if err := tx.Get(key, &a); err != nil {
				return err
			}
			a.Balance++
			_, err := tx.Put(key, &a)
			return err
		})
		if err == nil {
			return
		}
	}
}

// TestInserts inserts entities while a job runs: those ahead of it are visited,
// those behind it are not, and the records stay right.
func TestInserts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(1)}, slowCredit)
		keys := names(1000)
		w.putAccounts(keys)
		job, err := slowCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{
				PageSize: 50, Splitting: mapper.Splitting{First: 1, FanOut: 1}, // in the order of the keys
			})
		if err != nil {
			t.Fatal(err)
		}
		for s := w.status(job); s.Processed == 0; s = w.status(job) {
			time.Sleep(10 * time.Millisecond)
		}
		behind, ahead := datastore.NameKey("Account", "user-0000000-behind", nil),
			datastore.NameKey("Account", "user-9", nil)
		for _, k := range []*datastore.Key{behind, ahead} {
			if _, err := w.client.Put(t.Context(), k, &account{}); err != nil {
				t.Fatal(err)
			}
		}
		if s := w.wait(job); s.Processed != 1001 {
			t.Errorf("status %+v", s)
		}
		if a, b := w.account(ahead), w.account(behind); a.Balance != 10 || b.Balance != 0 {
			t.Errorf("ahead %+v, behind %+v", a, b)
		}
		w.wantBalances(keys, 10)
		if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
	})
}
