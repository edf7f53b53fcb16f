package mapper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/mapper"
)

// TestSizes runs jobs over kinds of every size around a page.
func TestSizes(t *testing.T) {
	for _, n := range []int{0, 1, 99, 100, 101, 250, 1000, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, addCredit)
				keys := names(n)
				w.putAccounts(keys)
				status := w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
				w.wantBalances(keys, 10)
				if status.Processed != int64(n) || status.Counters["credited"] != int64(n) || status.Open != 0 || status.Failures != 0 {
					t.Errorf("status %+v", status)
				}
			})
		})
	}
}

// TestFullPages checks the number of tasks for each full page, at the main
// job's size.
func TestFullPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(20000)
		w.putAccounts(keys)
		status := w.wait(w.start(10, nil))
		w.wantBalances(keys, 10)
		if full := int64(20000 / 500); status.Tasks > full*13/10 || w.most.Load() < 10 {
			t.Errorf("%d tasks for %d full pages, %d at once", status.Tasks, full, w.most.Load())
		}
	})
}

// TestKeysOfEveryForm runs a job over keys of all forms, on the embedded
// Datastore and on Google's.
func TestKeysOfEveryForm(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	onEach(t, func(t *testing.T, client *datastore.Client) {
		w := newWorld(t, setting{client: client}, addCredit)
		rng := rand.New(rand.NewPCG(seed, 0))
		// Keys whose texts are the same to the client: see lookup.
		keys := []*datastore.Key{
			datastore.IDKey("Account", 7, nil), datastore.NameKey("Account", "7", nil),
			datastore.NameKey("Account", "a/Account,b", nil), datastore.NameKey("Account", "b", datastore.NameKey("Account", "a", nil)),
		}
		seen := make(map[string]bool)
		for _, k := range keys {
			seen[k.Encode()] = true
		}
		for _, k := range keytest.Random(rng, 600, keytest.Options{Kind: "Account", BasicPlane: strings.HasSuffix(t.Name(), "/google")}) {
			if !seen[k.Encode()] {
				keys = append(keys, k)
			}
		}
		// One by one: the client mixes up such keys in one call.
		for i, k := range keys {
			if _, err := client.Put(t.Context(), k, &account{Balance: int64(i)}); err != nil {
				t.Fatal(err)
			}
		}
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 25, Workers: 16}))
		for i, k := range keys {
			var a account
			if err := client.Get(t.Context(), k, &a); err != nil || a.Balance != int64(i)+10 {
				t.Errorf("%#v: %+v, %v; want the balance %d", k, a, err, i+10)
			}
		}
	})
}

// TestForeignKeyOrder runs a job on a database that sorts keys in another way
// than Datastore: Google's classic emulator does, by UTF-16. It must not credit
// anything twice, and may only give up.
func TestForeignKeyOrder(t *testing.T) {
	client := googletest.Client(t, emulator.Classic)
	w := newWorld(t, setting{client: client}, addCredit)
	var keys []*datastore.Key
	for i := range 60 {
		for _, r := range []rune{'a', '\ue000', '\uffff', '\U00010000', '\U0010FFFF'} {
			keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("%c%03d", r, i), nil))
		}
	}
	w.putAccounts(keys)
	job := w.start(10, &mapper.StartOptions{PageSize: 10, Workers: 64})
	end, err := job.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		var a account
		if err := client.Get(t.Context(), k, &a); err != nil {
			t.Fatal(err)
		}
		if credited := a.Balance - int64(i); credited != 10 && (credited != 0 || end.State == mapper.Succeeded) {
			t.Errorf("%v was credited %d by a job that %s", k, credited, end.State)
		}
	}
	if end.State == mapper.Failed && end.Error == "" {
		t.Error("the job failed without an error")
	}
}

// TestEveryTaskTwice delivers every task twice at the same time, and once more
// afterwards.
func TestEveryTaskTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		w.handler = repeat(w.engine.Handler())
		keys := names(3000)
		w.putAccounts(keys)
		status := w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
		time.Sleep(time.Hour) // for what still runs
		w.wantBalances(keys, 10)
		if status.Counters["credited"] != 3000 || status.Processed != 3000 {
			t.Errorf("status %+v", status)
		}
	})
}

// repeat handles each request three times, the first two at once, and answers as
// the worst of them.
func repeat(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var answers [3]*httptest.ResponseRecorder
		one := func(i int) {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			answers[i] = httptest.NewRecorder()
			h.ServeHTTP(answers[i], again)
		}
		var wg sync.WaitGroup
		wg.Go(func() { one(0) })
		wg.Go(func() { one(1) })
		wg.Wait()
		one(2)
		worst := 0
		for _, a := range answers {
			worst = max(worst, a.Code)
		}
		rw.WriteHeader(worst)
	})
}

// lost returns faults that lose a share of the calls, before their effect and
// after it, once they are resumed.
func lost(seed uint64, share float64, methods ...string) *emulator.Faults {
	f := emulator.NewFaults(seed,
		emulator.Fault{Kind: emulator.LoseCall, Methods: methods, Share: share},
		emulator.Fault{Kind: emulator.LoseAnswer, Methods: methods, Share: share})
	f.Pause()
	return f
}

// checkLost checks that something was lost.
func checkLost(t *testing.T, f *emulator.Faults) {
	t.Helper()
	if n := f.Counts(); n[emulator.LoseCall] == 0 || n[emulator.LoseAnswer] == 0 {
		t.Errorf("faults injected: %v", n)
	}
}

// TestLostResponses runs jobs while calls of both services fail, before and
// after their effect.
func TestLostResponses(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			f := lost(seed+i, 0.3)
			w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
			keys := names(500)
			w.putAccounts(keys)
			job := w.start(10, &mapper.StartOptions{PageSize: 50})
			f.Resume()
			s := w.wait(job)
			f.Pause()
			checkLost(t, f)
			w.wantBalances(keys, 10)
			if s.Processed != 500 || s.Counters["credited"] != 500 {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestConcurrentStarts starts one job five times at once, while responses are
// lost.
func TestConcurrentStarts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			f := lost(seed+i, 0.4, "Commit", "CreateTask")
			w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
			keys := names(300)
			w.putAccounts(keys)
			f.Resume()
			var wg sync.WaitGroup
			var started atomic.Int64
			for range 5 {
				wg.Go(func() {
					// Whoever gets an error tries again, as an operator would.
					for range 20 {
						job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, &mapper.StartOptions{ID: "once", PageSize: 50})
						if err == nil {
							started.Add(1)
							if job.ID != "once" {
								t.Errorf("job %q", job.ID)
							}
							return
						}
					}
				})
			}
			wg.Wait()
			if started.Load() != 5 {
				t.Errorf("%d of 5 starts succeeded", started.Load())
			}
			w.wait(w.engine.Job("once"))
			f.Pause()
			checkLost(t, f)
			w.wantBalances(keys, 10)
			if jobs := records(t, w.client); len(jobs) != 1 {
				t.Errorf("there are %d jobs", len(jobs))
			}
		})
	}
}

// TestStartAgain starts a job again: while it runs, after its end, and with
// other arguments.
func TestStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := mapper.Visit("other", func(context.Context, *mapper.Entity[account], credit) error { return nil })
		w := newWorld(t, setting{}, addCredit, other)
		keys := names(300)
		w.putAccounts(keys)
		o := &mapper.StartOptions{ID: "once", PageSize: 50}
		w.start(10, o)
		w.wait(w.start(10, o))
		w.wait(w.start(10, o))
		w.wantBalances(keys, 10)

		refused := func(name string, _ *mapper.Job, err error) {
			if !errors.Is(err, mapper.ErrOtherArguments) {
				t.Errorf("%s: %v, want ErrOtherArguments", name, err)
			}
		}
		job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{11}, o)
		refused("other params", job, err)
		job, err = addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Other"}, credit{10}, o)
		refused("another kind", job, err)
		job, err = addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account", Namespace: "n"}, credit{10}, o)
		refused("another namespace", job, err)
		job, err = other.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
		refused("another mapper", job, err)

		if _, err := w.engine.StartNamed(t.Context(), "add-credit", mapper.Query{Kind: "Account"}, []byte(` { "Amount" : 10 } `), o); err != nil {
			t.Errorf("the same by name: %v", err)
		}
		time.Sleep(time.Hour)
		w.wantBalances(keys, 10)
	})
}

// TestStartRevivesTheRoot checks that starting a job again brings back the task
// of its root if it was lost, though its name is still taken.
func TestStartRevivesTheRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(300)
		w.putAccounts(keys)
		// A handler that swallows the first task: to the queue it is done.
		swallowed := false
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !swallowed {
				swallowed = true
				return
			}
			w.engine.Handler().ServeHTTP(rw, r)
		})
		o := &mapper.StartOptions{ID: "once", PageSize: 50}
		job := w.start(10, o)
		time.Sleep(time.Minute) // before the first sweep
		if status, err := job.Status(t.Context()); err != nil || status.State != mapper.Running || status.Open != 1 {
			t.Errorf("without its task the job is %+v, %v", status, err)
		}
		w.wait(w.start(10, o))
		w.wantBalances(keys, 10)
	})
}

// TestOtherWriters has another client change the accounts while the job runs:
// it adds to the balance in transactions, and writes another property blindly. In
// both modes of concurrency none of its writes is lost.
func TestOtherWriters(t *testing.T) {
	for _, pessimistic := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { testOtherWriters(t, pessimistic) })
	}
}

func testOtherWriters(t *testing.T, pessimistic bool) {
	// A little latency lets the two meet.
	slow := emulator.NewFaults(0, emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Constant(3 * time.Millisecond)})
	w := newWorld(t, setting{emulator: emulator.Options{Faults: slow, Pessimistic: pessimistic}}, addCredit)
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
		if _, err := w.client.Mutate(t.Context(), datastore.NewUpdate(keys[j], owner).WithPropertyMask("Owner")); err != nil {
			t.Fatal(err)
		}
		added[j+len(keys)]++
	}
	w.wait(job)
	for i, k := range keys {
		var a account
		if err := w.client.Get(t.Context(), k, &a); err != nil {
			t.Fatal(err)
		}
		if want := int64(i) + 10 + added[i]; a.Balance != want {
			t.Errorf("%v has %d, want %d", k, a.Balance, want)
		}
		if renamed := added[i+len(keys)] > 0; (a.Owner == "new") != renamed {
			t.Errorf("%v belongs to %q; another client changed that: %v", k, a.Owner, renamed)
		}
	}
}

// TestTwoJobsAtOnce runs two jobs over the same entities.
func TestTwoJobsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(1000)
		w.putAccounts(keys)
		first := w.start(10, &mapper.StartOptions{ID: "first", PageSize: 50})
		second := w.start(200, &mapper.StartOptions{ID: "second", PageSize: 70})
		for _, job := range []*mapper.Job{first, second} {
			if s := w.wait(job); s.Processed != 1000 || s.Counters["credited"] != 1000 {
				t.Errorf("status %+v", s)
			}
		}
		w.wantBalances(keys, 210)
	})
}

// TestEmptyKind checks that a job over nothing succeeds, and says so.
func TestEmptyKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		begun := time.Now()
		status := w.wait(w.start(10, nil))
		if took := time.Since(begun); took > time.Second || status.Processed != 0 || status.Pages != 0 || status.Tasks != 1 {
			t.Errorf("after %v: %+v", took, status)
		}
	})
}

// TestNamespaces checks that a job stays in its namespace.
func TestNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		inside, outside := names(300), names(300)
		for _, k := range inside {
			k.Namespace = "n"
		}
		w.putAccounts(inside)
		w.putAccounts(outside)
		job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account", Namespace: "n"}, credit{10}, &mapper.StartOptions{PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		w.wantBalances(inside, 10)
		w.wantBalances(outside, 0)
	})
}

// TestStatus follows a job of more records than a live status reads.
func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := mapper.Update("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
			time.Sleep(100 * time.Millisecond)
			a.Value.Balance++
			a.Count("seen", 1)
			return nil
		})
		w := newWorld(t, setting{queue: &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 100}}}, slow)
		var closed atomic.Bool
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if closed.Load() {
				http.NotFound(rw, r)
				return
			}
			w.engine.Handler().ServeHTTP(rw, r)
		})
		const n = 5000
		w.putAccounts(names(n))
		job, err := slow.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.None{}, &mapper.StartOptions{PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		estimated := false
		for {
			s, err := job.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.State.Ended() {
				break
			}
			if s.Estimated && !estimated {
				// What a status costs shows while nothing else runs.
				closed.Store(true)
				time.Sleep(10 * time.Second)
				before := w.emulator.Usage()
				if _, err := job.Status(t.Context()); err != nil {
					t.Fatal(err)
				}
				if used := w.emulator.Usage().Sub(before); used.Reads != 251 || used.Writes+used.SmallOps > 0 {
					t.Errorf("a status cost %+v", used)
				}
				closed.Store(false)
			}
			if s.Estimated {
				estimated = true
				if total := s.Processed + s.Remaining; total < n/2 || total > n*2 {
					t.Errorf("%d processed and %d remaining, of %d", s.Processed, s.Remaining, n)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if !estimated {
			t.Error("no status was an estimate")
		}
		// Another process with other mappers can follow it.
		another, err := mapper.New(w.client, w.queue, &mapper.Options{Mappers: mapper.Set(addCredit)})
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(another.Job(job.ID))
		if s.Estimated || s.Processed != n || s.Counters["seen"] != n || s.Mapper != "slow" || s.Query.Kind != "Account" ||
			s.Created.IsZero() || !s.Ended.After(s.Created) {
			t.Errorf("status %+v", s)
		}
		if _, err := w.engine.Job("none").Status(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("no such job: %v", err)
		}
		if _, err := w.engine.Job("none").Wait(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("no such job: %v", err)
		}
	})
}

// TestNoCompositeIndexes runs a job where queries that need a composite index are
// refused: ours need none.
func TestNoCompositeIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes: []")}}, addCredit)
		keys := names(5000)
		w.putAccounts(keys)
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
		w.wantBalances(keys, 10)
	})
}

// TestRecordsStayCold checks that no record is written by more than a few tasks,
// and that a finished job leaves nothing indexed.
func TestRecordsStayCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		writes := make(map[string]int)
		count := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				for _, name := range written(req) {
					writes[name]++
				}
			}
			return resp, err
		}
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: count}}, addCredit)
		w.putAccounts(names(5000))
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 50}))
		for _, name := range slices.Sorted(maps.Keys(writes)) {
			if writes[name] > 4 {
				t.Errorf("%s was written %d times", name, writes[name])
			}
		}
		// A query over a property finds what is in its index.
		for _, property := range []string{"open", "job", "id", "state", "start", "end", "samples", "done", "counters", "created"} {
			n, err := w.client.Count(t.Context(), datastore.NewQuery(mapper.RangeKind).Order(property))
			if err != nil || n > 0 {
				t.Errorf("%d records of the job are in the index of %s; %v", n, property, err)
			}
		}
	})
}
