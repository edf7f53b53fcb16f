package emulator_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// pessimistic runs a test in virtual time, with a client of a database with pessimistic
// concurrency.
func pessimistic(t *testing.T, test func(t *testing.T, client *datastore.Client)) {
	synctest.Test(t, func(t *testing.T) { test(t, embedded(t, &emulator.Options{PessimisticConcurrency: true})) })
}

// since returns the time since the start, in whole seconds.
func since(begun time.Time) time.Duration { return time.Since(begun).Round(time.Second) }

// TestWritersWait writes entities while a transaction is open. It checks that only writes of
// entities which the transaction has read wait for its end.
func TestWritersWait(t *testing.T) {
	for name, c := range map[string]struct {
		read  func(*testing.T, *datastore.Client, *datastore.Transaction)
		write *datastore.Key
		waits time.Duration
	}{
		"the entity that was read":          {getA, keyA, 10 * time.Second},
		"an entity that was missing":        {getC, keyC, 10 * time.Second},
		"another entity":                    {getA, keyB, 0},
		"a result of a query":               {askG, keyA, 10 * time.Second},
		"an entity that would join a query": {askG, keyC, 10 * time.Second},
		"an entity of another kind":         {askG, datastore.NameKey("D", "d", nil), 0},
	} {
		pessimistic(t, func(t *testing.T, client *datastore.Client) {
			put(t, client, keyA, 1)
			put(t, client, keyB, 1)
			tx := begin(t, client)
			c.read(t, client, tx)
			begun := time.Now()
			go func() {
				time.Sleep(10 * time.Second)
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
			}()
			put(t, client, c.write, 2)
			if waited := since(begun); waited != c.waits {
				t.Errorf("%s: the write waited for %v, want %v", name, waited, c.waits)
			}
			synctest.Wait()
			time.Sleep(time.Minute)
		})
	}
}

func getA(t *testing.T, _ *datastore.Client, tx *datastore.Transaction) { getIn(t, tx, keyA) }
func getC(t *testing.T, _ *datastore.Client, tx *datastore.Transaction) { getIn(t, tx, keyC) }

func askG(t *testing.T, client *datastore.Client, tx *datastore.Transaction) {
	count(t, client, tx, ofG)
}

func getIn(t *testing.T, tx *datastore.Transaction, key *datastore.Key) {
	t.Helper()
	var c counter
	if err := tx.Get(key, &c); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
		t.Fatal(err)
	}
}

// TestDeadlock lets two transactions read and write the same entity, so that each would wait for
// the other. It checks that one is aborted, and the other commits.
func TestDeadlock(t *testing.T) {
	pessimistic(t, func(t *testing.T, client *datastore.Client) {
		put(t, client, keyA, 1)
		var wg sync.WaitGroup
		var errs [2]error
		transactions := []*datastore.Transaction{begin(t, client), begin(t, client)}
		for _, tx := range transactions {
			getIn(t, tx, keyA)
		}
		for i, tx := range transactions {
			wg.Go(func() {
				if _, err := tx.Put(keyA, &counter{N: 10 + i}); err != nil {
					t.Error(err)
				}
				if _, errs[i] = tx.Commit(); errs[i] != nil {
					_ = tx.Rollback()
				}
			})
		}
		wg.Wait()
		first, second := errors.Is(errs[0], datastore.ErrConcurrentTransaction),
			errors.Is(errs[1], datastore.ErrConcurrentTransaction)
		if first == second {
			t.Errorf("commits: %v and %v, want one of them aborted", errs[0], errs[1])
		}
	})
}

// TestLockWaitEnds leaves a transaction open whose lock is in the way of a commit. It checks that
// the commit is aborted after a while, and that the transaction expires later.
func TestLockWaitEnds(t *testing.T) {
	pessimistic(t, func(t *testing.T, client *datastore.Client) {
		put(t, client, keyA, 1)
		getIn(t, begin(t, client), keyA)
		begun := time.Now()
		_, err := client.Put(t.Context(), keyA, &counter{N: 2})
		if waited := since(begun); status.Code(err) != codes.Aborted || waited != 30*time.Second {
			t.Errorf("after %v: %v, want Aborted after 30s", waited, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := client.Put(ctx, keyA, &counter{N: 2}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("with a deadline: %v, want DeadlineExceeded", err)
		}
		time.Sleep(time.Minute)
		put(t, client, keyA, 3)
	})
}

// TestReadersSeeTheLatest checks that, with pessimistic concurrency, transactions read the current
// entities, and not a snapshot. It also checks that no commit waits for read-only transactions.
func TestReadersSeeTheLatest(t *testing.T) {
	pessimistic(t, func(t *testing.T, client *datastore.Client) {
		put(t, client, keyA, 1)
		tx, reader := begin(t, client), begin(t, client, datastore.ReadOnly)
		getIn(t, reader, keyA)
		put(t, client, keyA, 2)
		var c counter
		if err := tx.Get(keyA, &c); err != nil || c.N != 2 {
			t.Errorf("%+v, %v", c, err)
		}
		if err := reader.Get(keyA, &c); err != nil || c.N != 1 {
			t.Errorf("the read-only transaction: %+v, %v; want its snapshot", c, err)
		}
	})
}

// TestNoLostUpdatesWithLocks lets many clients add to one entity, with pessimistic concurrency.
func TestNoLostUpdatesWithLocks(t *testing.T) {
	pessimistic(t, func(t *testing.T, client *datastore.Client) { addTogether(t, client, 8, 10) })
}

// TestSnapshotRetention checks which read times are too old, and that a read of the past does not
// see later changes.
func TestSnapshotRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := embedded(t, nil)
		put(t, client, keyA, 1)
		time.Sleep(time.Second) // the client truncates read times to seconds
		then := time.Now()
		time.Sleep(30 * time.Minute)
		put(t, client, keyA, 2)
		tx := begin(t, client, datastore.ReadOnly, datastore.WithReadTime(then))
		var c counter
		if err := tx.Get(keyA, &c); err != nil || c.N != 1 {
			t.Errorf("half an hour ago: %+v, %v", c, err)
		}
		for _, c := range []struct {
			at   time.Time
			code codes.Code
		}{{then, codes.OK}, {time.Now(), codes.OK}, {then.Add(-2 * time.Hour), codes.FailedPrecondition},
			{time.Now().Add(time.Hour), codes.InvalidArgument}} {
			if _, err := client.NewTransaction(t.Context(), datastore.ReadOnly,
				datastore.WithReadTime(c.at)); status.Code(err) != c.code {
				t.Errorf("at %v: %v, want %v", c.at, err, c.code)
			}
		}
	})
}

// TestPointInTime checks which read times are allowed with point-in-time recovery: any time of the
// last hour, and whole minutes of the last seven days.
func TestPointInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := emulator.ForTest(t, &emulator.Options{PointInTimeRecovery: true})
		client, err := e.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		key := datastore.NameKey("K", "a", nil)
		time.Sleep(30 * time.Second)
		putAll(t, client, []*datastore.Key{key})
		put := time.Now()
		read := func(at time.Time) error {
			tx, err := client.NewTransaction(t.Context(), datastore.ReadOnly, datastore.WithReadTime(at))
			if err == nil {
				err = tx.Get(key, new(datastore.PropertyList))
			}
			return err
		}
		time.Sleep(59 * time.Minute)
		if err := read(put.Add(time.Millisecond)); err != nil {
			t.Errorf("within an hour: %v", err)
		}
		time.Sleep(2 * time.Hour)
		if err := read(put.Add(time.Millisecond)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("no whole minute: %v", err)
		}
		if err := read(put.Truncate(time.Minute)); !errors.Is(err, datastore.ErrNoSuchEntity) {
			t.Errorf("the minute before: %v", err)
		}
		if err := read(put.Truncate(time.Minute).Add(time.Minute)); err != nil {
			t.Errorf("the minute after: %v", err)
		}
		time.Sleep(8 * 24 * time.Hour)
		if err := read(put.Truncate(time.Minute).Add(time.Minute)); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("more than seven days ago: %v", err)
		}
	})
}
