package mapper_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// commits counts how commits are made that change accounts.
type commits struct{ calls, transactions atomic.Int64 }

func (c *commits) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	if commit, ok := req.(*datastorepb.CommitRequest); ok && err == nil &&
		commit.Mode == datastorepb.CommitRequest_TRANSACTIONAL {
		for _, m := range commit.Mutations {
			if k := m.GetUpdate().GetKey(); k != nil && k.Path[0].Kind == "Account" {
				if commit.GetTransaction() == nil {
					c.calls.Add(1)
				} else {
					c.transactions.Add(1)
				}
				break
			}
		}
	}
	return resp, err
}

// TestOneCall runs a job whose pages nobody is in the way of: each is committed in one
// call. A client without versions has a transaction for each.
func TestOneCall(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var c commits
			w := newWorld(t, setting{queue: few(4), plain: plain, emulator: emulator.Options{Interceptor: c.intercept}},
				addCredit)
			keys := names(5000)
			w.putAccounts(keys)
			s := w.wait(w.start(10, &mapper.StartOptions{PageSize: 100, ExpectedWorkers: 4}))
			w.wantBalances(keys, 10)
			if s.Written != 5000 || s.Pages != c.calls.Load()+c.transactions.Load() {
				t.Errorf("%d pages in %d commits and %d transactions", s.Pages, c.calls.Load(), c.transactions.Load())
			}
			if most := map[bool]int64{false: 0, true: s.Pages}[plain]; c.transactions.Load() > most ||
				plain && c.calls.Load() > 0 {
				t.Errorf("plain %v: %d commits in one call, and %d transactions, want at most %d", plain,
					c.calls.Load(), c.transactions.Load(), most)
			}
		})
	}
}

// TestOthersWrite has other clients add to accounts all the time, and delete some: no write is
// lost. In the end most pages are in one call all the same.
func TestOthersWrite(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	synctest.Test(t, func(t *testing.T) {
		var c commits
		slow := emulator.NewFaults(1,
			emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Exponential{Mean: 10 * time.Millisecond}})
		w := newWorld(t, setting{queue: few(8), emulator: emulator.Options{Interceptor: c.intercept, Faults: slow}},
			addCredit)
		const n = 5000
		keys := names(n)
		w.putAccounts(keys)
		job := w.start(10, &mapper.StartOptions{PageSize: 50, ExpectedWorkers: 8})
		added := make([]int64, n)
		for range 150 {
			i := rng.IntN(n)
			_, err := w.client.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
				var a account
				if err := tx.Get(keys[i], &a); err != nil {
					return err
				}
				a.Balance += 1_000_000
				_, err := tx.Put(keys[i], &a)
				return err
			}, datastore.MaxAttempts(50))
			if err != nil {
				t.Fatal(err)
			}
			added[i]++
		}
		w.wait(job)
		for i, k := range keys {
			if a := w.account(k); a.Balance != int64(i)+10+1_000_000*added[i] {
				t.Fatalf("%v has %d, want %d", k, a.Balance, int64(i)+10+1_000_000*added[i])
			}
		}
		t.Logf("%d commits in one call, and %d transactions", c.calls.Load(), c.transactions.Load())
	})
}

// TestCopiesOfUnchanged has a function copy each account, without changing it, while another client
// changes one and its copy together. The copy is what that client has made of it: what a function
// puts elsewhere is committed only if its entity is still what it has seen.
func TestCopiesOfUnchanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		copyOf := func(k *datastore.Key) *datastore.Key { return datastore.NameKey("Copy", k.Name, nil) }
		keys := names(1000)
		last := keys[len(keys)-1]
		var w *world
		var once sync.Once
		m := mapper.Update("copy", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Put(copyOf(a.Key), &a.Value); a.Key.Equal(last) {
				once.Do(func() {
					now := account{Balance: 5000, Owner: "another"}
					if _, err := w.client.PutMulti(t.Context(), []*datastore.Key{last, copyOf(last)},
						[]account{now, now}); err != nil {
						t.Error(err)
					}
				})
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		w.putAccounts(keys)
		over(w, m, &mapper.StartOptions{PageSize: 100, ExpectedWorkers: 1})
		var copied account
		if err := w.client.Get(t.Context(), copyOf(last), &copied); err != nil {
			t.Fatal(err)
		}
		if now := w.account(last); copied != now {
			t.Errorf("the copy is %+v, and the account %+v", copied, now)
		}
	})
}
