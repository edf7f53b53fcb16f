package emulator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
)

var byScatter = datastore.NewQuery("K").Order("__scatter__")

// TestScatterAsClassic compares queries ordered by __scatter__ with Google's classic emulator:
// which keys they return, and in which order. Both have the classic emulator's proportion of
// entities with __scatter__.
func TestScatterAsClassic(t *testing.T) {
	seed := testflag.Seed(t)
	theirs, ours := googletest.Client(t, google.Classic), embedded(t, &emulator.Options{ScatterOneIn: 2})
	rng := rand.New(rand.NewPCG(seed, 0))
	keys := keytest.Random(rng, 2000, keytest.Options{Kind: "K", BasicPlane: true})
	for i := range 500 {
		keys = append(keys, datastore.NameKey("K", fmt.Sprintf("user-%06d", i), nil))
	}
	putAll(t, theirs, keys)
	putAll(t, ours, keys)
	for _, q := range []*datastore.Query{byScatter, byScatter.Limit(100)} {
		if diff := cmp.Diff(keysOf(t, theirs, q), keysOf(t, ours, q)); diff != "" {
			t.Errorf("Google's (-) and ours (+) differ:\n%s", diff)
		}
	}
	// With characters above U+FFFF, the same keys have the property. But keys with equal values of
	// it may be in another order, because the classic emulator sorts names differently.
	keys = keytest.Random(rng, 1000, keytest.Options{Kind: "K"})
	putAll(t, theirs, keys)
	putAll(t, ours, keys)
	if diff := cmp.Diff(sorted(keysOf(t, theirs, byScatter)), sorted(keysOf(t, ours, byScatter))); diff != "" {
		t.Errorf("Google's (-) and ours (+) differ:\n%s", diff)
	}
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

// TestScatterProportion checks that by default one in 128 entities has __scatter__, as in
// production, whatever the form of the keys.
func TestScatterProportion(t *testing.T) {
	client := embedded(t, nil)
	var keys []*datastore.Key
	for i := range 20000 {
		keys = append(keys, datastore.NameKey("K", fmt.Sprintf("user-%06d", i), nil))
	}
	putAll(t, client, keys)
	n := len(keysOf(t, client, byScatter))
	if want := 20000 / 128; n < want*7/10 || n > want*13/10 {
		t.Errorf("%d of 20000 entities have __scatter__, want about %d", n, want)
	}
}

// TestScatterSpreads checks that the first keys in the order of __scatter__ are spread evenly over
// all keys.
func TestScatterSpreads(t *testing.T) {
	client := embedded(t, nil)
	var keys []*datastore.Key
	for i := range 20000 {
		keys = append(keys, datastore.IDKey("K", int64(i+1), nil))
	}
	putAll(t, client, keys)
	sample, err := client.GetAll(t.Context(), byScatter.Limit(80).KeysOnly(), nil)
	if err != nil || len(sample) != 80 {
		t.Fatal(len(sample), err)
	}
	quarters := make([]int, 4)
	for _, k := range sample {
		quarters[(k.ID-1)/5000]++
	}
	for i, n := range quarters {
		if n < 5 {
			t.Errorf("quarter %d of the keys has %d of 80 samples: %v", i, n, quarters)
		}
	}
}

// TestScatterRefusesRanges checks that a query ordered by __scatter__ can't also filter by keys. So
// clients can sample only whole kinds.
func TestScatterRefusesRanges(t *testing.T) {
	onEach(t, func(t *testing.T, client *datastore.Client) {
		if on(t, "firestore") {
			t.Skip("left out: Google's Firestore emulator has no scatter keys at all")
		}
		_, err := client.GetAll(t.Context(), byScatter.KeysOnly().FilterField("__key__", ">",
			datastore.IDKey("K", 5, nil)), nil)
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("error %v, want InvalidArgument", err)
		}
	})
}

// TestScatterFollowsEntities checks that queries by __scatter__ do not return a deleted entity, and
// return it after it is put again.
func TestScatterFollowsEntities(t *testing.T) {
	client := embedded(t, &emulator.Options{ScatterOneIn: 1})
	key := datastore.NameKey("K", "a", nil)
	for range 2 {
		putAll(t, client, []*datastore.Key{key})
		if diff := cmp.Diff([]string{describe(key)}, keysOf(t, client, byScatter)); diff != "" {
			t.Fatal(diff)
		}
		if err := client.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if got := keysOf(t, client, byScatter); len(got) > 0 {
			t.Fatalf("deleted, and still in the scatter order: %v", got)
		}
	}
}

// TestScatterIsNotReturned checks that the entities in results lack the property __scatter__.
func TestScatterIsNotReturned(t *testing.T) {
	client := embedded(t, &emulator.Options{ScatterOneIn: 1})
	key := datastore.NameKey("K", "a", nil)
	if _, err := client.Put(t.Context(), key, &datastore.PropertyList{{Name: "n", Value: int64(1)}}); err != nil {
		t.Fatal(err)
	}
	want := []datastore.PropertyList{{{Name: "n", Value: int64(1)}}}
	var got []datastore.PropertyList
	if _, err := client.GetAll(t.Context(), byScatter, &got); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	var one datastore.PropertyList
	if err := client.Get(t.Context(), key, &one); err != nil || cmp.Diff(want[0], one) != "" {
		t.Errorf("%v, %v, want %v", one, err, want[0])
	}
}
