package emulator_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
)

type empty struct{}

// putAll puts an empty entity at each key. The keys must be different.
func putAll(t *testing.T, client *datastore.Client, keys []*datastore.Key) {
	t.Helper()
	for start := 0; start < len(keys); start += 400 {
		batch := keys[start:min(start+400, len(keys))]
		if _, err := client.PutMulti(t.Context(), batch, make([]empty, len(batch))); err != nil {
			t.Fatal(err)
		}
	}
}

func keysOf(t *testing.T, client *datastore.Client, q *datastore.Query) []string {
	t.Helper()
	keys, err := client.GetAll(t.Context(), q.KeysOnly(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = describe(k)
	}
	return names
}

// describe returns a key as text. Unlike String, it distinguishes an ID from a name of the same
// digits.
func describe(k *datastore.Key) string {
	s := ""
	if k.Parent != nil {
		s = describe(k.Parent)
	}
	if k.Name != "" {
		return s + fmt.Sprintf("/%s,%q", k.Kind, k.Name)
	}
	return s + fmt.Sprintf("/%s,%d", k.Kind, k.ID)
}

// TestKeyOrder checks that the embedded Datastore and Google's emulators sort keys of all forms
// alike: ascending, descending and in ranges.
func TestKeyOrder(t *testing.T) {
	seed := testflag.Seed(t)
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		t.Run(string(p), func(t *testing.T) {
			leaveFirestore(t, p)
			theirs, ours := googletest.Client(t, p), embedded(t, nil)
			rng := rand.New(rand.NewPCG(seed, 0))
			// more than the 300 entities of a batch of results
			keys := keytest.Random(rng, testflag.Size(t, 0, 700, 1500),
				keytest.Options{Kind: "K", BasicPlane: p == google.Classic})
			putAll(t, theirs, keys)
			putAll(t, ours, keys)
			compare := func(q *datastore.Query) {
				t.Helper()
				if diff := cmp.Diff(keysOf(t, theirs, q), keysOf(t, ours, q)); diff != "" {
					t.Errorf("Google's (-) and ours (+) differ:\n%s", diff)
				}
			}
			all := datastore.NewQuery("K")
			compare(all)
			compare(all.Order("__key__"))
			compare(all.Order("-__key__"))
			ranges := testflag.Size(t, 0, 8, 20)
			for range ranges {
				a, b := keys[rng.IntN(len(keys))], keys[rng.IntN(len(keys))]
				compare(all.FilterField("__key__", ">=", a).FilterField("__key__", "<", b).Limit(50))
				compare(all.FilterField("__key__", ">", a).Order("-__key__").Limit(50))
			}
			for range ranges {
				if a := keys[rng.IntN(len(keys))]; a.Parent != nil {
					compare(all.Ancestor(a.Parent))
				}
			}
		})
	}
}

// TestClassicSortsByUTF16 shows the only difference in key order: Google's classic emulator
// compares names as Java strings, by their UTF-16 code units.
func TestClassicSortsByUTF16(t *testing.T) {
	keys := []*datastore.Key{
		datastore.NameKey("K", "\uffff", nil),
		datastore.NameKey("K", "\U00010000", nil),
	}
	for _, c := range []struct {
		client *datastore.Client
		want   []string
	}{
		{embedded(t, nil), []string{describe(keys[0]), describe(keys[1])}},
		{googletest.Client(t, google.Classic), []string{describe(keys[1]), describe(keys[0])}},
	} {
		putAll(t, c.client, keys)
		if diff := cmp.Diff(c.want, keysOf(t, c.client, datastore.NewQuery("K"))); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	}
}

// TestValueOrder compares the order of values of all types.
func TestValueOrder(t *testing.T) {
	values := []any{
		nil, int64(-5), int64(0), int64(1 << 62), int64(math.MinInt64), time.Unix(-1, 0), time.Unix(0, 1000),
		time.Unix(1e9, 0),
		false, true, "", "a", "a\x00", "a\x00b", "ab", "é", []byte{}, []byte{0}, []byte{0, 0}, []byte{0, 1},
		[]byte("aa"), []byte{255},
		math.Inf(-1), -1.5, math.Copysign(0, -1), 0.0, 1.5, 1e300, math.Inf(1), math.NaN(),
		datastore.GeoPoint{Lat: -1, Lng: 3}, datastore.GeoPoint{Lat: 1, Lng: -3}, datastore.GeoPoint{Lat: 1, Lng: 3},
		datastore.IDKey("A", 5, nil), datastore.NameKey("A", "5", nil),
		datastore.NameKey("A", "x", datastore.IDKey("A", 5, nil)),
		[]any{int64(7), "zz"}, []any{2.5},
	}
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		t.Run(string(p), func(t *testing.T) {
			leaveFirestore(t, p)
			theirs, ours := googletest.Client(t, p), embedded(t, nil)
			for i, v := range values {
				if _, isArray := v.([]any); isArray && p == google.Firestore {
					continue // a query ordered by the array returns its entity once for each element
				}
				key := datastore.IDKey("V", int64(i+1), nil)
				for _, client := range []*datastore.Client{theirs, ours} {
					if _, err := client.Put(t.Context(), key,
						&datastore.PropertyList{{Name: "p", Value: v}}); err != nil {
						t.Fatalf("%v: %v", v, err)
					}
				}
			}
			all := datastore.NewQuery("V")
			// In descending order, the emulators order equal values differently. So this query also
			// orders by key.
			queries := []*datastore.Query{all.Order("p"), all.Order("-p").Order("__key__")}
			for _, v := range values {
				if _, isArray := v.([]any); isArray {
					continue
				}
				queries = append(queries, all.FilterField("p", "=", v))
				if f, ok := v.(float64); ok && f != f {
					continue // Google's two emulators disagree on the place of NaN
				}
				queries = append(queries, all.FilterField("p", ">=", v).Order("p"),
					all.FilterField("p", "<", v).Order("-p").Order("__key__"))
			}
			for i, q := range queries {
				if diff := cmp.Diff(keysOf(t, theirs, q), keysOf(t, ours, q)); diff != "" {
					t.Errorf("query %d: Google's (-) and ours (+) differ:\n%s", i, diff)
				}
			}
		})
	}
}
