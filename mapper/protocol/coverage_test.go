package protocol_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestSizes runs jobs over kinds with zero to a few more entities than a page has.
func TestSizes(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, n := range []int{0, 1, 99, 100, 101, 250, testflag.Size(t, 1000, 1000, 5000)} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, addCredit)
				keys := names(n)
				w.putAccounts(keys)
				status := w.wait(w.start(10, &mapper.StartOptions{PageSize: 100, AllowEmpty: true}))
				w.wantBalances(keys, 10)
				if status.Processed != int64(n) || status.Counters["credited"] != int64(n) || status.OpenRanges != 0 ||
					status.Failures != 0 || len(status.ByKind) > 0 {
					t.Errorf("status %+v", status)
				}
			})
		})
	}
}

// TestFullPages checks the number of tasks of a job over many entities: at least one for each
// worker, and not more than the number of full pages requires.
func TestFullPages(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(20000)
		w.putAccounts(keys)
		status := w.wait(w.start(10, nil))
		w.wantBalances(keys, 10)
		if workers := int64(100); status.Tasks > workers*13/10 || w.most.Load() < 10 {
			t.Errorf("%d tasks for %d workers, %d at once", status.Tasks, workers, w.most.Load())
		}
		if len(status.ByKind) > 0 {
			t.Errorf("a job over one kind has the spaces %+v", status.ByKind)
		}
	})
}

// TestKeysOfEveryForm runs a job over keys of all forms, on the embedded Datastore and on Google's
// emulators.
func TestKeysOfEveryForm(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	seed := testflag.Seed(t)
	onEach(t, func(t *testing.T, client *datastore.Client) {
		w := newWorld(t, setting{client: client}, addCredit)
		rng := rand.New(rand.NewPCG(seed, 0))
		// Google's client takes these keys for equal, because they have the same text: see lookup.
		keys := []*datastore.Key{
			datastore.IDKey("Account", 7, nil), datastore.NameKey("Account", "7", nil),
			datastore.NameKey("Account", "a/Account,b", nil),
			datastore.NameKey("Account", "b", datastore.NameKey("Account", "a", nil)),
		}
		seen := make(map[string]bool)
		for _, k := range keys {
			seen[k.Encode()] = true
		}
		n := 600
		if t.Name() != "TestKeysOfEveryForm/embedded" {
			n = testflag.Size(t, 0, 100, n)
		}
		for _, k := range keytest.Random(rng, n,
			keytest.Options{Kind: "Account", BasicPlane: strings.HasSuffix(t.Name(), "/google")}) {
			if !seen[k.Encode()] {
				keys = append(keys, k)
			}
		}
		// Put each in a call of its own, because the client would confuse these keys in one call.
		for i, k := range keys {
			if _, err := client.Put(t.Context(), k, &account{Balance: int64(i)}); err != nil {
				t.Fatal(err)
			}
		}
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 25, ExpectedWorkers: 16}))
		for i, k := range keys {
			var a account
			if err := client.Get(t.Context(), k, &a); err != nil || a.Balance != int64(i)+10 {
				t.Errorf("%#v: %+v, %v; want the balance %d", k, a, err, i+10)
			}
		}
	})
}

// TestForeignKeyOrder runs a job on a database that orders keys differently from Datastore:
// Google's classic emulator sorts names by UTF-16. The job may fail, but must not credit an account
// twice.
func TestForeignKeyOrder(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	client := googletest.Client(t, google.Classic)
	w := newWorld(t, setting{client: client}, addCredit)
	var keys []*datastore.Key
	for i := range 60 {
		for _, r := range []rune{'a', '\ue000', '\uffff', '\U00010000', '\U0010FFFF'} {
			keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("%c%03d", r, i), nil))
		}
	}
	w.putAccounts(keys)
	job := w.start(10, &mapper.StartOptions{PageSize: 10, ExpectedWorkers: 64})
	end, err := job.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		var a account
		if err := client.Get(t.Context(), k, &a); err != nil {
			t.Fatal(err)
		}
		if credited := a.Balance - int64(i); credited != 10 && (credited != 0 || end.State == mapper.StateSucceeded) {
			t.Errorf("%v was credited %d by a job that %s", k, credited, end.State)
		}
	}
	if end.State == mapper.StateFailed && end.Error == "" {
		t.Error("the job failed without an error")
	}
}

// TestOtherWriters runs a job while another client changes its accounts. The client adds to
// balances in transactions, and writes another property without reading. With both kinds of
// transactions (optimistic and pessimistic), no write of the client may be lost.
func TestOtherWriters(t *testing.T) {
	t.Parallel()
	for _, pessimistic := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { testOtherWriters(t, pessimistic) })
	}
}

func testOtherWriters(t *testing.T, pessimistic bool) {
	// Calls take some time, so that the job and the client really run concurrently.
	slow := faults.New(0,
		faults.Rule{Kind: faults.SlowCall, Latency: faults.Constant(3 * time.Millisecond)})
	w := newWorld(t, setting{emulator: emulator.Options{Faults: slow, PessimisticConcurrency: pessimistic}}, addCredit)
	keys := names(1000)
	w.putAccounts(keys)
	job := w.start(10, &mapper.StartOptions{PageSize: 50})
	rng := rand.New(rand.NewPCG(1, 2))
	added := make(map[int]int64)
	for range 200 {
		i := rng.IntN(len(keys))
		_, err := w.client.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
			var a account
			if err := tx.Get(keys[i], &a); err != nil {
				return err
			}
			a.Balance += 1000
			_, err := tx.Put(keys[i], &a)
			return err
		}, datastore.MaxAttempts(100))
		if err != nil {
			t.Fatal(err)
		}
		added[i] += 1000
		j := rng.IntN(len(keys))
		owner := &datastore.PropertyList{{Name: "Owner", Value: "new"}}
		if _, err := w.client.Mutate(t.Context(),
			datastore.NewUpdate(keys[j], owner).WithPropertyMask("Owner")); err != nil {
			t.Fatal(err)
		}
		added[j+len(keys)]++
	}
	w.wait(job)
	for i, k := range keys {
		a := w.account(k)
		if want := int64(i) + 10 + added[i]; a.Balance != want {
			t.Errorf("%v has %d, want %d", k, a.Balance, want)
		}
		if renamed := added[i+len(keys)] > 0; (a.Owner == "new") != renamed {
			t.Errorf("%v belongs to %q; another client changed that: %v", k, a.Owner, renamed)
		}
	}
}

// TestTwoJobsAtOnce runs two jobs concurrently over the same entities.
func TestTwoJobsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(1000)
		w.putAccounts(keys)
		first := w.start(10, &mapper.StartOptions{ID: "first", PageSize: 50})
		second := w.start(200, &mapper.StartOptions{ID: "second", PageSize: 70, AllowOverlap: true})
		for _, job := range []*mapper.Job{first, second} {
			if s := w.wait(job); s.Processed != 1000 || s.Counters["credited"] != 1000 {
				t.Errorf("status %+v", s)
			}
		}
		w.wantBalances(keys, 210)
	})
}

// TestEmptyKind checks that a job without any entity succeeds, and that its status says so.
func TestEmptyKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		begun := time.Now()
		status := w.wait(w.start(10, &mapper.StartOptions{AllowEmpty: true}))
		if took := time.Since(begun); took > time.Second || status.Processed != 0 || status.Pages != 0 ||
			status.Tasks != 1 {
			t.Errorf("after %v: %+v", took, status)
		}
	})
}

// TestNamespaces checks that a job changes only entities of its namespace.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		inside, outside := names(300), names(300)
		for _, k := range inside {
			k.Namespace = "n"
		}
		w.putAccounts(inside)
		w.putAccounts(outside)
		job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account", Namespace: "n"}, credit{10},
			&mapper.StartOptions{PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		w.wantBalances(inside, 10)
		w.wantBalances(outside, 0)
	})
}

// TestNoCompositeIndexes runs a job on a database without composite indexes. The engine's own
// queries must not need any.
func TestNoCompositeIndexes(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes: []")}}, addCredit)
		keys := names(5000)
		w.putAccounts(keys)
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
		w.wantBalances(keys, 10)
	})
}

// TestKeyOrder compares the order of keys of all forms in package keyspace with their order in each
// database.
func TestKeyOrder(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	seed := testflag.Seed(t)
	onEach(t, func(t *testing.T, client *datastore.Client) {
		// Google's classic emulator orders characters above U+FFFF differently: see the emulator's
		// tests.
		classic := t.Name() == "TestKeyOrder/google"
		keys := keytest.Random(rand.New(rand.NewPCG(seed, 0)), 1000,
			keytest.Options{Kind: "K", Namespace: "n", BasicPlane: classic})
		for start := 0; start < len(keys); start += 400 {
			batch := keys[start:min(start+400, len(keys))]
			if _, err := client.PutMulti(t.Context(), batch, make([]struct{}, len(batch))); err != nil {
				t.Fatal(err)
			}
		}
		got, err := client.GetAll(t.Context(), datastore.NewQuery("K").Namespace("n").KeysOnly(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(keys) || !slices.IsSortedFunc(got, keyspace.CompareKeys) {
			t.Errorf("%d keys of %d, in our order: %v", len(got), len(keys),
				slices.IsSortedFunc(got, keyspace.CompareKeys))
		}
	})
}

// TestFanOutOnGoogle runs a job on emulators in which half of the entities, or none, have
// __scatter__. On both, the job must start with several ranges, each of at least 50 entities.
func TestFanOutOnGoogle(t *testing.T) {
	t.Parallel()
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		t.Run(string(p), func(t *testing.T) {
			w := newWorld(t, setting{client: googletest.Client(t, p)}, addCredit)
			n := testflag.Size(t, 0, 1200, 3000)
			keys := names(n)
			w.putAccounts(keys)
			s := w.wait(w.start(10, nil))
			w.wantBalances(keys, 10)
			if s.MaxDepth < 1 || w.most.Load() < 2 || s.Tasks > int64(n)/50+8 {
				t.Errorf("depth %d, %d tasks, %d at once", s.MaxDepth, s.Tasks, w.most.Load())
			}
		})
	}
}

// TestSlowFunctions compares the duration of jobs with slow functions with the ideal time. After a
// slow page, the rest of its range must be spread over workers, and not be processed page after
// page by one.
func TestSlowFunctions(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, c := range map[string]struct {
		entities, workers int
		cost              func(i int) time.Duration
		most              float64 // allowed duration, as a multiple of the ideal
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

// TestLargeEntities updates entities that are so large that a page of them does not fit into one
// commit.
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

// TestUnevenEntities runs a function that takes from a millisecond to a second for an entity. Pages
// must end early, become smaller, and leave parts of their ranges to other workers.
func TestUnevenEntities(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	seed := testflag.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range testflag.Size(t, 2, 4, 10) {
		took := make(map[string]time.Duration)
		keys := names(3000)
		for _, k := range keys {
			took[k.Name] = time.Duration(float64(time.Millisecond) * min(1000, math.Pow(1-rng.Float64(), -1/1.2)))
		}
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Update("uneven", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
				time.Sleep(took[e.Key.Name])
				e.Value.Balance++
				return nil
			})
			w := newWorld(t, setting{queue: few(20)}, m)
			w.putAccounts(keys)
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 50, PageTime: 100 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if s := w.wait(job); s.Processed != int64(len(keys)) {
				t.Errorf("status %+v", s)
			}
			w.wantBalances(keys, 1)
			proof, err := job.Verify(t.Context(), nil)
			if err != nil || len(proof.Problems) > 0 {
				t.Errorf("proof %+v, %v", proof, err)
			}
		})
	}
}

// unscattered makes the emulator a database in which no entity has __scatter__: queries ordered by
// it find nothing.
func unscattered(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if q, ok := req.(*datastorepb.RunQueryRequest); ok && err == nil {
		if o := q.GetQuery().GetOrder(); len(o) > 0 && o[0].GetProperty().GetName() == "__scatter__" {
			b := resp.(*datastorepb.RunQueryResponse).GetBatch()
			b.EntityResults, b.MoreResults = nil, datastorepb.QueryResultBatch_NO_MORE_RESULTS
		}
	}
	return resp, err
}

// uncounted makes the emulator a database that refuses all counts after the first n.
func uncounted(n int64, code codes.Code) grpc.UnaryServerInterceptor {
	var counts atomic.Int64
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if path.Base(info.FullMethod) == "RunAggregationQuery" && counts.Add(1) > n {
			return nil, status.Error(code, "no aggregations here")
		}
		return handler(ctx, req)
	}
}

// blind makes the emulator a database that neither counts nor has samples of keys.
func blind(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return uncounted(0, codes.Unimplemented)(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		return unscattered(ctx, req, info, handler)
	})
}

// TestViewsOfTheKind runs jobs on databases that can't sample or count. Jobs must be split without
// that.
func TestViewsOfTheKind(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	n := testflag.Size(t, 2000, 2000, 5000)
	for name, interceptor := range map[string]func() grpc.UnaryServerInterceptor{
		"no samples": func() grpc.UnaryServerInterceptor { return unscattered },
		"no counts":  func() grpc.UnaryServerInterceptor { return uncounted(0, codes.Unimplemented) },
		"neither":    func() grpc.UnaryServerInterceptor { return blind },
		// the count that Start makes
		"not allowed": func() grpc.UnaryServerInterceptor { return uncounted(1, codes.PermissionDenied) },
		"exhausted":   func() grpc.UnaryServerInterceptor { return uncounted(1, codes.ResourceExhausted) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, m := range []*mapper.Mapper[credit]{addCredit, countBalances} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{emulator: emulator.Options{Interceptor: interceptor()}}, m)
					w.putAccounts(names(n))
					job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
						&mapper.StartOptions{PageSize: 20})
					if err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					if s := w.wait(job); s.Processed != int64(n) || time.Since(begun) > time.Minute {
						t.Errorf("%s: %+v", m.Name(), s)
					}
				})
			}
		})
	}
}

// unhurriedCredit and countBalances are mappers that take a while for each account.
var (
	unhurriedCredit = mapper.Update("unhurried-credit",
		func(_ context.Context, a *mapper.Entity[account], c credit) error {
			time.Sleep(time.Millisecond)
			a.Value.Balance += c.Amount
			return nil
		})
	countBalances = mapper.Visit("count-balances", func(_ context.Context, a *mapper.Entity[account], c credit) error {
		time.Sleep(time.Millisecond)
		a.Count("accounts", 1)
		return nil
	})
)

// TestEntitiesComeAndGo deletes all entities of a job while it runs. It also puts some of them back
// between the engine's query for keys and its concurrent count. So ranges become empty, and empty
// ranges get entities.
func TestEntitiesComeAndGo(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, m := range []*mapper.Mapper[credit]{unhurriedCredit, countBalances} {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprint(m.Name(), back), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var w *world
					keys := names(6_000)
					var gone atomic.Bool
					putBack := func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
						handler grpc.UnaryHandler) (any, error) {
						if back && path.Base(info.FullMethod) == "RunAggregationQuery" && gone.Load() {
							time.Sleep(time.Second) // the engine's query for keys has ended by then
							if gone.CompareAndSwap(true, false) {
								w.putAccounts(keys)
							}
						}
						return handler(ctx, req)
					}
					w = newWorld(t, setting{emulator: emulator.Options{Interceptor: putBack}, queue: few(4)}, m)
					w.putAccounts(keys)
					job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
						&mapper.StartOptions{PageSize: 20, ExpectedWorkers: 100})
					if err != nil {
						t.Fatal(err)
					}
					for range 1000 {
						time.Sleep(time.Millisecond)
						if s, err := job.Status(t.Context()); err != nil || s.Processed > 100 {
							break
						}
					}
					for part := range slices.Chunk(keys, 500) {
						if err := w.client.DeleteMulti(t.Context(), part); err != nil {
							t.Fatal(err)
						}
					}
					gone.Store(true)
					s := w.wait(job)
					if s.FullPages > s.Pages || s.Tasks == 0 {
						t.Errorf("status %+v", s)
					}
					proof, err := job.Verify(t.Context(), nil)
					if err != nil || len(proof.Problems) > 0 {
						t.Errorf("proof %+v, %v", proof, err)
					}
				})
			})
		}
	}
}
