package mapper_test

import (
	"context"
	"errors"
	"sync"
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
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestRepeatedFailure delivers the tasks of an entity that always fails
// several times: it is one failure, and not the end of the job.
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

// TestRepeatedVisit has the repetition of a visit be an error for good: the range
// is done, so it has nothing to say.
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

// TestLargestPages runs pages as large as they can be.
func TestLargestPages(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(20000)
		w.putAccounts(keys)
		if s := w.wait(w.start(10, &mapper.StartOptions{PageSize: 1000})); s.Tasks > 26 {
			t.Errorf("%d tasks for 20 full pages", s.Tasks)
		}
		w.wantBalances(keys, 10)
	})
}

// TestRefusedReads has the database refuse lookups in transactions for a while:
// no entity is to blame.
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

// TestEveryCommitRefused has the database refuse whatever the function writes:
// that fails the job, and does not record a failure for each entity.
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

// TestSameKeyTwice puts and deletes one entity several times: the last time
// counts.
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

// TestOwnAndOthers has entities of a page change themselves, and be put or deleted by others of the
// page, before or after that: the last write counts, and the page does not fail.
func TestOwnAndOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := names(10)
		m := mapper.Update("own-and-others",
			func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				switch a.Value.Balance++; a.Key.Name {
				case keys[3].Name: // the first of these has had its turn
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

// TestTooMuchForACommit has the function write more for one entity than a commit
// can hold.
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

// TestTooSlowForATransaction has the function take longer on one entity than a
// transaction can be open: it is a failure, and the job ends.
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
		time.Sleep(5 * time.Minute) // for the functions that were left behind
	})
}
