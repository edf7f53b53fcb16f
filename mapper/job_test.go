package mapper_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestSizes runs jobs over kinds of every size around a page.
func TestSizes(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, n := range []int{0, 1, 99, 100, 101, 250, 1000, 5000} {
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

// TestFullPages checks the number of tasks for each full page, at the main
// job's size.
func TestFullPages(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(20000)
		w.putAccounts(keys)
		status := w.wait(w.start(10, nil))
		w.wantBalances(keys, 10)
		if full := int64(20000 / 500); status.Tasks > full*13/10 || w.most.Load() < 10 {
			t.Errorf("%d tasks for %d full pages, %d at once", status.Tasks, full, w.most.Load())
		}
		if len(status.ByKind) > 0 {
			t.Errorf("a job over one kind has the spaces %+v", status.ByKind)
		}
	})
}

// TestKeysOfEveryForm runs a job over keys of all forms, on the embedded
// Datastore and on Google's.
func TestKeysOfEveryForm(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	seed := testflag.Seed(t)
	onEach(t, func(t *testing.T, client *datastore.Client) {
		w := newWorld(t, setting{client: client}, addCredit)
		rng := rand.New(rand.NewPCG(seed, 0))
		// Keys whose texts are the same to the client: see lookup.
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
			n = testflag.Size(t, 0, 150, n)
		}
		for _, k := range keytest.Random(rng, n,
			keytest.Options{Kind: "Account", BasicPlane: strings.HasSuffix(t.Name(), "/google")}) {
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
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 25, ExpectedWorkers: 16}))
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
	testflag.Sequential(t)
	t.Parallel()
	client := googletest.Client(t, emulator.Classic)
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

// TestOtherWriters has another client change the accounts while the job runs:
// it adds to the balance in transactions, and writes another property blindly. In
// both modes of concurrency none of its writes is lost.
func TestOtherWriters(t *testing.T) {
	t.Parallel()
	for _, pessimistic := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { testOtherWriters(t, pessimistic) })
	}
}

func testOtherWriters(t *testing.T, pessimistic bool) {
	// A little latency lets the two meet.
	slow := emulator.NewFaults(0,
		emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Constant(3 * time.Millisecond)})
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

// TestTwoJobsAtOnce runs two jobs over the same entities.
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

// TestEmptyKind checks that a job over nothing succeeds, and says so.
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

// TestNamespaces checks that a job stays in its namespace.
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

// TestNoCompositeIndexes runs a job where queries that need a composite index are
// refused: ours need none.
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

// TestStates has the states of a job be those that its record has.
func TestStates(t *testing.T) {
	t.Parallel()
	for state, want := range map[mapper.State]record.JobState{
		mapper.StateRunning: record.Running, mapper.StateSucceeded: record.Succeeded, mapper.StateFailed: record.Failed,
		mapper.StateSucceededWithFailures: record.SucceededWithFailures, mapper.StatePaused: record.Paused,
		mapper.StateAborted: record.Aborted,
	} {
		if string(state) != string(want) {
			t.Errorf("%q is stored as %q", state, want)
		}
	}
}
