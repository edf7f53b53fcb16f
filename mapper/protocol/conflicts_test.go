package protocol_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestHotEntities runs a job while other clients change a few accounts all the time, so that a page
// with such an account always conflicts. With both kinds of transactions (optimistic and
// pessimistic), the job must end, the other clients must succeed, and no write may be lost.
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
	slow := faults.New(0,
		faults.Rule{Kind: faults.SlowCall, Latency: faults.Constant(10 * time.Millisecond)})
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

// TestHotEntity runs a job while a client writes one account ten times a second, without reading
// it. A page with this account nearly always conflicts. The accounts after it must not wait for it.
// If a transaction fits between two writes of the client, the account must be processed. Otherwise
// it must become a failure that says why.
func TestHotEntity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		takes       time.Duration // how long the function takes
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
	slow := faults.New(0,
		faults.Rule{Kind: faults.SlowCall, Latency: faults.Constant(35 * time.Millisecond)})
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
			t.Fatalf("after %v %d of %d are processed: those after the hot one wait for it", time.Since(begun),
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

// addTo adds 1 to the balance of an account in a transaction, like another client. It repeats the
// transaction until it succeeds.
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

// TestInserts inserts entities while a job runs. The job must visit those that it has not passed
// yet, and no others. The records must fit together.
func TestInserts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(1)}, slowCredit)
		keys := names(1000)
		w.putAccounts(keys)
		job, err := slowCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{
				// with one task, so that entities are processed in key order
				PageSize: 50, Splitting: mapper.Splitting{First: 1, FanOut: 1},
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
			t.Errorf("inserted ahead of the job: %+v, already passed: %+v", a, b)
		}
		w.wantBalances(keys, 10)
		if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
	})
}

// commits counts the commits that change accounts: single calls with conditions, and transactions.
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

// TestOneCall checks that each page of a job without conflicts is committed in one call, without a
// transaction. If the database tells no versions of entities, each page must be a transaction.
func TestOneCall(t *testing.T) {
	testflag.Sequential(t)
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

// TestOthersWrite runs a job while other clients add to accounts all the time, and delete some. No
// write may be lost, and most pages must still be committed in one call.
func TestOthersWrite(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	synctest.Test(t, func(t *testing.T) {
		var c commits
		slow := faults.New(1,
			faults.Rule{Kind: faults.SlowCall, Latency: faults.Exponential{Mean: 10 * time.Millisecond}})
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

// TestCopiesOfUnchanged runs a function that copies each account and does not change it. Meanwhile
// another client changes one account and its copy in one transaction. The copy must keep that
// change: a page may commit only if the accounts that its function has read are unchanged.
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

// TestNextPageReadsAnew lets the function of each entity mark the next entity. If that one is in
// the next page, which may have been read ahead, its function must see the mark.
func TestNextPageReadsAnew(t *testing.T) {
	t.Parallel()
	key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
	for _, size := range []int{1, 3, 100} {
		synctest.Test(t, func(t *testing.T) {
			const n = 12
			mark := mapper.Update("mark", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
				if e.Value.Points == 0 {
					e.Count("unmarked", 1)
					return nil
				}
				e.Count("marked", 1)
				if e.Key.ID < n {
					e.Put(key(e.Key.ID+1), &team{Points: 1})
				}
				return nil
			})
			w, ctx := newWorld(t, setting{queue: few(1)}, mark), t.Context()
			for i := range int64(n) {
				p := int64(0)
				if i == 0 {
					p = 1
				}
				_, err := w.client.Put(ctx, key(i+1), &team{Points: p})
				w.must(err)
			}
			job, err := mark.Start(ctx, w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{}, &mapper.StartOptions{
				PageSize: size, ExpectedWorkers: 1, Splitting: mapper.Splitting{First: 1, FanOut: 1},
			})
			w.must(err)
			s := w.wait(job)
			t.Logf("pages of %d: counters %v pages %d", size, s.Counters, s.Pages)
			if s.Counters["marked"] != n {
				t.Errorf("pages of %d: counters %v, want %d marked", size, s.Counters, n)
			}
		})
	}
}

// TestRefusedInsertPasses runs two functions of a page that insert the same entity. A conflict
// makes the first function run again, and this time it does not insert. The second insert must
// succeed, and not become a failure.
func TestRefusedInsertPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		calls := map[int64]int{}
		x := datastore.NameKey("Target", "x", nil)
		key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
		m := mapper.Update("insert", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			calls[e.Key.ID]++
			if e.Value.Points == 0 {
				e.Insert(x, &team{Points: e.Key.ID})
				e.Value.Name = "moved"
			}
			if e.Key.ID == 1 && calls[1] == 1 {
				_, err := w.client.Put(ctx, e.Key, &team{Points: 5})
				return err
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		ctx := t.Context()
		for i := range int64(2) {
			_, err := w.client.Put(ctx, key(i+1), &team{})
			w.must(err)
		}
		job, s := overTeams(w, m)
		wantNoFailure(w, job)
		var got team
		t.Logf("calls %v, processed %d, failures %d, x: %v", calls, s.Processed, s.Failures, w.client.Get(ctx, x, &got))
	})
}

// TestErrorPasses runs a function that fails because of what the function of the entity before it
// has put. A conflict makes the earlier function run again, and this time it puts nothing. So the
// later entity must not become a failure.
func TestErrorPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		calls := map[int64]int{}
		x := datastore.NameKey("Target", "x", nil)
		key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
		m := mapper.Update("read", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			calls[e.Key.ID]++
			switch {
			case e.Key.ID == 2:
				var got team
				if err := e.Get(ctx, x, &got); err != nil {
					return err
				}
				if got.Points < 0 {
					return mapper.Permanent(errors.New("x is bad"))
				}
				e.Value.Name = "good"
			case e.Value.Points == 0:
				e.Put(x, &team{Points: -1})
				if calls[1] == 1 {
					_, err := w.client.Put(ctx, e.Key, &team{Points: 5})
					return err
				}
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		ctx := t.Context()
		_, err := w.client.Put(ctx, x, &team{Points: 3})
		w.must(err)
		for i := range int64(2) {
			_, err := w.client.Put(ctx, key(i+1), &team{})
			w.must(err)
		}
		job, s := overTeams(w, m)
		wantNoFailure(w, job)
		var got team
		w.must(w.client.Get(ctx, x, &got))
		t.Logf("calls %v, processed %d, failures %d, x: %v", calls, s.Processed, s.Failures, got)
	})
}

// TestGetOfItself lets a function read its own entity, while another client changes the entity
// once. The function must run twice, and each run must see one consistent state.
func TestGetOfItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		calls := 0
		m := mapper.Update("itself", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			calls++
			var got team
			if err := e.Get(ctx, e.Key, &got); err != nil {
				return err
			}
			if calls == 1 {
				if _, err := w.client.Put(ctx, e.Key, &team{Points: 5}); err != nil {
					return err
				}
			}
			if got != e.Value {
				t.Errorf("call %d: has %v, and gets %v", calls, e.Value, got)
			}
			e.Value.Name = fmt.Sprint(got.Points)
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		ctx := t.Context()
		_, err := w.client.Put(ctx, datastore.IDKey("Team", 1, nil), &team{Points: 1})
		w.must(err)
		_, s := overTeams(w, m)
		if calls != 2 || s.Tasks != 1 {
			t.Errorf("%d calls, %d tasks, failures %d, conflicts %d", calls, s.Tasks, s.Failures, s.Conflicts)
		}
	})
}

// TestShiftOfKeys moves each entity to the key of the entity before it, while other clients change
// the last one. Only the function of the last one may run again.
func TestShiftOfKeys(t *testing.T) {
	t.Parallel()
	for _, writes := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			calls := map[string]int{}
			const n = 20
			key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
			m := mapper.Update("shift", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
				calls[e.Value.Name]++
				e.Delete(e.Key)
				if e.Key.ID > 1 {
					e.Insert(key(e.Key.ID-1), &e.Value)
				}
				if e.Key.ID == n && calls["t20"] <= writes {
					if _, err := w.client.Put(ctx, e.Key,
						&team{Name: e.Value.Name, Points: e.Value.Points + 1}); err != nil {
						return err
					}
				}
				return nil
			})
			w = newWorld(t, setting{queue: few(1)}, m)
			ctx := t.Context()
			for i := range int64(n) {
				_, err := w.client.Put(ctx, key(i+1), &team{Name: fmt.Sprint("t", i+1)})
				w.must(err)
			}
			job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{},
				&mapper.StartOptions{ExpectedWorkers: 1, FailureLimit: -1,
					Splitting: mapper.Splitting{First: 1, FanOut: 1}})
			w.must(err)
			s, err := job.Wait(ctx)
			w.must(err)
			all, sum := 0, 0
			for _, c := range calls {
				all, sum = all+1, sum+c
			}
			left, err := w.client.Count(ctx, datastore.NewQuery("Team"))
			w.must(err)
			t.Logf("%d writes: %d calls, %d tasks, failures %d, conflicts %d, processed %d, left %d", writes, sum,
				s.Tasks, s.Failures, s.Conflicts, s.Processed, left)
			if sum > n+writes || s.Failures > 0 {
				t.Errorf("%d calls, want %d", sum, n+writes)
			}
		})
	}
}

// TestPutAfterInsert inserts an entity and then puts the same entity, in one call of the function.
// If the entity existed before, this must still be an error.
func TestPutAfterInsert(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := datastore.NameKey("Target", "x", nil)
		m := mapper.Update("insert", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			e.Insert(x, &team{Points: 1})
			e.Put(x, &team{Points: 2})
			return nil
		})
		w, ctx := newWorld(t, setting{queue: few(1)}, m), t.Context()
		_, err := w.client.Put(ctx, x, &team{Points: 100})
		w.must(err)
		_, err = w.client.Put(ctx, datastore.IDKey("Team", 1, nil), &team{})
		w.must(err)
		_, s := overTeams(w, m)
		var got team
		w.must(w.client.Get(ctx, x, &got))
		if got.Points != 100 || s.Failures != 1 {
			t.Errorf("x has %d, failures %d", got.Points, s.Failures)
		}
	})
}

// overTeams runs a job over the teams with one worker to its end, and returns the job and its
// status.
func overTeams(w *world, m *mapper.Mapper[mapper.NoParams]) (*mapper.Job, *mapper.Status) {
	w.Helper()
	job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{},
		&mapper.StartOptions{ExpectedWorkers: 1, FailureLimit: -1})
	w.must(err)
	s, err := job.Wait(w.Context())
	w.must(err)
	return job, s
}

func wantNoFailure(w *world, job *mapper.Job) {
	w.Helper()
	failures, _, err := job.FailuresPage(w.Context(), "")
	w.must(err)
	for _, f := range failures {
		w.Errorf("failure: %s", f.Error)
	}
}

// TestTolerantBesideOthers changes one entity of a page all the time, while the page's other
// entities fail permanently. A job without a failure limit must record these failures, and end.
func TestTolerantBesideOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		moves := 0
		key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
		m := mapper.Update("bad", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			if e.Key.ID > 1 {
				return mapper.Permanent(errors.New("it is bad"))
			}
			if e.Value.Name = "good"; moves < 10 {
				moves++
				_, err := w.client.Put(ctx, e.Key, &team{Points: int64(moves)})
				return err
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		for i := range int64(30) {
			_, err := w.client.Put(t.Context(), key(i+1), &team{})
			w.must(err)
		}
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 30, FailureLimit: -1})
		w.must(err)
		s, err := job.Wait(t.Context())
		w.must(err)
		var first team
		if s.State != mapper.StateSucceededWithFailures || s.Failures != 29 || s.Processed != 1 {
			t.Errorf("%d moves; the job is %s: %s; %d failures, %d processed", moves, s.State, s.Error, s.Failures,
				s.Processed)
		}
		if err := w.client.Get(t.Context(), key(1), &first); err != nil || first != (team{Name: "good", Points: 10}) {
			t.Errorf("%+v, %v", first, err)
		}
	})
}

// TestUnchangedOverTorn moves all points from a club to a team in one transaction, after the page
// has read the team and before the function reads the club. The function must not see the state
// between, in which nobody has the points, also if it writes nothing or fails then.
func TestUnchangedOverTorn(t *testing.T) {
	t.Parallel()
	for name, torn := range map[string]error{"writes nothing": nil,
		"fails": mapper.Permanent(errors.New("points are lost"))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testUnchangedOverTorn(t, torn) })
		})
	}
}

// testUnchangedOverTorn is TestUnchangedOverTorn. In the state between, the function returns torn.
func testUnchangedOverTorn(t *testing.T, torn error) {
	var w *world
	club, key := datastore.NameKey("Club", "x", nil), datastore.IDKey("Team", 2, nil)
	m := mapper.Update("sum", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
		if e.Key.ID == 1 {
			_, err := w.client.PutMulti(ctx, []*datastore.Key{key, club}, []team{{Points: 5}, {}})
			return err
		}
		var of team
		if err := e.Get(ctx, club, &of); err != nil {
			return err
		}
		e.Count("points", e.Value.Points+of.Points)
		if e.Value.Points+of.Points != 5 {
			return torn
		}
		e.Value.Name = "all"
		return nil
	})
	w = newWorld(t, setting{queue: few(1)}, m)
	_, err := w.client.PutMulti(t.Context(), []*datastore.Key{datastore.IDKey("Team", 1, nil), key, club},
		[]team{{}, {}, {Points: 5}})
	w.must(err)
	_, s := overTeams(w, m)
	var got team
	w.must(w.client.Get(t.Context(), key, &got))
	if want := (team{Name: "all", Points: 5}); got != want || s.Counters["points"] != 5 || s.Conflicts != 1 ||
		s.Failures != 0 {
		t.Errorf("%+v, counters %v, %d conflicts, %d failures", got, s.Counters, s.Conflicts, s.Failures)
	}
}

// TestHotFailure fails after it has read or inserted an entity that is changed during each call. The
// job must end, and the failure must name both causes.
func TestHotFailure(t *testing.T) {
	t.Parallel()
	type call func(ctx context.Context, e *mapper.Entity[team], club *datastore.Key) error
	for want, fn := range map[string]call{
		"points are lost": func(ctx context.Context, e *mapper.Entity[team], club *datastore.Key) error {
			return cmp.Or(e.Get(ctx, club, new(team)), mapper.Permanent(errors.New("points are lost")))
		},
		"inserts /Club,x, which is there": func(_ context.Context, e *mapper.Entity[team], club *datastore.Key) error {
			e.Insert(club, &team{})
			return nil
		},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w *world
				calls, club := int64(0), datastore.NameKey("Club", "x", nil)
				m := mapper.Update("bad", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
					err := fn(ctx, e, club)
					calls++
					_, failed := w.client.Put(ctx, club, &team{Points: calls})
					w.must(failed)
					return err
				})
				w = newWorld(t, setting{queue: few(1)}, m)
				_, err := w.client.PutMulti(t.Context(), []*datastore.Key{datastore.IDKey("Team", 1, nil), club},
					[]team{{}, {}})
				w.must(err)
				job, s := overTeams(w, m)
				failures, _, err := job.FailuresPage(t.Context(), "")
				w.must(err)
				if len(failures) != 1 || s.Failures != 1 {
					t.Fatalf("%d failures, %d calls", s.Failures, calls)
				}
				for _, want := range []string{"other clients change the entity", want} {
					if text := failures[0].Error; !strings.Contains(text, want) {
						t.Errorf("the failure is %q, want %q", text, want)
					}
				}
			})
		})
	}
}
