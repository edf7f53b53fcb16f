package split

import (
	"slices"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestEven checks that a range's last page is not small: the entities of a small remainder are
// added to the previous page.
func TestEven(t *testing.T) {
	for _, test := range []struct{ estimate, size, most, want int64 }{
		{0, 100, 500, 100},   // the size is unknown
		{99, 100, 500, 100},  // all fit into a page
		{130, 100, 500, 130}, // with a small remainder
		{130, 100, 120, 120}, // only a part of the remainder fits
		{250, 100, 500, 125},
		{1001, 100, 500, 101},
	} {
		if got := (Piece{Estimate: test.estimate}).Even(test.size, test.most); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

func TestCutAtSamples(t *testing.T) {
	keys := keyspace.AtAll(sequence(100))
	for _, samples := range []int{1, 2, 7, 31, 99} {
		for n := 2; n <= samples+1; n++ {
			s := Piece{Start: keys[0], Samples: keys[1 : samples+1], Estimate: 1000}
			pieces := cutAtSamples(s, n)
			if len(pieces) != n || pieces[0].Start != s.Start || pieces[n-1].End != nil {
				t.Fatalf("%d samples, %d pieces: %v", samples, n, pieces)
			}
			inside, smallest, largest := 0, samples, 0
			for i, p := range pieces {
				if i > 0 && p.Start != pieces[i-1].End {
					t.Fatalf("%d samples, %d pieces: piece %d does not start where the last one ends", samples, n, i)
				}
				for _, k := range p.Samples {
					if keyspace.Compare(k, p.Start) <= 0 || p.End != nil && keyspace.Compare(k, p.End) >= 0 {
						t.Fatalf("sample %v is not inside %v to %v", k, p.Start, p.End)
					}
				}
				inside += len(p.Samples)
				smallest, largest = min(smallest, len(p.Samples)), max(largest, len(p.Samples))
			}
			if inside != samples-(n-1) || largest-smallest > 1 {
				t.Errorf("%d samples, %d pieces: %d inside, between %d and %d each", samples, n, inside, smallest,
					largest)
			}
		}
	}
}

// TestWithCounts counts pieces that were estimated to have equal numbers of entities.
func TestWithCounts(t *testing.T) {
	keys := keyspace.AtAll(sequence(60))
	pieces := func() []Piece {
		return cutAtSamples(Piece{Samples: keys[1:60], Estimate: 600, Workers: 6}, 6)
	}
	type piece struct {
		from, to *keyspace.Position
		samples  int
		estimate int64
		exact    bool
		workers  int64
	}
	all := pieces()
	cut := func(i int) *keyspace.Position { return all[i].End }
	for _, test := range []struct {
		name   string
		counts []int64
		want   []piece
	}{
		{"even", []int64{100, 100, 100, 100, 100, 100}, []piece{
			{nil, cut(0), 9, 100, true, 1}, {cut(0), cut(1), 9, 100, true, 1}, {cut(1), cut(2), 9, 100, true, 1},
			{cut(2), cut(3), 9, 100, true, 1}, {cut(3), cut(4), 9, 100, true, 1}, {cut(4), nil, 9, 100, true, 1},
		}},
		{"all in the last one", []int64{0, 0, 0, 0, 0, 600}, []piece{
			{nil, nil, 59, 600, true, 6},
		}},
		{"short ones together", []int64{30, 20, 250, 40, 60, 200}, []piece{
			{nil, cut(1), 19, 50, true, 1}, {cut(1), cut(2), 9, 250, true, 3}, {cut(2), cut(4), 19, 100, true, 1},
			{cut(4), nil, 9, 200, true, 2},
		}},
		{"more than was counted", []int64{1000, 0, 0, 0, 0, 0}, []piece{
			{nil, cut(0), 9, 1000, false, 6}, {cut(0), nil, 49, 0, false, 1},
		}},
		{"none", []int64{0, 0, 0, 0, 0, 0}, []piece{{nil, nil, 59, 0, false, 1}}},
	} {
		var got []piece
		counted := WithCounts(pieces(), test.counts, 1000, 6)
		for _, p := range joined(counted, max(counted[0].FairShare, RootPages)) {
			got = append(got, piece{p.Start, p.End, len(p.Samples), p.Estimate, p.Exact, p.Workers})
			if !slices.IsSortedFunc(p.Samples, keyspace.Compare) {
				t.Errorf("%s: samples %v", test.name, p.Samples)
			}
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(piece{})); diff != "" {
			t.Errorf("%s: want -, have +\n%s", test.name, diff)
		}
	}
}

// TestMostlyCounted checks whether the total size of a kind is known after its pieces were counted.
// The pieces were cut at unevenly spread samples. The total is known if most entities are in pieces
// whose counts have not reached the limit.
func TestMostlyCounted(t *testing.T) {
	samples := keyspace.AtAll(sequence(1601)[1:])
	pieces := Cells(Piece{Samples: samples, Workers: 100}, 100)
	if len(pieces) != 100 || !Ordered(pieces) {
		t.Fatalf("%d pieces", len(pieces))
	}
	if few := Cells(Piece{Samples: samples[:3], Workers: 100}, 100); len(few) != 4 {
		t.Errorf("%d pieces with 3 samples", len(few))
	}
	most := MostInPiece(len(pieces))
	for _, test := range []struct {
		name  string
		long  int // number of pieces whose counts reach the limit
		short int64
		total int64
		ok    bool
	}{
		{"none is long", 0, 10_000, 1_000_000, true},
		{"some are long", 5, 10_000, 950_000 + 5*most, true},
		{"half of them are", 50, most - 1, 0, false},
		{"all are", 100, 0, 0, false},
	} {
		counts := make([]int64, len(pieces))
		for i := range counts {
			if counts[i] = test.short; i < test.long {
				counts[i] = most
			}
		}
		total, ok := MostlyCounted(WithCounts(pieces, counts, most, 100))
		if ok != test.ok || ok && total != test.total {
			t.Errorf("%s: %d, %v; want %d, %v", test.name, total, ok, test.total, test.ok)
		}
	}
}

func TestCapSamples(t *testing.T) {
	keys := keyspace.AtAll(sequence(1000))
	each := keys[0].Size()
	for _, want := range []int{1000, 999, 500, 100, 3, 0} {
		got := CapSamples(keys, want*each)
		if len(got) > want || len(got) < want/2 || !slices.IsSortedFunc(got, keyspace.Compare) {
			t.Errorf("room for %d of 1000 samples: %d kept", want, len(got))
		}
	}
}

// TestAtSamples checks that every m-th key of a sorted sample becomes a cut, or each key if there
// are not enough.
func TestAtSamples(t *testing.T) {
	sample := func(n int) (all []*keyspace.Position) {
		for i := range int64(n) {
			all = append(all, keyspace.At(datastore.IDKey("K", i+1, nil)))
		}
		return all
	}
	for _, c := range []struct {
		size, n int
		want    []int64
	}{
		{7, 8, []int64{1, 2, 3, 4, 5, 6, 7}},
		{32*4 - 1, 4, []int64{32, 64, 96}},
		{10, 4, []int64{2, 5, 8}},
		{2, 8, []int64{1, 2}},
		{0, 8, nil},
		{10, 1, nil},
	} {
		var got []int64
		for _, p := range AtSamples(sample(c.size), c.n) {
			got = append(got, p.Key.ID)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d samples for %d parts: cut at %v, want %v", c.size, c.n, got, c.want)
		}
	}
}

// TestBeyond checks that an estimate becomes unknown if it was too low.
func TestBeyond(t *testing.T) {
	for estimate, want := range map[int64]int64{0: 0, 99: 0, 100: 0, 101: 101} {
		if s := (Piece{Estimate: estimate, Exact: true}).Beyond(100); s.Estimate != want || s.Exact != (want > 0) {
			t.Errorf("an estimate of %d becomes %+v", estimate, s)
		}
	}
}
