package mapper

import (
	"errors"
	"slices"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestShares cuts counted entities into portions: of pages of 100, for 4 workers.
func TestShares(t *testing.T) {
	for _, test := range []struct {
		n    int64
		want []int64
	}{
		{1, []int64{1}},
		{99, []int64{99}},
		{250, []int64{100, 100, 50}}, // there are workers for all pages
		{400, []int64{100, 100, 100, 100}},
		{430, []int64{130, 100, 100, 100}}, // one has a page that is not full
		{470, []int64{124, 123, 123, 100}},
		{800, []int64{200, 200, 200, 200}},
		{1150, []int64{288, 288, 287, 287}},
	} {
		if got := shares(test.n, max(1, test.n/4), test.n, 100); !slices.Equal(got, test.want) {
			t.Errorf("%d entities: %v, want %v", test.n, got, test.want)
		}
	}
	many := shares(1_000_000, 1000, 1_000_000, 500)
	if len(many) != maxFanOut || slices.Min(many) != 10_000 {
		t.Errorf("a thousand workers share %d pieces, the shortest of %d", len(many), slices.Min(many))
	}
	rng := testflag.Rand(t)
	for range 10_000 {
		n, workers, page := 1+rng.Int64N(2_000_000), 1+rng.Int64N(maxWorkers), 1+rng.Int64N(maxPageSize)
		portion := max(1, n/workers)
		lengths := shares(n, portion, n, page)
		sum := int64(0)
		for _, l := range lengths {
			sum += l
		}
		// They differ by a page, as what is left over a full page can't be shared by all.
		if shortest := slices.Min(lengths[:max(1, len(lengths)-1)]); sum != n || len(lengths) > maxFanOut || slices.Min(lengths) < 1 || slices.Max(lengths) > shortest+page {
			t.Fatalf("%d entities, a portion of %d, %d workers, pages of %d: %v", n, portion, workers, page, lengths)
		}
	}
}

// TestInPortions moves the boundaries of pieces at random: what they hold stays the same, and
// those that were counted become even.
func TestInPortions(t *testing.T) {
	rng := testflag.Rand(t)
	even := 0
	for i := range 200 {
		kind := virtualKind{n: 100 + rng.Int64N(20_000>>(i%8)), key: sequentialKey}
		m := &model{kind: kind}
		const page = 10
		workers := 2 + rng.Int64N(300)
		samples := kind.sample(rng, 20)
		var pieces []stretch
		var counts []int64
		at, most := (*keyspace.Position)(nil), 1+rng.Int64N(2*kind.n)
		for i, end := range append(slices.Clone(samples), nil) {
			if i%4 == 0 || end == nil {
				pieces = append(pieces, stretch{start: at, end: end})
				counts = append(counts, min(most, kind.end(end)-kind.begin(at)))
				at = end
			} else {
				continue
			}
		}
		before := weighed(pieces, counts, most, workers, page)
		after := inPortions(slices.Clone(before), page, m.find(kind.n))
		if after[0].start != nil || after[len(after)-1].end != nil || !ordered(after) {
			t.Fatal("the pieces do not go from end to end")
		}
		for i, p := range after {
			if i > 0 && keyspace.Compare(p.start, after[i-1].end) != 0 {
				t.Fatalf("piece %d does not begin where the one before ends", i)
			}
			n := kind.end(p.end) - kind.begin(p.start)
			if p.exact && p.estimate != n || p.workers < 1 || p.portion != before[0].portion {
				t.Fatalf("piece %d has %d entities: %+v", i, n, p)
			}
			for _, s := range p.samples {
				if p.start != nil && keyspace.Compare(s, p.start) <= 0 || !p.holds(s) {
					t.Fatalf("sample %v is not inside piece %d", s, i)
				}
			}
		}
		exact := func(p stretch) bool { return p.exact }
		if n := kind.n; n <= levelPages*page && most > n { // all was counted, and no boundary is far away
			want := shares(n, before[0].portion, n, page)
			if len(after) != len(want) {
				t.Fatalf("%d pieces, want %d", len(after), len(want))
			}
			for i, p := range after {
				if p.estimate != want[i] {
					t.Fatalf("piece %d has %d entities, want %d", i, p.estimate, want[i])
				}
			}
			even++
		}
		if slices.ContainsFunc(before, exact) != slices.ContainsFunc(after, exact) {
			t.Fatal("what was counted, and what was not, is mixed")
		}
	}
	if even < 5 {
		t.Errorf("only %d kinds were cut evenly", even)
	}
}

// TestInPortionsKeeps has pieces stay as they are whose boundaries can't be found, or are
// elsewhere by now.
func TestInPortionsKeeps(t *testing.T) {
	kind := virtualKind{n: 1000, key: func(rank int64) *datastore.Key { return datastore.IDKey("K", 10*(rank+1), nil) }}
	middle := keyspace.At(kind.key(700))
	pieces := weighed([]stretch{{end: middle}, {start: middle}}, []int64{700, 300}, 1000, 4, 10)
	m := &model{kind: kind}
	for page, want := range map[int64]int{20: 4, 5: 3} { // pages of 5 are too many to a boundary in the middle
		if got := inPortions(slices.Clone(pieces), page, m.find(1000)); len(got) != want {
			t.Fatalf("%d pieces, want %d", len(got), want)
		}
	}
	for name, find := range map[string]finder{
		"an error": func(*keyspace.Position, int64) (*keyspace.Position, error) { return nil, errors.New("no") },
		"the end":  func(*keyspace.Position, int64) (*keyspace.Position, error) { return nil, nil },
		"before":   func(*keyspace.Position, int64) (*keyspace.Position, error) { return keyspace.At(kind.key(0)), nil },
	} {
		if got := inPortions(slices.Clone(pieces), 10, find); len(got) != 2 || got[0].end != middle || got[0].estimate != 700 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
