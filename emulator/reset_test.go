package emulator_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
)

// TestReset checks that Reset removes databases, open transactions, and allocated IDs.
func TestReset(t *testing.T) {
	e := emulator.ForTest(t, nil)
	client, err := e.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	for range 2 {
		put(t, client, keyA, 1)
		tx := begin(t, client)
		getIn(t, tx, keyA)
		e.Reset()
		if got := keysOf(t, client, datastore.NewQuery("C")); len(got) > 0 {
			t.Errorf("after the reset: %v", got)
		}
		if _, err := tx.Commit(); err == nil {
			t.Error("a transaction of before the reset committed")
		}
	}
}

// TestResetEndsWhatWaits resets an emulator while a commit waits for a lock. The commit fails and
// has no effect. Transactions after the reset have new IDs.
func TestResetEndsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := emulator.ForTest(t, &emulator.Options{PessimisticConcurrency: true})
		client, err := e.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		put(t, client, keyA, 1)
		before := begin(t, client)
		getIn(t, before, keyA)
		go func() {
			time.Sleep(time.Second)
			e.Reset()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := client.Put(ctx, keyA, &counter{N: 2}); err == nil {
			if got := keysOf(t, client, datastore.NewQuery("C")); len(got) != 1 {
				t.Error("a write was acknowledged and lost")
			}
		}
		after := begin(t, client)
		if err := before.Rollback(); err == nil {
			t.Error("a transaction of before the reset was rolled back")
		}
		if _, err := after.Commit(); err != nil {
			t.Errorf("the transaction after it: %v", err)
		}
	})
}

// TestDatabasesAreApart puts entities with the same key into two databases, two projects and two
// namespaces, and checks that all exist.
func TestDatabasesAreApart(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	clients := make(map[string]*datastore.Client)
	for _, db := range [][2]string{{"p", ""}, {"p", "other"}, {"q", ""}} {
		client, err := datastore.NewClientWithDatabase(t.Context(), db[0], db[1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		clients[db[0]+"/"+db[1]] = client
	}
	n := 0
	for _, client := range clients {
		for _, namespace := range []string{"", "ns"} {
			n++
			key := datastore.NameKey("C", "a", nil)
			key.Namespace = namespace
			put(t, client, key, n)
			var c counter
			if err := client.Get(t.Context(), key, &c); err != nil || c.N != n {
				t.Errorf("%+v, %v; want %d", c, err, n)
			}
		}
	}
	for name, client := range clients {
		for _, namespace := range []string{"", "ns"} {
			if got := keysOf(t, client, datastore.NewQuery("C").Namespace(namespace)); len(got) != 1 {
				t.Errorf("database %s, namespace %q: %v", name, namespace, got)
			}
		}
	}
}
