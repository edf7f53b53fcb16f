package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// over runs a job without parameters over the accounts to its end, and returns its status.
func over(w *world, m *mapper.Mapper[mapper.NoParams], o *mapper.StartOptions) *mapper.Status {
	w.Helper()
	job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, o)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), 24*time.Hour)
	defer cancel()
	letRun(ctx, w.engine, job)
	status, err := job.Wait(ctx)
	if err != nil {
		w.Fatal(err)
	}
	time.Sleep(time.Millisecond) // so that later events have a later time than the job's end
	return status
}

// TestFailingEntities runs a function that fails on a few of many entities, in every possible way.
// The other entities of their pages must be processed.
func TestFailingEntities(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries := make(map[string]int)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Value.Balance += 10
			a.Count("seen", 1)
			mu.Lock()
			defer mu.Unlock()
			tries[a.Key.Name]++
			switch a.Key.Name {
			case "user-0000003":
				return errors.New("no")
			case "user-0000005":
				panic("oh")
			case "user-0000007":
				return mapper.Permanent(errors.New("never"))
			case "user-0000009":
				if tries[a.Key.Name] < 3 {
					return errors.New("not yet")
				}
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		keys := names(300)
		w.putAccounts(keys)
		s := over(w, m, &mapper.StartOptions{PageSize: 100})
		if s.State != mapper.StateSucceededWithFailures || s.Failures != 3 || s.Processed != 297 ||
			s.Counters["seen"] != 297 {
			t.Errorf("status %+v", s)
		}
		failed := []int{3, 5, 7}
		for i, k := range keys {
			a := w.account(k)
			want := int64(i) + 10
			if slices.Contains(failed, i) {
				want = int64(i)
			}
			if a.Balance != want {
				t.Errorf("%v has %d, want %d", k, a.Balance, want)
			}
		}
		want := map[string]int{"user-0000003": mapper.DefaultUpdateAttempts,
			"user-0000005": mapper.DefaultUpdateAttempts,
			"user-0000007": 1, "user-0000009": 3}
		for name, n := range want {
			if tries[name] != n {
				t.Errorf("%s was tried %d times, want %d", name, tries[name], n)
			}
		}
	})
}

// TestFailingFunction runs a function that fails on all entities. The job must soon fail with the
// function's error. No entity may be changed or lost.
func TestFailingFunction(t *testing.T) {
	t.Parallel()
	for _, permanent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				calls.Add(1)
				a.Value.Balance = -1
				err := errors.New("the bug")
				if permanent {
					err = mapper.Permanent(err)
				}
				return err
			})
			w := newWorld(t, setting{}, m)
			keys := names(1000)
			w.putAccounts(keys)
			s := over(w, m, &mapper.StartOptions{PageSize: 100, ExpectedWorkers: 4})
			if s.State != mapper.StateFailed || !strings.Contains(s.Error, "the bug") ||
				!strings.Contains(s.Error, "of a page") {
				t.Errorf("status %+v", s)
			}
			if limit := int64(1000 * mapper.DefaultUpdateAttempts); calls.Load() > limit {
				t.Errorf("the function was called %d times, want at most %d", calls.Load(), limit)
			}
			time.Sleep(48 * time.Hour)
			w.wantBalances(keys, 0)
			if s.OpenRanges == 0 {
				t.Error("no range is open for another try")
			}
		})
	}
}

// TestLogsSayNothingOfEntities runs a function whose errors and panics contain data of its entity.
// The job's records must have these texts, and the log must not.
func TestLogsSayNothingOfEntities(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance%2 == 0 {
				panic("panic of " + a.Value.Owner)
			}
			return errors.New("failure of " + a.Value.Owner)
		})
		w := newWorld(t, setting{log: &log}, m)
		w.putAccounts(names(200))
		for _, size := range []int{5, 100} { // with 5, entities fail one by one; with 100, their page fails
			s := over(w, m, &mapper.StartOptions{PageSize: size})
			if s.State == mapper.StateFailed && !strings.Contains(s.Error, " of owner ") {
				t.Errorf("the record does not say why: %q", s.Error)
			}
		}
		if log.String() == "" || strings.Contains(log.String(), "owner") || strings.Contains(log.String(), "user-0") {
			t.Errorf("the log:\n%.2000s", log.String())
		}
	})
}

// TestMixedErrors runs a function that fails on most entities of a page, on some permanently. The
// others may still succeed later, so the job must retry, and end when they succeed.
func TestMixedErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		outage := time.Now().Add(time.Second)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Name == "user-0000007" {
				return mapper.Permanent(errors.New("never"))
			}
			if time.Now().Before(outage) {
				return errors.New("not now")
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(100))
		if s := over(w, m, nil); s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != 99 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestRefusedCommits writes a value that only the database refuses, and then the whole commit is
// refused. Only the entity with this value must become a failure.
func TestRefusedCommits(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	type grown struct {
		Balance int64
		Text    []byte `datastore:",noindex"`
	}
	type E = *mapper.Entity[grown]
	for name, spoil := range map[string]func(E){
		"larger than an entity can be": func(e E) { e.Value.Text = make([]byte, 1<<20) },
		"a large entity besides": func(e E) {
			e.Put(datastore.NameKey("Other", "x", nil), &grown{Text: make([]byte, 1<<20)})
		},
		"a long key": func(e E) {
			key := datastore.NameKey("Other", strings.Repeat("x", 1400), nil)
			for range 5 {
				key = datastore.NameKey("Other", strings.Repeat("x", 1400), key)
			}
			e.Delete(key)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Update("spoil", func(_ context.Context, e E, _ mapper.NoParams) error {
				e.Value.Balance += 10
				e.Count("seen", 1)
				if e.Key.Name == "user-0000123" {
					spoil(e)
				}
				return nil
			})
			w := newWorld(t, setting{}, m)
			keys := names(500)
			accounts := make([]grown, len(keys))
			if _, err := w.client.PutMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			s := over(w, m, nil)
			if s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != 499 ||
				s.Counters["seen"] != 499 {
				t.Errorf("%s: status %+v", name, s)
			}
			if err := w.client.GetMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			for i, a := range accounts {
				if want := int64(10); i != 123 && a.Balance != want || i == 123 && a.Balance != 0 {
					t.Errorf("%s: %v has %d", name, keys[i], a.Balance)
				}
			}
		})
	}
}

// TestPanicSaysWhere checks that the failure of a function that has panicked names the line in the
// user's code.
func TestPanicSaysWhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("panics", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			var missing *account
			a.Value.Balance = missing.Balance
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(100))
		s := over(w, m, nil)
		for _, want := range []string{"nil pointer dereference", "TestPanicSaysWhere", "failures_test.go:"} {
			if !strings.Contains(s.Error, want) {
				t.Errorf("the error does not say %q: %s", want, s.Error)
			}
		}
	})
}

// TestStructThatDoesNotFit runs a job over entities that can't be loaded into the mapper's Go type.
// The error must name the field, and the entities must stay unchanged.
func TestStructThatDoesNotFit(t *testing.T) {
	t.Parallel()
	type misfit struct{ Owner int64 }
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("misfit", func(context.Context, *mapper.Entity[misfit], mapper.NoParams) error {
			return nil
		})
		w := newWorld(t, setting{}, m)
		keys := names(50)
		w.putAccounts(keys)
		s := over(w, m, nil)
		if s.State != mapper.StateFailed || !strings.Contains(s.Error, `"Owner"`) {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 0)
	})
}

// TestRepeatedFailure delivers the tasks of an entity that always fails several times. It must
// count as one failure, so that the job does not fail.
func TestRepeatedFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Name == "user-0000003" {
				time.Sleep(time.Second)
				return errors.New("no")
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.handler = repeat(w.engine.Handler())
		w.putAccounts(names(100))
		if s := over(w, m, &mapper.StartOptions{PageSize: 50}); s.State != mapper.StateSucceededWithFailures ||
			s.Failures != 1 || s.Processed != 99 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestRepeatedVisit delivers a task twice, and the second call of the function returns a permanent
// error. By then the range is done, so the error must have no effect.
func TestRepeatedVisit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		sent := make(map[string]bool)
		m := mapper.Visit("send", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			mu.Lock()
			again := sent[a.IdempotencyKey()]
			sent[a.IdempotencyKey()] = true
			mu.Unlock()
			if again {
				time.Sleep(time.Second)
				return mapper.Permanent(errors.New("already sent"))
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.handler = repeat(w.engine.Handler())
		w.putAccounts(names(100))
		if s := over(w, m, nil); s.State != mapper.StateSucceeded || s.Processed != 100 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestLargestPages runs a job with the largest allowed page size.
func TestLargestPages(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(20000)
		w.putAccounts(keys)
		if s := w.wait(w.start(10, &mapper.StartOptions{PageSize: 1000})); s.Tasks > 130 {
			t.Errorf("%d tasks for 100 workers", s.Tasks)
		}
		w.wantBalances(keys, 10)
	})
}

// TestRefusedReads lets the database refuse lookups in transactions for a while. No entity may
// become a failure.
func TestRefusedReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refuse := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if lookup, ok := req.(*datastorepb.LookupRequest); ok && len(lookup.Keys) > 1 &&
				lookup.ReadOptions.GetTransaction() != nil {
				return nil, status.Error(codes.InvalidArgument, "no")
			}
			return handler(ctx, req)
		}
		w := newWorld(t, setting{plain: true, emulator: emulator.Options{Interceptor: refuse}}, addCredit)
		keys := names(50)
		w.putAccounts(keys)
		end, err := w.start(10, nil).Wait(t.Context())
		if err != nil || end.State != mapper.StateFailed || end.Failures > 0 {
			t.Errorf("status %+v, %v", end, err)
		}
		w.wantBalances(keys, 0)
	})
}

// TestEveryCommitRefused lets the database refuse every commit of the function's writes. The job
// must fail, without recording each entity as a failure.
func TestEveryCommitRefused(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refuse := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if commit, ok := req.(*datastorepb.CommitRequest); ok &&
				commit.Mode == datastorepb.CommitRequest_TRANSACTIONAL {
				for _, m := range commit.Mutations {
					if k := m.GetUpdate().GetKey(); k != nil && k.Path[0].Kind == "Account" {
						return nil, status.Error(codes.InvalidArgument, "the property is not allowed")
					}
				}
			}
			return handler(ctx, req)
		}
		w := newWorld(t, setting{
			emulator: emulator.Options{Interceptor: refuse},
			queue:    &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 4}},
		}, addCredit)
		keys := names(2000)
		w.putAccounts(keys)
		s, err := w.start(10, &mapper.StartOptions{ExpectedWorkers: 4}).Wait(t.Context())
		if err != nil || s.State != mapper.StateFailed || s.Failures > 200 || s.Tasks > 500 {
			t.Errorf("status %+v, %v", s, err)
		}
		w.wantBalances(keys, 0)
	})
}

// TestSameKeyTwice puts and deletes the same entity several times in one function. The last call
// must take effect.
func TestSameKeyTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		other, gone := datastore.NameKey("Other", "x", nil), datastore.NameKey("Other", "y", nil)
		m := mapper.Update("twice", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Put(other, &account{Balance: 1})
			a.Put(gone, &account{Balance: 1})
			a.Delete(other)
			a.Put(other, &account{Balance: 2})
			a.Delete(gone)
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(3))
		if s := over(w, m, nil); s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
		var a account
		if err := w.client.Get(t.Context(), other, &a); err != nil || a.Balance != 2 {
			t.Errorf("%+v, %v", a, err)
		}
		if err := w.client.Get(t.Context(), gone, &a); !errors.Is(err, datastore.ErrNoSuchEntity) {
			t.Errorf("%v, want no entity", err)
		}
	})
}

// TestOwnAndOthers runs functions that change their own entity, and put or delete another entity of
// the page before or after its turn. The last write must take effect, and the page must not fail.
func TestOwnAndOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := names(10)
		m := mapper.Update("own-and-others",
			func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				switch a.Value.Balance++; a.Key.Name {
				case keys[3].Name: // the first entity's function has already run
					a.Put(keys[1], &account{Owner: "put after it", Balance: 7})
					a.Put(keys[6], &account{Owner: "put before it", Balance: 7})
				case keys[4].Name:
					a.Delete(keys[2])
					a.Delete(keys[2])
				case keys[5].Name:
					a.Delete(keys[2])
					a.Put(keys[1], &account{Owner: "put once more", Balance: 8})
				}
				return nil
			})
		w := newWorld(t, setting{queue: few(1)}, m)
		w.putAccounts(keys)
		if s := over(w, m, &mapper.StartOptions{PageSize: 10}); s.State != mapper.StateSucceeded || s.Failures > 0 {
			t.Errorf("status %+v", s)
		}
		for i, key := range keys {
			a := account{Balance: -1}
			err := w.client.Get(t.Context(), key, &a)
			want := map[int]int64{1: 8, 6: 8}[i]
			switch {
			case i == 2 && !errors.Is(err, datastore.ErrNoSuchEntity):
				t.Errorf("%v is there: %+v, %v", key, a, err)
			case i != 2 && (err != nil || want > 0 && a.Balance != want):
				t.Errorf("%v has %d, want %d: %v", key, a.Balance, want, err)
			}
		}
	})
}

// TestTooMuchForACommit runs a function that writes more for one entity than fits into a commit.
func TestTooMuchForACommit(t *testing.T) {
	t.Parallel()
	type large struct {
		Text []byte `datastore:",noindex"`
	}
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("much", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Name == "user-0000007" {
				for i := range 20 {
					a.Put(datastore.IDKey("Large", int64(i+1), nil), &large{make([]byte, 1<<20-1000)})
				}
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(100))
		if s := over(w, m, nil); s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != 99 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestTooSlowForATransaction runs a function that takes longer for one entity than a transaction
// may stay open. The entity must become a failure, and the job must end.
func TestTooSlowForATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Count("seen", 1)
			if a.Key.Name == "user-0000007" {
				time.Sleep(5 * time.Minute)
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(100))
		if s := over(w, m, nil); s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != 99 ||
			s.Counters["seen"] != 99 {
			t.Errorf("status %+v", s)
		}
		time.Sleep(5 * time.Minute) // until functions that were abandoned have returned
	})
}

// TestCauses runs a job whose entities fail for three causes. After the test has removed one cause,
// it retries only the failures with that cause. The other failures must stay.
func TestCauses(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mended atomic.Bool
		m := mapper.Update("fragile", func(_ context.Context, a *mapper.Entity[account], p credit) error {
			switch n := a.Value.Balance; {
			case n%100 == 7:
				return mapper.Permanent(fmt.Errorf("the ledger has no %s", a.Key.Name))
			case n%100 == 8 && !mended.Load():
				return mapper.Permanent(fmt.Errorf("invoice %d of %q is open", n, a.Value.Owner))
			case n%200 == 9 && !mended.Load(): // a retry of this entity would succeed
				return mapper.Permanent(errors.New("a plain error"))
			}
			a.Value.Balance += p.Amount
			return nil
		})
		w, ctx := newWorld(t, setting{queue: few(8)}, m), t.Context()
		const n = 2000
		w.putAccounts(names(n))
		job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{10_000},
			&mapper.StartOptions{ID: "one", PageSize: 100, FailureLimit: 60})
		if err != nil {
			t.Fatal(err)
		}
		wait := func(state mapper.State, failures int64) *mapper.Status {
			t.Helper()
			s, err := job.Wait(ctx)
			if err != nil || s.State != state || s.Failures != failures || s.Processed != n-failures {
				t.Fatalf("status %+v, %v", s, err)
			}
			return s
		}
		wantCauses := func(want ...string) {
			t.Helper()
			causes, err := job.FailureCauses(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range causes {
				got = append(got, fmt.Sprint(c.Count, " ", c.Text))
				if c.Estimated || c.Example.Key == nil || c.Example.Error == "" {
					t.Errorf("%+v", c)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("causes %q, want %q", got, want)
			}
		}
		wait(mapper.StateSucceededWithFailures, 50)
		wantCauses("20 invoice # of # is open", "20 the ledger has no #", "10 a plain error")
		for _, bad := range []string{"none"} {
			if err := job.Retry(ctx, &mapper.RetryOptions{Cause: bad}); !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("a retry of %q: %v", bad, err)
			}
		}
		mended.Store(true)
		if err := job.Retry(ctx, &mapper.RetryOptions{Cause: "invoice # of # is open"}); err != nil {
			t.Fatal(err)
		}
		wait(mapper.StateSucceededWithFailures, 30)
		wantCauses("20 the ledger has no #", "10 a plain error")
		// the entities fail again
		if err := job.Retry(ctx, &mapper.RetryOptions{Cause: "the ledger has no #"}); err != nil {
			t.Fatal(err)
		}
		wait(mapper.StateSucceededWithFailures, 30)
		const ended = "succeeded with failures succeeded with failures"
		wantHistory(t, job, "started running", ended, "its failures of one cause are retried running", ended,
			"its failures of one cause are retried running", ended)
		if err := job.Retry(ctx, nil); err != nil {
			t.Fatal(err)
		}
		wait(mapper.StateSucceededWithFailures, 20)
		if proof, err := job.Verify(ctx, nil); err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
		if right, err := w.client.Count(ctx, datastore.NewQuery("Account").FilterField("Balance", ">=",
			10_000)); err != nil || right != n-20 {
			t.Errorf("%d accounts are credited, %v", right, err)
		}
		if double, err := w.client.Count(ctx, datastore.NewQuery("Account").FilterField("Balance", ">=",
			20_000)); err != nil || double != 0 {
			t.Errorf("%d accounts are credited twice, %v", double, err)
		}
	})
}

// TestFailureShare checks that a job is paused when more than the allowed share of its entities
// have failed.
func TestFailureShare(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(2)}, failing77)
		w.putAccounts(names(10000))
		s := over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 100, FailureShare: 0.005, FailureLimit: -1})
		if s.State != mapper.StatePaused || s.Failures < 11 || s.Failures > 20 ||
			!strings.Contains(s.Error, "entities have failed") {
			t.Errorf("status %+v", s)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(2)}, failing77)
		w.putAccounts(names(10000))
		if s := over(w, failing77,
			&mapper.StartOptions{PageSize: 100, FailureShare: 0.05}); s.State != mapper.StateSucceededWithFailures ||
			s.Failures != 100 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestPausedTwice pauses a job that its failure limit has already paused. Wait must return, and
// Resume must not allow more failures.
func TestPausedTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Calls take a while, so that the job processes little between Resume and Pause.
		f := faults.New(1,
			faults.Rule{Kind: faults.SlowCall, Latency: faults.Uniform{Min: time.Millisecond,
				Max: time.Millisecond}})
		w := newWorld(t, setting{queue: few(1), emulator: emulator.Options{Faults: f}}, failing77)
		w.putAccounts(names(10000))
		s := over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 100, FailureLimit: 20})
		job := w.engine.Job("j")
		if s.State != mapper.StatePaused || s.Failures != 21 {
			t.Fatalf("status %+v", s)
		}
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.status(job); s.State != mapper.StatePaused || s.Error != "" {
			t.Errorf("status %+v", s)
		}
		time.Sleep(time.Minute)
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StatePaused || s.Failures != 42 {
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// TestBadNeighbours lets up to 5% of a page fail, in several ways in one page. These entities must
// become failures. The job must not fail, and the page's other entities must not be blamed, even if
// the page is halved to find the entities at fault.
func TestBadNeighbours(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		bad      int
		do       func(ctx context.Context, i int, a *mapper.Entity[growing]) error
		store    any
		options  mapper.StartOptions
		failures int64
	}{
		"permanent, and one that is too large": {bad: 13, failures: 13,
			do: func(_ context.Context, i int, a *mapper.Entity[growing]) error {
				if i == 12 {
					a.Value.Note = strings.Repeat("x", 1<<20)
					return nil
				}
				return mapper.Permanent(errors.New("no"))
			}},
		"hanging": {bad: 24, failures: 24, do: func(ctx context.Context, _ int, _ *mapper.Entity[growing]) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		"undecodable, more than 5%, and no limit": {bad: 30, failures: 30,
			options: mapper.StartOptions{FailureLimit: -1},
			store:   &struct{ Balance, Owner string }{"much", "somebody"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keys := names(5000)
				place := make(map[string]int)
				for i, k := range keys[2000 : 2000+c.bad] {
					place[k.Name] = i
				}
				m := mapper.Update("neighbours",
					func(ctx context.Context, a *mapper.Entity[growing], _ mapper.NoParams) error {
						a.Value.Balance += 10
						if i, bad := place[a.Key.Name]; bad && c.do != nil {
							return c.do(ctx, i, a)
						}
						return nil
					})
				w := newWorld(t, setting{queue: few(20)}, m)
				w.putAccounts(keys)
				for _, k := range keys[2000 : 2000+c.bad] {
					if c.store != nil {
						if _, err := w.client.Put(t.Context(), k, c.store); err != nil {
							t.Fatal(err)
						}
					}
				}
				s := over(w, m, &c.options)
				if s.State != mapper.StateSucceededWithFailures || s.Failures != c.failures ||
					s.Processed != 5000-c.failures || s.Ended.Sub(s.Created) > 2*time.Hour {
					t.Errorf("after %v: %+v", s.Ended.Sub(s.Created), s)
				}
				w.wantBalances(keys[:2000], 10)
			})
		})
	}
}

// TestBugs runs functions that fail on all entities: quickly, slowly, by hanging, or in small
// pages. The job must fail before many entities have got ranges of their own.
func TestBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	broken := errors.New("the bug")
	slow := func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
		time.Sleep(400 * time.Millisecond)
		return broken
	}
	hang := func(ctx context.Context, _ *mapper.Entity[account], _ mapper.NoParams) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, c := range map[string]struct {
		m       *mapper.Mapper[mapper.NoParams]
		options mapper.StartOptions
	}{
		"slow": {m: mapper.Update("slow", slow)},
		"small": {m: mapper.Update("small", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return broken
		}), options: mapper.StartOptions{PageSize: 10}},
		"hanging": {m: mapper.Update("hanging", hang)}, "hanging visit": {m: mapper.Visit("hanging", hang)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{queue: few(20)}, c.m)
				w.putAccounts(names(2000))
				c.options.ID = "j"
				s := over(w, c.m, &c.options)
				alone := 0
				for _, r := range records(t, w.client)["j"] {
					if r.Alone {
						alone++
					}
				}
				if s.State != mapper.StateFailed || !strings.Contains(s.Error, "the function failed on") ||
					s.Processed > 0 || alone > 400 || s.Ended.Sub(s.Created) > 2*time.Hour {
					t.Errorf("after %v, %d entities have a range of their own: %+v", s.Ended.Sub(s.Created), alone, s)
				}
				t.Logf("%v, %d entities have a range of their own", s.Ended.Sub(s.Created), alone)
			})
		})
	}
}

// A wrongError is an error type whose methods panic for a nil pointer.
type wrongError struct{ text string }

func (e *wrongError) Error() string { return e.text }

// TestNilErrors runs functions that return a nil pointer of type *wrongError as an error, by
// mistake. This error is not nil, and its method panics. The entities must become failures, and
// every job must end.
func TestNilErrors(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	wrong := func(key *datastore.Key) error {
		var err *wrongError
		if key != nil && key.Name != "user-0000003" {
			return nil
		}
		return err
	}
	update := mapper.Update("update", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		return wrong(e.Key)
	})
	wrapped := mapper.Update("wrapped", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		if err := wrong(e.Key); err != nil {
			return mapper.RetryAfter(mapper.Permanent(err), time.Second)
		}
		return nil
	})
	visit := mapper.Visit("visit", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		return wrong(e.Key)
	})
	type batch = []*mapper.Entity[account]
	returned := mapper.UpdateBatches("returned", 10, func(_ context.Context, b batch, _ mapper.NoParams) error {
		for _, e := range b {
			if err := wrong(e.Key); err != nil {
				return err
			}
		}
		return nil
	})
	fails := mapper.VisitBatches("fails", 10, func(_ context.Context, b batch, _ mapper.NoParams) error {
		for _, e := range b {
			e.Fail(wrong(e.Key))
		}
		return nil
	})
	type one = *mapper.Entity[account]
	pages := mapper.VisitPages("pages", func(_ context.Context, e one, _ mapper.NoParams) (int, error) {
		return 1, wrong(e.Key)
	}, func(context.Context, *mapper.Page[int], mapper.NoParams) error { return nil })
	overPage := mapper.VisitPages("over-page", func(context.Context, one, mapper.NoParams) (int, error) {
		return 1, nil
	}, func(context.Context, *mapper.Page[int], mapper.NoParams) error { return wrong(nil) })
	for _, m := range []*mapper.Mapper[mapper.NoParams]{update, wrapped, visit, returned, fails, pages, overPage} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(30))
			s := over(w, m, nil)
			const want = "panic: runtime error: invalid memory address or nil pointer dereference"
			if m == overPage {
				if s.State != mapper.StateFailed || !strings.Contains(s.Error, want) {
					t.Errorf("%s: status %+v", m.Name(), s)
				}
				return
			}
			if s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != 29 {
				t.Errorf("%s: status %+v", m.Name(), s)
			}
			failures, _, err := w.engine.Job(s.ID).FailuresPage(t.Context(), "")
			if err != nil || len(failures) != 1 || !strings.Contains(failures[0].Error, want) {
				t.Errorf("%s: failures %+v, %v", m.Name(), failures, err)
			}
		})
	}
}
