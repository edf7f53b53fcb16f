package emulator_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type counter struct {
	N     int
	Group string
}

func put(t *testing.T, client *datastore.Client, key *datastore.Key, n int) {
	t.Helper()
	if _, err := client.Put(t.Context(), key, &counter{N: n, Group: "g"}); err != nil {
		t.Fatal(err)
	}
}

func begin(t *testing.T, client *datastore.Client, opts ...datastore.TransactionOption) *datastore.Transaction {
	t.Helper()
	tx, err := client.NewTransaction(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// count returns the number of results of a query that runs in a transaction.
func count(t *testing.T, client *datastore.Client, tx *datastore.Transaction, q *datastore.Query) int {
	t.Helper()
	it := client.Run(t.Context(), q.Transaction(tx).KeysOnly())
	for n := 0; ; n++ {
		if _, err := it.Next(nil); errors.Is(err, iterator.Done) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

var (
	keyA = datastore.NameKey("C", "a", nil)
	keyB = datastore.NameKey("C", "b", nil)
	keyC = datastore.NameKey("C", "c", nil)
	ofG  = datastore.NewQuery("C").FilterField("Group", "=", "g")
)

// TestConflicts runs two transactions with their calls interleaved. It checks that a commit
// conflicts only if another transaction has changed an entity that this one has read.
func TestConflicts(t *testing.T) {
	read := func(key *datastore.Key) func(*testing.T, *datastore.Client, *datastore.Transaction) {
		return func(t *testing.T, _ *datastore.Client, tx *datastore.Transaction) {
			var c counter
			if err := tx.Get(key, &c); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
				t.Fatal(err)
			}
		}
	}
	ask := func(q *datastore.Query) func(*testing.T, *datastore.Client, *datastore.Transaction) {
		return func(t *testing.T, client *datastore.Client, tx *datastore.Transaction) { count(t, client, tx, q) }
	}
	write := func(key *datastore.Key, group string) func(*testing.T, *datastore.Client) {
		return func(t *testing.T, client *datastore.Client) {
			if _, err := client.Put(t.Context(), key, &counter{N: 9, Group: group}); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(key *datastore.Key) func(*testing.T, *datastore.Client) {
		return func(t *testing.T, client *datastore.Client) {
			if err := client.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := datastore.NewQuery("C")
	for _, c := range []struct {
		name      string
		reads     func(*testing.T, *datastore.Client, *datastore.Transaction)
		meanwhile func(*testing.T, *datastore.Client)
		conflict  bool
	}{
		{"the read entity is written", read(keyA), write(keyA, "g"), true},
		{"another entity is written", read(keyA), write(keyB, "g"), false},
		{"the read entity is deleted", read(keyA), remove(keyA), true},
		{"a missing entity appears", read(keyC), write(keyC, "g"), true},
		{"a missing entity is deleted", read(keyC), remove(keyC), false},
		{"a result of a query is written", ask(ofG), write(keyA, "g"), true},
		{"a result leaves a query", ask(ofG), write(keyA, "other"), true},
		{"a result of a query is deleted", ask(ofG), remove(keyA), true},
		{"a result joins a query", ask(ofG), write(keyC, "g"), true},
		{"beside a query", ask(ofG), write(keyC, "other"), false},
		{"another kind is written", ask(all), write(datastore.NameKey("D", "d", nil), "g"), false},
		{"within what a limited query saw", ask(all.Limit(1)), write(keyA, "g"), true},
		{"behind what a limited query saw", ask(all.Limit(1)), write(keyC, "g"), false},
		{"within a key range", ask(all.FilterField("__key__", ">", keyA)), write(keyC, "g"), true},
		{"outside a key range", ask(all.FilterField("__key__", ">", keyA)), write(keyA, "g"), false},
		{"nothing was read", func(*testing.T, *datastore.Client, *datastore.Transaction) {}, write(keyA, "g"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := embedded(t, nil)
			put(t, client, keyA, 1)
			put(t, client, keyB, 1)
			tx := begin(t, client)
			c.reads(t, client, tx)
			c.meanwhile(t, client)
			if _, err := tx.Put(datastore.NameKey("Out", "x", nil), &counter{}); err != nil {
				t.Fatal(err)
			}
			_, err := tx.Commit()
			if got := errors.Is(err, datastore.ErrConcurrentTransaction); got != c.conflict || err != nil && !got {
				t.Errorf("commit: %v, conflict wanted: %v", err, c.conflict)
			}
			if err != nil {
				if err := tx.Rollback(); err != nil {
					t.Errorf("rollback after a conflict: %v", err)
				}
				var out counter
				if err := client.Get(t.Context(), datastore.NameKey("Out", "x", nil), &out); !errors.Is(err,
					datastore.ErrNoSuchEntity) {
					t.Errorf("the aborted transaction's write: %v, want none", err)
				}
			}
		})
	}
}

// TestSnapshot checks that a transaction sees the state of one moment. It does not see later
// updates, inserts and deletions.
func TestSnapshot(t *testing.T) {
	client := embedded(t, nil)
	put(t, client, keyA, 1)
	put(t, client, keyB, 1)
	tx := begin(t, client, datastore.ReadOnly)
	for round := range 3 {
		put(t, client, keyA, 2+round)
		put(t, client, keyC, 2)
		if err := client.Delete(t.Context(), keyB); err != nil {
			t.Fatal(err)
		}
		var a, b counter
		if err := tx.Get(keyA, &a); err != nil || a.N != 1 {
			t.Errorf("a is %v, %v", a, err)
		}
		if err := tx.Get(keyB, &b); err != nil || b.N != 1 {
			t.Errorf("b is %v, %v", b, err)
		}
		if err := tx.Get(keyC, &b); !errors.Is(err, datastore.ErrNoSuchEntity) {
			t.Errorf("c: %v, want none", err)
		}
		if n := count(t, client, tx, ofG); n != 2 {
			t.Errorf("the query has %d results, want 2", n)
		}
	}
	if _, err := tx.Commit(); err != nil {
		t.Error(err)
	}
	if got, want := keysOf(t, client, ofG), []string{describe(keyA), describe(keyC)}; !cmp.Equal(got, want) {
		t.Errorf("after the transaction: %v, want %v", got, want)
	}
}

// TestNoLostUpdates lets many clients add to one entity, and checks that no addition is lost.
func TestNoLostUpdates(t *testing.T) {
	onEach(t, func(t *testing.T, client *datastore.Client) {
		workers, each := 8, 10
		if !on(t, "embedded") {
			workers, each = 3, 3
		}
		addTogether(t, client, workers, each)
	})
}

// addTogether lets several clients add to one entity, and checks that no addition is lost.
func addTogether(t *testing.T, client *datastore.Client, workers, each int) {
	t.Helper()
	put(t, client, keyA, 0)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				_, err := client.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
					var c counter
					if err := tx.Get(keyA, &c); err != nil {
						return err
					}
					c.N++
					_, err := tx.Put(keyA, &c)
					return err
				}, datastore.MaxAttempts(1000))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var c counter
	if err := client.Get(t.Context(), keyA, &c); err != nil || c.N != workers*each {
		t.Errorf("%d, %v; want %d", c.N, err, workers*each)
	}
}

// TestFinishedTransactions checks that the commits of three transactions fail: of one that
// conflicts, of a read-only one that writes, and of one that was rolled back.
func TestFinishedTransactions(t *testing.T) {
	client := embedded(t, nil)
	put(t, client, keyA, 1)
	begunByRead := begin(t, client, datastore.BeginLater)
	var c counter
	if err := begunByRead.Get(keyA, &c); err != nil {
		t.Fatal(err)
	}
	put(t, client, keyA, 2)
	if _, err := begunByRead.Put(keyB, &c); err != nil {
		t.Fatal(err)
	}
	if _, err := begunByRead.Commit(); !errors.Is(err, datastore.ErrConcurrentTransaction) {
		t.Errorf("a transaction that its first read has started: %v, want a conflict", err)
	}

	readOnly := begin(t, client, datastore.ReadOnly)
	if _, err := readOnly.Put(keyB, &c); err != nil {
		t.Fatal(err)
	}
	if _, err := readOnly.Commit(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a write in a read-only transaction: %v, want InvalidArgument", err)
	}

	tx := begin(t, client)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(); err == nil {
		t.Error("a commit after a rollback succeeded")
	}
}

// TestMutations checks whether each operation requires that the entity exists, alone and after
// other operations of the same transaction.
func TestMutations(t *testing.T) {
	insert := func() *datastore.Mutation { return datastore.NewInsert(keyA, &counter{N: 1}) }
	update := func() *datastore.Mutation { return datastore.NewUpdate(keyA, &counter{N: 2}) }
	up := func() *datastore.Mutation { return datastore.NewUpsert(keyA, &counter{N: 3}) }
	del := func() *datastore.Mutation { return datastore.NewDelete(keyA) }
	for _, c := range []struct {
		name   string
		exists bool
		muts   []*datastore.Mutation
		code   codes.Code
		want   int // N of the entity afterwards; 0: the entity does not exist
	}{
		{"insert", false, []*datastore.Mutation{insert()}, codes.OK, 1},
		{"insert what exists", true, []*datastore.Mutation{insert()}, codes.AlreadyExists, 9},
		{"update", true, []*datastore.Mutation{update()}, codes.OK, 2},
		{"update what is missing", false, []*datastore.Mutation{update()}, codes.NotFound, 0},
		{"upsert", false, []*datastore.Mutation{up()}, codes.OK, 3},
		{"upsert what exists", true, []*datastore.Mutation{up()}, codes.OK, 3},
		{"delete", true, []*datastore.Mutation{del()}, codes.OK, 0},
		{"delete what is missing", false, []*datastore.Mutation{del()}, codes.OK, 0},
		{"upsert twice", false, []*datastore.Mutation{up(), up()}, codes.OK, 3},
		{"delete, upsert", true, []*datastore.Mutation{del(), up()}, codes.OK, 3},
		{"insert, delete", false, []*datastore.Mutation{insert(), del()}, codes.OK, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, client *datastore.Client) {
				if c.exists {
					put(t, client, keyA, 9)
				}
				_, err := client.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
					_, err := tx.Mutate(c.muts...)
					return err
				})
				if status.Code(err) != c.code {
					t.Errorf("error %v, want %v", err, c.code)
				}
				var got counter
				if err := client.Get(t.Context(), keyA, &got); err != nil &&
					!errors.Is(err, datastore.ErrNoSuchEntity) {
					t.Fatal(err)
				}
				if got.N != c.want {
					t.Errorf("N is %d afterwards, want %d", got.N, c.want)
				}
			})
		})
	}
}

// TestPropertyMask checks that a write with a mask changes only the properties that the mask names.
func TestPropertyMask(t *testing.T) {
	onEach(t, func(t *testing.T, client *datastore.Client) {
		if on(t, "google") {
			t.Skip("left out: Google's classic emulator drops what a property mask does not name")
		}
		address := func(street, town string) datastore.Property {
			return datastore.Property{Name: "Address", Value: &datastore.Entity{Properties: []datastore.Property{
				{Name: "Street", Value: street}, {Name: "Town", Value: town},
			}}}
		}
		before := datastore.PropertyList{
			{Name: "A", Value: int64(1)}, {Name: "B", Value: int64(1)}, {Name: "C", Value: int64(1)},
			address("High", "Bath"),
		}
		after := &datastore.PropertyList{
			{Name: "A", Value: int64(2)}, {Name: "B", Value: int64(2)}, {Name: "D", Value: int64(2)},
			address("Low", "York"),
		}
		if _, err := client.Put(t.Context(), keyA, &before); err != nil {
			t.Fatal(err)
		}
		_, err := client.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
			_, err := tx.Mutate(datastore.NewUpdate(keyA, after).WithPropertyMask("A", "C", "D", "Address.Town"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			A, B, D int
			Address struct{ Street, Town string }
		}
		if err := client.Get(t.Context(), keyA, &got); err != nil {
			t.Fatal(err) // Get also fails if the entity still has the property C, which got lacks
		}
		want := got
		want.A, want.B, want.D, want.Address.Street, want.Address.Town = 2, 1, 2, "High", "York"
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// TestAllocatedIDs checks that ids are new, positive and spread.
func TestAllocatedIDs(t *testing.T) {
	onEach(t, func(t *testing.T, client *datastore.Client) {
		var keys []*datastore.Key
		for range 200 {
			keys = append(keys, datastore.IncompleteKey("C", nil))
		}
		allocated, err := client.AllocateIDs(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		put, err := client.PutMulti(t.Context(), keys, make([]counter, len(keys)))
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]bool)
		for _, k := range append(allocated, put...) {
			if k.ID <= 0 || seen[fmt.Sprint(k.ID)] {
				t.Errorf("id %d is not positive or not new", k.ID)
			}
			seen[fmt.Sprint(k.ID)] = true
		}
	})
}
