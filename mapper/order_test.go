package mapper_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestKeyOrder compares this package's order of keys of all forms with that of
// the databases.
func TestKeyOrder(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	seed := testflag.Seed(t)
	onEach(t, func(t *testing.T, client *datastore.Client) {
		// The classic emulator sorts the characters above the basic plane in its
		// own way: see the emulator's tests.
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

// TestFanOutOnGoogle runs the main job on Datastores with scatter keys on half of
// the entities, and with none at all: both have to fan out.
func TestFanOutOnGoogle(t *testing.T) {
	for _, p := range []emulator.Product{emulator.Classic, emulator.Firestore} {
		t.Run(string(p), func(t *testing.T) {
			w := newWorld(t, setting{client: googletest.Client(t, p)}, addCredit)
			keys := names(3000)
			w.putAccounts(keys)
			s := w.wait(w.start(10, nil))
			w.wantBalances(keys, 10)
			if s.MaxDepth < 1 || w.most.Load() < 2 || s.Tasks > 8 {
				t.Errorf("depth %d, %d tasks, %d at once", s.MaxDepth, s.Tasks, w.most.Load())
			}
		})
	}
}
