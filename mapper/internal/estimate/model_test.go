package estimate

import (
	"errors"
	"slices"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// TestBalance moves the boundaries of pieces to random places, and then calls split.Balance. After
// that, pieces whose entities were counted must be about equal, and all pieces together must have
// the same entities as before.
func TestBalance(t *testing.T) {
	rng := testflag.Rand(t)
	even := 0
	for i := range 200 {
		kind := VirtualKind{N: 100 + rng.Int64N(20_000>>(i%8)), Key: SequentialKey}
		m := &Model{kind: kind}
		const page = 10
		workers := 2 + rng.Int64N(300)
		samples := kind.sample(rng, 20)
		var pieces []split.Piece
		var counts []int64
		at, most := (*keyspace.Position)(nil), 1+rng.Int64N(2*kind.N)
		for i, end := range append(slices.Clone(samples), nil) {
			if i%4 == 0 || end == nil {
				pieces = append(pieces, split.Piece{Start: at, End: end})
				counts = append(counts, min(most, kind.end(end)-kind.begin(at)))
				at = end
			} else {
				continue
			}
		}
		before := split.WithCounts(pieces, counts, most, workers)
		after := split.Balance(slices.Clone(before), page, m.find(kind.N))
		if after[0].Start != nil || after[len(after)-1].End != nil || !split.Ordered(after) {
			t.Fatal("the pieces do not go from end to end")
		}
		for i, p := range after {
			if i > 0 && keyspace.Compare(p.Start, after[i-1].End) != 0 {
				t.Fatalf("piece %d does not start where the previous one ends", i)
			}
			n := kind.end(p.End) - kind.begin(p.Start)
			if p.Exact && p.Estimate != n || p.Workers < 1 || p.FairShare != before[0].FairShare {
				t.Fatalf("piece %d has %d entities: %+v", i, n, p)
			}
			for _, s := range p.Samples {
				if p.Start != nil && keyspace.Compare(s, p.Start) <= 0 || !p.Holds(s) {
					t.Fatalf("sample %v is not inside piece %d", s, i)
				}
			}
		}
		exact := func(p split.Piece) bool { return p.Exact }
		// All entities were counted, and no boundary has to move far.
		if n := kind.N; n <= split.BalancePages*page && most > n {
			want := split.ShareLengths(n, before[0].FairShare, n, page)
			if len(after) != len(want) {
				t.Fatalf("%d pieces, want %d", len(after), len(want))
			}
			for i, p := range after {
				if p.Estimate != want[i] {
					t.Fatalf("piece %d has %d entities, want %d", i, p.Estimate, want[i])
				}
			}
			even++
		}
		if slices.ContainsFunc(before, exact) != slices.ContainsFunc(after, exact) {
			t.Fatal("counted pieces are mixed with pieces that were not counted")
		}
	}
	if even < 5 {
		t.Errorf("only %d kinds were cut evenly", even)
	}
}

// TestBalanceKeeps checks that pieces keep their boundaries if a new boundary can't be found, or if
// entities were deleted meanwhile.
func TestBalanceKeeps(t *testing.T) {
	kind := VirtualKind{N: 1000, Key: func(rank int64) *datastore.Key { return datastore.IDKey("K", 10*(rank+1), nil) }}
	middle := keyspace.At(kind.Key(700))
	pieces := split.WithCounts([]split.Piece{{End: middle}, {Start: middle}}, []int64{700, 300}, 1000, 4)
	m := &Model{kind: kind}
	// With pages of 5, a boundary in the middle would be too many pages away.
	for page, want := range map[int64]int{20: 4, 5: 3} {
		if got := split.Balance(slices.Clone(pieces), page, m.find(1000)); len(got) != want {
			t.Fatalf("%d pieces, want %d", len(got), want)
		}
	}
	for name, find := range map[string]split.Finder{
		"an error":    func(*keyspace.Position, int64) (*keyspace.Position, error) { return nil, errors.New("no") },
		"no position": func(*keyspace.Position, int64) (*keyspace.Position, error) { return nil, nil },
		"before": func(*keyspace.Position, int64) (*keyspace.Position, error) {
			return keyspace.At(kind.Key(0)), nil
		},
	} {
		if got := split.Balance(slices.Clone(pieces), 10, find); len(got) != 2 || got[0].End != middle ||
			got[0].Estimate != 700 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
