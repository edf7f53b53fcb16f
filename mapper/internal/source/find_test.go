package source

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// valuesInOrder are values of all types, in Datastore's order.
var valuesInOrder = []any{
	nil,
	int64(math.MinInt64), int64(-1), time.UnixMicro(0), int64(1), time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC),
	int64(math.MaxInt64),
	false, true,
	"", "\x00", "a", []byte("a\x00"), "a\x00\x00", "b", "ä", "\U0010FFFF", []byte{0xff},
	math.Inf(-1), -math.MaxFloat64, -1.5, -math.SmallestNonzeroFloat64, math.Copysign(0, -1), 0.0,
	math.SmallestNonzeroFloat64, 2.0, math.MaxFloat64, math.Inf(1), math.NaN(),
	datastore.GeoPoint{Lat: -1, Lng: 7}, datastore.GeoPoint{Lat: 1, Lng: 2},
	datastore.IDKey("K", 7, nil), datastore.NameKey("K", "7", nil),
}

// newEmulator starts an emulator, and returns a source for its Datastore.
func newEmulator(t *testing.T, options *emulator.Options) (*emulator.Emulator, Source) {
	t.Helper()
	em := emulator.ForTest(t, options)
	client, err := em.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return em, New(client, nil)
}

// TestScansTile stores entities with values of all types, many of them equal. It cuts their order
// at random positions, and checks that the scans of all parts together find each entity once, in
// order. The values include both ends of int64, NaN, infinities, and strings of any bytes.
func TestScansTile(t *testing.T) {
	rng := testflag.Rand(t)
	synctest.Test(t, func(t *testing.T) {
		_, src := newEmulator(t, nil)
		var want []*keyspace.Position
		for i, v := range valuesInOrder {
			for j := range 1 + rng.IntN(4) {
				k := datastore.IDKey("K", int64(1+j), datastore.IDKey("G", 1+rng.Int64N(3), nil))
				k = &datastore.Key{Kind: "K", ID: int64(100*i + j + 1), Parent: k.Parent}
				list := datastore.PropertyList{{Name: "v", Value: v}, {Name: "even", Value: i%2 == 0}}
				if _, err := src.Client.Put(t.Context(), k, &list); err != nil {
					t.Fatalf("%v: %v", v, err)
				}
				want = append(want, &keyspace.Position{Valued: true, Value: v, Key: k})
			}
		}
		slices.SortFunc(want, keyspace.Compare)
		for _, filters := range [][]query.Filter{nil, {{Property: "even", Op: "=", Value: true}}} {
			q := query.Query{Kind: "K", ShardBy: "v", Filters: filters}
			all := slices.DeleteFunc(slices.Clone(want), func(p *keyspace.Position) bool {
				i := slices.IndexFunc(valuesInOrder, func(v any) bool { return value.Compare(v, p.Value) == 0 })
				return filters != nil && i%2 != 0
			})
			for range 40 {
				var cuts []*keyspace.Position
				for range rng.IntN(12) {
					p := &keyspace.Position{Kind: "K", Valued: true, Value: valuesInOrder[rng.IntN(len(valuesInOrder))]}
					switch rng.IntN(3) {
					case 0:
						p = &keyspace.Position{Valued: true, Value: p.Value, Key: want[rng.IntN(len(want))].Key}
					case 1:
						if m, ok := keyspace.Between(p.Value, valuesInOrder[rng.IntN(len(valuesInOrder))]); ok {
							p.Value = m
						}
					}
					cuts = append(cuts, p)
				}
				cuts = append(keyspace.Sort(cuts), nil)
				var found []*keyspace.Position
				var start *keyspace.Position
				for _, end := range cuts {
					piece := 0
					for _, s := range q.Scans(start, end) {
						err := src.EachIn(t.Context(), s, func(p *keyspace.Position) bool {
							if start != nil && keyspace.Compare(p, start) < 0 || end != nil &&
								keyspace.Compare(p, end) >= 0 {
								t.Errorf("%v is not in %v to %v", p, start, end)
							}
							found = append(found, p)
							piece++
							return true
						})
						if err != nil {
							t.Fatalf("%v to %v: %v", start, end, err)
						}
					}
					n, known := src.Count(t.Context(), q.Scans(start, end), 1000)
					if !known || n != int64(piece) {
						t.Errorf("%v to %v: counted %d, %v; there are %d", start, end, n, known, piece)
					}
					if piece > 0 {
						at, err := src.Find(t.Context(), q.Scans(start, end), int64(piece-1))
						if err != nil || !at.Equal(found[len(found)-1]) {
							t.Errorf("the last of %v to %v is %v, %v", start, end, at, err)
						}
					}
					if at, err := src.Find(t.Context(), q.Scans(start, end), int64(piece)); err != nil || at != nil {
						t.Errorf("after the last of %v to %v is %v, %v", start, end, at, err)
					}
					start = end
				}
				if !slices.EqualFunc(found, all, (*keyspace.Position).Equal) {
					t.Fatalf("cut at %v: found %d of %d", cuts, len(found), len(all))
				}
			}
		}
	})
}

// TestMiddle halves random intervals of positions. Each middle must be inside its interval.
func TestMiddle(t *testing.T) {
	rng := testflag.Rand(t)
	draw := func() *keyspace.Position {
		p := &keyspace.Position{Valued: true, Value: valuesInOrder[rng.IntN(len(valuesInOrder))], Namespace: "n",
			Kind: "K"}
		if rng.IntN(2) == 0 {
			p = &keyspace.Position{Valued: true, Value: p.Value,
				Key: &datastore.Key{Kind: "K", ID: 1 + rng.Int64N(1<<rng.IntN(40)), Namespace: "n"}}
		}
		return p
	}
	cut := 0
	for range 20_000 {
		a, b := draw(), draw()
		switch c := keyspace.Compare(a, b); {
		case c == 0:
			continue
		case c > 0:
			a, b = b, a
		}
		if rng.IntN(10) == 0 {
			b = nil
		}
		m := keyspace.Middle(a, b)
		if m == nil {
			continue
		}
		cut++
		if keyspace.Compare(a, m) >= 0 || b != nil && keyspace.Compare(m, b) >= 0 || m.Space() != a.Space() {
			t.Fatalf("%v is not between %v and %v", m, a, b)
		}
	}
	if cut < 5000 {
		t.Errorf("only %d were cut", cut)
	}
	for _, test := range []struct{ a, b any }{{int64(1), int64(1000)}, {time.UnixMicro(0), time.UnixMicro(1e12)},
		{"a", "b"}, {-1.0, 1.0}} {
		m := keyspace.Middle(&keyspace.Position{Kind: "K", Valued: true, Value: test.a},
			&keyspace.Position{Kind: "K", Valued: true, Value: test.b})
		if m == nil {
			t.Errorf("nothing is between %v and %v", test.a, test.b)
		}
	}
}
