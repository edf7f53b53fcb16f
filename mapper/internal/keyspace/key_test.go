package keyspace

import (
	"slices"
	"testing"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/testflag"
)

func TestCompareKeys(t *testing.T) {
	// The keys are in the order that Datastore's documentation and Google's emulators have.
	parent := datastore.IDKey("A", 5, nil)
	ordered := []*datastore.Key{
		datastore.IDKey("A", -9, nil),
		datastore.IDKey("A", 5, nil),
		datastore.IDKey("A", 3, parent),
		datastore.NameKey("B", "x", parent),
		datastore.IDKey("A", 6, nil),
		datastore.NameKey("A", "\x00", nil),
		datastore.NameKey("A", "10", nil),
		datastore.NameKey("A", "9", nil),
		datastore.NameKey("A", "a", nil),
		datastore.IDKey("A", 1, datastore.NameKey("A", "a", nil)),
		datastore.NameKey("A", "a\x00", nil),
		datastore.NameKey("A", "b", nil),
		datastore.NameKey("A", "\uffff", nil),
		datastore.NameKey("A", "\U00010000", nil),
		datastore.IDKey("AA", 1, nil),
		datastore.IDKey("a", 1, nil),
	}
	for i, a := range ordered {
		for j, b := range ordered {
			got := CompareKeys(a, b)
			if want := sign(i - j); sign(got) != want {
				t.Errorf("compare %v with %v: %d, want %d", a, b, got, want)
			}
		}
	}
	other := *ordered[0]
	other.Namespace = "n"
	if CompareKeys(ordered[len(ordered)-1], &other) >= 0 {
		t.Error("a key in a greater namespace is not greater")
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func TestSortKeys(t *testing.T) {
	rng := testflag.Rand(t)
	keys := keytest.Random(rng, 300, keytest.Options{Kind: "K"})
	doubled := append(slices.Clone(keys), keys[:100]...)
	rng.Shuffle(len(doubled), func(i, j int) { doubled[i], doubled[j] = doubled[j], doubled[i] })
	sorted := sortKeys(doubled)
	if len(sorted) != len(keys) {
		t.Errorf("%d keys, want %d", len(sorted), len(keys))
	}
	if !slices.IsSortedFunc(sorted, CompareKeys) {
		t.Error("not sorted")
	}
}

// TestBisect halves intervals between keys of all forms, again and again, until they are empty.
// Each result must be inside its interval, and be a key that Datastore accepts.
func TestBisect(t *testing.T) {
	rng := testflag.Rand(t)
	for range 200 {
		keys := sortKeys(keytest.Random(rng, 2, keytest.Options{Kind: "K", Namespace: "n"}))
		a, b := keys[0], keys[1]
		for range 200 {
			m := bisect(a, b, "K", "n")
			if m == nil {
				break
			}
			checkBetween(t, a, m, b)
			if rng.IntN(2) == 0 {
				a = m
			} else {
				b = m
			}
		}
	}
}

func checkBetween(t *testing.T, a, m, b *datastore.Key) {
	t.Helper()
	if a != nil && CompareKeys(a, m) >= 0 || b != nil && CompareKeys(m, b) >= 0 {
		t.Fatalf("%v is not between %v and %v", m, a, b)
	}
	for e := m; e != nil; e = e.Parent {
		if e.Kind == "" || e.Incomplete() || e.ID != 0 && e.Name != "" || names.Reserved(e.Name) || e.Namespace != "n" {
			t.Fatalf("%#v is not a key that Datastore takes", e)
		}
	}
}

// TestBisectEnds halves intervals that have no start or no end.
func TestBisectEnds(t *testing.T) {
	rng := testflag.Rand(t)
	for _, k := range keytest.Random(rng, 200, keytest.Options{Kind: "K", Namespace: "n"}) {
		lower, upper := k, k
		for range 100 {
			if lower != nil {
				if m := bisect(lower, nil, "K", "n"); m != nil {
					checkBetween(t, lower, m, nil)
					lower = m
				}
			}
			if m := bisect(nil, upper, "K", "n"); m != nil {
				checkBetween(t, nil, m, upper)
				upper = m
			}
		}
	}
	checkBetween(t, nil, bisect(nil, nil, "K", "n"), nil)
}

// TestBisectCuts checks that both halves contain a large part of the entities, if these are spread
// evenly.
func TestBisectCuts(t *testing.T) {
	for _, c := range []struct{ a, b, want *datastore.Key }{
		{datastore.IDKey("K", 1000, nil), datastore.IDKey("K", 3000, nil), datastore.IDKey("K", 2000, nil)},
		{datastore.IDKey("K", -10, nil), datastore.IDKey("K", 10, nil), datastore.IDKey("K", 1, nil)},
		{datastore.IDKey("K", -9223372036854775808, nil), datastore.IDKey("K", 9223372036854775807, nil),
			datastore.IDKey("K", -1, nil)},
		{datastore.IDKey("K", 1000, nil), nil, datastore.IDKey("K", 2000, nil)},
		{datastore.IDKey("K", 1000, nil), datastore.NameKey("K", "a", nil), datastore.NameKey("K", "\x00", nil)},
		{datastore.NameKey("K", "a", nil), datastore.NameKey("K", "c", nil), datastore.NameKey("K", "b", nil)},
		{datastore.NameKey("K", "user-a", nil), datastore.NameKey("K", "user-c", nil),
			datastore.NameKey("K", "user-b", nil)},
		{datastore.NameKey("K", "a", nil), datastore.NameKey("K", "b", nil), datastore.NameKey("K", "a?", nil)},
		{datastore.NameKey("K", "a", nil), datastore.NameKey("K", "a\x00", nil), nil},
		{datastore.IDKey("K", 1, nil), datastore.IDKey("K", 2, nil), nil},
		{datastore.IDKey("K", -1, nil), datastore.IDKey("K", 1, nil), nil},
		{datastore.IDKey("P", 1, nil), datastore.IDKey("K", 8, datastore.IDKey("P", 9, nil)),
			datastore.IDKey("P", 5, nil)},
		{datastore.IDKey("K", 8, datastore.IDKey("P", 8, nil)), datastore.IDKey("K", 8, datastore.IDKey("P", 9, nil)),
			datastore.IDKey("P", 9, nil)},
	} {
		if diff := cmp.Diff(c.want, bisect(c.a, c.b, "K", "")); diff != "" {
			t.Errorf("between %v and %v (-want +got):\n%s", c.a, c.b, diff)
		}
	}
}

func FuzzBisectNames(f *testing.F) {
	f.Add("a", "b")
	f.Add("a", "a\x00")
	f.Add("", "\x00")
	f.Add("é", "\U0010FFFF")
	f.Add("\ud7ff", "\ue000")
	f.Fuzz(func(t *testing.T, x, y string) {
		a, b := datastore.NameKey("K", x, nil), datastore.NameKey("K", y, nil)
		a.Namespace, b.Namespace = "n", "n"
		if !validName(x) || !validName(y) || CompareKeys(a, b) >= 0 {
			t.Skip()
		}
		if m := bisect(a, b, "K", "n"); m != nil {
			checkBetween(t, a, m, b)
			if !validName(m.Name) {
				t.Errorf("%q is not a name", m.Name)
			}
		}
	})
}

func validName(s string) bool {
	return s != "" && len(s) <= 1500 && utf8.ValidString(s) && !names.Reserved(s)
}

// sortKeys sorts keys and removes duplicates.
func sortKeys(keys []*datastore.Key) []*datastore.Key {
	slices.SortFunc(keys, CompareKeys)
	return slices.CompactFunc(keys, (*datastore.Key).Equal)
}
