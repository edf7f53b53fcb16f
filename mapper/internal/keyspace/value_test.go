package keyspace

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/internal/value"
)

// inOrder are values of all types, in Datastore's order.
var inOrder = []any{
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

func TestCompareValues(t *testing.T) {
	for i, a := range inOrder {
		for j, b := range inOrder {
			if got := value.Compare(a, b); cmp.Compare(got, 0) != cmp.Compare(i, j) {
				t.Errorf("%T %v is compared with %T %v as %d", a, a, b, b, got)
			}
		}
	}
	if value.Compare(time.UnixMicro(7), int64(7)) != 0 || value.Compare("x", []byte("x")) != 0 {
		t.Error("a timestamp is not its microseconds, or a blob is not its string")
	}
}

// TestBetween halves the interval between each pair of values, and then both halves, again and
// again.
func TestBetween(t *testing.T) {
	for i, a := range inOrder {
		for _, b := range inOrder[i+1:] {
			x, y := a, b
			for step := range 200 {
				m, ok := Between(x, y)
				if !ok {
					break
				}
				if value.Compare(x, m) >= 0 || value.Compare(m, y) >= 0 {
					t.Fatalf("%T %v is not between %T %v and %T %v", m, m, x, x, y, y)
				}
				if s, text := m.(string); text && !utf8.ValidString(s) {
					t.Fatalf("%q is no text", s)
				}
				if x = m; step%3 > 0 {
					x, y = a, m
				}
			}
			values := Spread(a, b, 50)
			if !slices.IsSortedFunc(values, value.Compare) || len(slices.CompactFunc(values, func(a,
				b any) bool {
				return value.Compare(a, b) == 0
			})) != len(values) {
				t.Errorf("between %v and %v: %v", a, b, values)
			}
			for _, v := range values {
				if value.Compare(a, v) >= 0 || value.Compare(v, b) >= 0 {
					t.Errorf("%v is not between %v and %v", v, a, b)
				}
			}
		}
	}
	for _, test := range []struct {
		a, b any
		want int
	}{
		{int64(math.MinInt64), int64(math.MaxInt64), 1000},
		{int64(0), int64(4), 3},
		{int64(7), int64(8), 0},
		{time.UnixMicro(0), time.UnixMicro(1_000_000), 1000},
		{math.Inf(-1), math.Inf(1), 1000},
		{0.0, 1.0, 1000},
		{"a", "b", 900},
		{[]byte{1}, []byte{2}, 900},
		{nil, "z", 400}, // there is no value between null and the least integer
	} {
		if got := Spread(test.a, test.b, 1000); len(got) < test.want || test.want < 10 && len(got) > test.want {
			t.Errorf("%d values between %v and %v, want %d", len(got), test.a, test.b, test.want)
		}
	}
}

// TestNext checks that there is no value between a value and its Next.
func TestNext(t *testing.T) {
	for _, v := range inOrder {
		above, ok := Next(v)
		if value.Rank(v) >= value.PointRank {
			continue
		}
		if value.Rank(v) == value.FloatRank && math.IsNaN(v.(float64)) {
			if ok {
				t.Errorf("%v follows NaN", above)
			}
			continue
		}
		if !ok || value.Compare(v, above) >= 0 {
			t.Errorf("the next of %T %v is %v, %v", v, v, above, ok)
		}
		if m, ok := Between(v, above); ok {
			t.Errorf("%v is between %v and the next value, %v", m, v, above)
		}
	}
}

// FuzzBetween finds values between strings and blobs of any bytes, between integers, and between
// floats.
func FuzzBetween(f *testing.F) {
	f.Add([]byte("a"), []byte("b"), int64(0), int64(1), 0.0, 1.0)
	f.Add([]byte{0xff, 0xff}, []byte{0xff, 0xff, 0}, int64(math.MinInt64), int64(math.MaxInt64), math.Inf(-1),
		math.NaN())
	f.Add([]byte{}, []byte{0}, int64(-1), int64(0), math.Copysign(0, -1), 0.0)
	f.Fuzz(func(t *testing.T, x, y []byte, i, j int64, v, w float64) {
		for _, pair := range [][2]any{{x, y}, {string(x), string(y)}, {x, string(y)}, {i, j}, {v, w},
			{time.UnixMicro(i / 1e6), time.UnixMicro(j / 1e6)}, {i, w}, {string(x), v}} {
			a, b := pair[0], pair[1]
			if value.Compare(a, b) > 0 {
				a, b = b, a
			}
			values := Spread(a, b, 20)
			low := a
			for _, m := range values {
				if value.Compare(low, m) >= 0 || value.Compare(m, b) >= 0 {
					t.Fatalf("%T %v is not between %T %v and %T %v", m, m, low, low, b, b)
				}
				low = m
			}
			if above, ok := Next(a); ok && value.Compare(a, b) < 0 && value.Compare(above, b) > 0 {
				t.Fatalf("%v is between %v and the next value, %v", b, a, above)
			}
		}
		if c := value.Compare(string(x), y); c != bytes.Compare(x, y) {
			t.Fatalf("%q is compared with %q as %d", x, y, c)
		}
	})
}

// TestCuts cuts the interval between two numbers into equal parts.
func TestCuts(t *testing.T) {
	at := func(n int64) *Position { return &Position{Kind: "K", Valued: true, Value: n} }
	for _, c := range []struct {
		from, to int64
		n        int
		want     []int64
	}{
		{0, 1 << 32, 10, []int64{429496729, 858993459, 1288490188, 1717986918, 2147483648, 2576980377, 3006477107,
			3435973836, 3865470566}},
		{0, 1 << 32, 1, nil},
		{0, 1000, 2, []int64{500}},
		{100, 104, 4, []int64{101, 102, 103}},
		{100, 103, 10, []int64{101, 102}}, // there are only two values between them
	} {
		var got []int64
		for _, p := range Cuts(at(c.from), at(c.to), c.n) {
			if got = append(got, p.Value.(int64)); p.Key != nil {
				t.Errorf("from %d to %d into %d: cut at %v, inside a value", c.from, c.to, c.n, p)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("from %d to %d into %d: %v, want %v", c.from, c.to, c.n, got, c.want)
		}
	}
	// The part that contains 1,900,000,000 if [0, 2^32) is cut into ten: floor(10 * 1.9e9 / 2^32).
	shard := 0
	for _, cut := range Cuts(at(0), at(1<<32), 10) {
		if Compare(cut, at(1_900_000_000)) <= 0 {
			shard++
		}
	}
	if shard != 4 {
		t.Errorf("1,900,000,000 is in shard %d, want 4", shard)
	}
	if inside := Cuts(at(100), at(101), 4); len(inside) == 0 || inside[0].Key == nil {
		t.Errorf("one value is cut at %v, want some of its keys", inside)
	}
}

// TestCutsOfKeys cuts between random keys. The cuts must be in order, inside the interval, and be
// keys that Datastore accepts. If there is a middle, there must be a cut.
func TestCutsOfKeys(t *testing.T) {
	rng := testflag.Rand(t)
	cut := 0
	for range 300 {
		keys := sortKeys(keytest.Random(rng, 3, keytest.Options{Kind: "K", Namespace: "n"}))
		a, b := keys[0], keys[1]
		end := At(b)
		if rng.IntN(4) == 0 {
			b, end = nil, nil
		}
		n := 2 + rng.IntN(20)
		cuts := Cuts(At(a), end, n)
		if len(cuts) >= n || len(cuts) == 0 && Middle(At(a), end) != nil {
			t.Fatalf("%d cuts between %v and %v, want up to %d", len(cuts), a, b, n-1)
		}
		cut += len(cuts)
		last := a
		for _, at := range cuts {
			checkBetween(t, last, at.Key, b)
			last = at.Key
		}
	}
	if cut < 500 {
		t.Errorf("only %d cuts", cut)
	}
}
