package mapper

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/internal/keytest"
)

// A kindModel is a kind for splitting without a database: its entities in order, and
// those that have __scatter__.
type kindModel struct {
	all     []*position
	scatter []*position
}

// newModel makes a kind of the keys, one in density of which is in its sample.
func newModel(rng *rand.Rand, keys []*datastore.Key, density int) kindModel {
	m := kindModel{all: sortPositions(positionsOf(keys))}
	for _, k := range m.all {
		if density > 0 && rng.IntN(density) == 0 {
			m.scatter = append(m.scatter, k)
		}
	}
	rng.Shuffle(len(m.scatter), func(i, j int) { m.scatter[i], m.scatter[j] = m.scatter[j], m.scatter[i] })
	return m
}

// look is what a keys-only query of a range returns.
func (m kindModel) look(s stretch, limit int) view {
	first := 0
	if s.start != nil {
		first, _ = slices.BinarySearchFunc(m.all, s.start, comparePositions)
	}
	last := len(m.all)
	if s.end != nil {
		last, _ = slices.BinarySearchFunc(m.all, s.end, comparePositions)
	}
	last = max(first, last)
	return view{at: m.all[first:min(last, first+limit)], all: last-first < limit}
}

// milestones are the keys whose ranks the root finds out.
func (m kindModel) milestones(page int) []milestone {
	var milestones []milestone
	for _, pages := range milestonePages {
		at := milestone{rank: pages * int64(page)}
		if int(at.rank) < len(m.all) {
			at.at = m.all[at.rank]
		}
		milestones = append(milestones, at)
	}
	return milestones
}

// A treeModel is what became of a job.
type treeModel struct {
	tasks, depth int
	pages        []stretch // in the order of the tasks
	counts       []int     // of entities, by page
}

// runJob does with a kind what tasks do with ranges.
func (m kindModel) runJob(sp Splitting, workers, page int) treeModel {
	var tree treeModel
	var task func(s stretch, depth int)
	task = func(s stretch, depth int) {
		tree.tasks++
		tree.depth = max(tree.depth, depth)
		root := depth == 0
		if root {
			s.workers = int64(workers)
			s.samples = sortPositions(slices.Clone(m.scatter[:min(len(m.scatter), sp.sampleSize(s.workers))]))
			s.estimate = estimateFrom(s.samples, m.milestones(page))
			s.portion = s.estimate / s.workers
		}
		if !m.look(s, page+1).all && s.estimate <= int64(page) {
			s.estimate = 0
		}
		own := s
		if !m.look(s, page+1).all {
			if most := sp.counts(s, root, int64(page), int64(page)); most > 0 {
				s = s.counted(int64(len(m.look(s, int(most)).at)), most)
			}
			pieces, _ := sp.cut(s, root, int64(page), int64(page)).apply(s, func(from *position, n int64) (*position, error) {
				seen := m.look(stretch{start: from, end: s.end}, int(n)+1)
				if seen.all {
					return nil, nil
				}
				return seen.at[n], nil
			})
			own = pieces[0]
			for _, c := range pieces[1:] {
				defer task(c, depth+1)
			}
		}
		for more := true; more; {
			seen := m.look(own, page+1)
			next := stretch{start: own.start, end: own.end}
			if more = len(seen.at) > page; more {
				next.end = seen.at[page]
			}
			tree.pages = append(tree.pages, next)
			tree.counts = append(tree.counts, min(page, len(seen.at)))
			own.start = next.end
		}
	}
	task(stretch{}, 0)
	return tree
}

// check checks that the pages tile the key space, and that none is too large.
func (tree treeModel) check(t *testing.T, m kindModel, page int) {
	t.Helper()
	pages := slices.Clone(tree.pages)
	slices.SortFunc(pages, func(a, b stretch) int {
		switch {
		case a.start == nil:
			return -1
		case b.start == nil:
			return 1
		}
		return comparePositions(a.start, b.start)
	})
	if pages[0].start != nil || pages[len(pages)-1].end != nil {
		t.Fatal("the pages do not reach the ends of the key space")
	}
	for i := 1; i < len(pages); i++ {
		if pages[i-1].end == nil || !pages[i-1].end.equal(pages[i].start) {
			t.Fatalf("page %v to %v is followed by %v to %v", pages[i-1].start, pages[i-1].end, pages[i].start, pages[i].end)
		}
	}
	total := 0
	for _, n := range tree.counts {
		if total += n; n > page {
			t.Fatalf("a page has %d entities, above %d", n, page)
		}
	}
	if total != len(m.all) {
		t.Fatalf("the pages have %d entities of %d", total, len(m.all))
	}
}

func sequence(n int) []*datastore.Key {
	keys := make([]*datastore.Key, n)
	for i := range keys {
		keys[i] = datastore.IDKey("K", int64(i+1), nil)
	}
	return keys
}

// shapes are the ways in which keys lie in their space.
var shapes = map[string]func(rng *rand.Rand, n int) []*datastore.Key{
	"sequence": func(_ *rand.Rand, n int) []*datastore.Key { return sequence(n) },
	"allocated": func(rng *rand.Rand, n int) []*datastore.Key {
		keys := make([]*datastore.Key, n)
		for i := range keys {
			keys[i] = datastore.IDKey("K", 1+rng.Int64N(1<<53), nil)
		}
		return keys
	},
	"names": func(_ *rand.Rand, n int) []*datastore.Key {
		keys := make([]*datastore.Key, n)
		for i := range keys {
			keys[i] = datastore.NameKey("K", fmt.Sprintf("user-%09d", i), nil)
		}
		return keys
	},
	"mixed": func(_ *rand.Rand, n int) []*datastore.Key {
		keys := make([]*datastore.Key, n)
		for i := range keys {
			if keys[i] = datastore.NameKey("K", fmt.Sprintf("user-%09d", i), nil); i < 20 {
				keys[i] = datastore.IDKey("K", int64(i+1), nil)
			}
		}
		return keys
	},
	"uuid": func(rng *rand.Rand, n int) []*datastore.Key {
		keys := make([]*datastore.Key, n)
		for i := range keys {
			keys[i] = datastore.NameKey("K", fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64()), nil)
		}
		return keys
	},
	"ancestors": func(rng *rand.Rand, n int) []*datastore.Key {
		keys := make([]*datastore.Key, n)
		for i := range keys {
			group := datastore.IDKey("G", 1+int64(rng.ExpFloat64()*3), nil)
			keys[i] = datastore.IDKey("K", int64(i+1), datastore.NameKey("C", fmt.Sprint(i/10), group))
		}
		return keys
	},
	"every form": func(rng *rand.Rand, n int) []*datastore.Key {
		return keytest.Random(rng, min(n, 3000), keytest.Options{Kind: "K"})
	},
}

// densities are those of production, of Google's classic emulator, and of
// Google's Firestore emulator, which has no scatter keys.
var densities = []int{128, 2, 0}

// splittings are the adaptive way, and those of other mappers.
var splittings = []Splitting{{}, {First: 1, FanOut: 1}, {First: 8, FanOut: 1}, {First: 1, FanOut: 10}, {First: 1, FanOut: 2, Bisect: true}}

// TestSplitTiles cuts kinds of all shapes, sizes and densities to pages.
func TestSplitTiles(t *testing.T) {
	rng := newRand(t)
	for name, shape := range shapes {
		for _, density := range densities {
			for _, n := range []int{0, 1, 9, 10, 11, 51, 500, 2000, 20000} {
				for _, page := range []int{1, 10, 100} {
					if n/page > 2000 || testing.Short() && n > 2000 {
						continue
					}
					m := newModel(rng, shape(rng, n), density)
					for _, workers := range []int{1, 8, 100, 1000} {
						for _, sp := range splittings {
							tree := m.runJob(sp, workers, page)
							tree.check(t, m, page)
							if t.Failed() {
								t.Fatalf("%+v: %s, 1 in %d, %d entities, page %d, %d workers", sp, name, density, n, page, workers)
							}
						}
					}
				}
			}
		}
	}
}

// TestSplitWastesLittle checks the number of tasks for each full page, and the
// depth.
func TestSplitWastesLittle(t *testing.T) {
	const page = 500
	rng := newRand(t)
	sizes := []int{20000, 200000}
	if testing.Short() {
		sizes = sizes[:1]
	}
	for name, shape := range shapes {
		if name == "every form" {
			continue
		}
		for _, density := range densities {
			for _, n := range sizes {
				m := newModel(rng, shape(rng, n), density)
				for _, workers := range []int{32, 100, 1000} {
					tree := m.runJob(Splitting{}, workers, page)
					ratio := float64(len(tree.pages)) / float64(n/page)
					limit, deepest := 1.3, 8
					if density == 0 {
						// Without samples cuts are made blindly, and some are empty.
						limit, deepest = 2, 40
					}
					if ratio > limit || tree.depth > deepest {
						t.Errorf("%s, 1 in %d, %d entities, %d workers: %.2f pages for each full one, depth %d; want at most %.1f and %d",
							name, density, n, workers, ratio, tree.depth, limit, deepest)
					}
				}
			}
		}
	}
}

// TestLengthsFor cuts ranges of known lengths into portions of two pages of 100: a short rest
// is spread over the last of them.
func TestLengthsFor(t *testing.T) {
	portions := Splitting{}.cut(stretch{estimate: 2000, exact: true, workers: 10, portion: 200}, false, 100, 100)
	for _, test := range []struct {
		n    int64
		want []int64 // with the last one
	}{
		{0, []int64{0}},
		{200, []int64{200}},
		{201, []int64{201}},
		{233, []int64{233}},
		{234, []int64{200, 34}}, // too much for one
		{400, []int64{200, 200}},
		{466, []int64{233, 233}},
		{467, []int64{200, 200, 67}},
		{1000, []int64{200, 200, 200, 200, 200}},
		{1030, []int64{200, 200, 200, 200, 230}},
		{1041, []int64{200, 200, 200, 220, 221}},
		{1133, []int64{226, 226, 226, 226, 229}},
		{1134, []int64{200, 200, 200, 200, 200, 134}},
	} {
		got := portions.lengthsFor(test.n)
		last := test.n
		for _, n := range got {
			last -= n
		}
		if got = append(slices.Clone(got), last); !slices.Equal(got, test.want) {
			t.Errorf("%d entities: %v, want %v", test.n, got, test.want)
		}
	}
}

// TestBehind has tasks leave what they can't do in a portion's time to others.
func TestBehind(t *testing.T) {
	even := pace{entities: 1000, spent: 1000 * time.Millisecond, squares: 1000 * 1e-6}
	uneven := pace{entities: 1000, spent: 1000 * time.Millisecond, squares: 1000 * 10e-6}
	for _, test := range []struct {
		name              string
		portion, estimate int64
		elapsed           time.Duration
		pace              pace
		want              cutting
	}{
		{"in time", 200, 100, 100 * time.Millisecond, even, cutting{}},
		{"a short rest", 200, 149, 100 * time.Millisecond, even, cutting{}},
		{"a long rest", 200, 150, 100 * time.Millisecond, even, cutting{pieces: 2, keep: 100, each: 100}},
		{"a short rest, and others have time", 200, 149, 100 * time.Millisecond, uneven, cutting{pieces: 2, keep: 100, each: 100, first: true}},
		{"late already", 200, 300, time.Hour, even, cutting{pieces: 2, keep: 100, each: 100}},
		{"many pages a portion", 801, 5000, 0, even, cutting{}},
		{"no portion", 0, 5000, 0, even, cutting{}},
		{"nothing seen yet", 200, 5000, 0, pace{}, cutting{}},
	} {
		s := stretch{portion: test.portion, estimate: test.estimate}
		if got := s.behind(100, test.elapsed, test.pace); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestEven has pages share what a range has, so that no small one is left.
func TestEven(t *testing.T) {
	for _, test := range []struct{ estimate, size, most, want int64 }{
		{0, 100, 500, 100},   // unknown
		{99, 100, 500, 100},  // fits
		{130, 100, 500, 130}, // with a small rest
		{130, 100, 120, 120}, // which is too much
		{250, 100, 500, 125},
		{1001, 100, 500, 101},
	} {
		if got := (stretch{estimate: test.estimate}).even(test.size, test.most); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

// TestEstimateBy estimates kinds that have more entities before a sample than can be counted.
func TestEstimateBy(t *testing.T) {
	for _, n := range []int64{1e6, 1e8, 1e9, 1e10, 1e11} {
		for _, drawn := range []int64{600, 1600, 50_000} {
			kind := virtualKind{n: n, key: sequentialKey}
			var sample []*position
			for i := range drawn {
				sample = append(sample, positionOf(sequentialKey((2*i+1)*(n/drawn)/2)))
			}
			var counted []int64
			got := estimateBy(sample, []milestone{{positionOf(sequentialKey(500)), 500}, {positionOf(sequentialKey(6000)), 6000}}, func(before *position) (int64, bool) {
				counted = append(counted, min(mostCounted, kind.begin(before)))
				return counted[len(counted)-1], true
			})
			if least := min(n, drawn*mostCounted); got < least*2/5 || got > n*4/3 || len(counted) > 3 {
				t.Errorf("%d samples of %d: estimated %d, want at least %d; counted %d", drawn, n, got, least, counted)
			}
		}
	}
}

func TestEstimateFrom(t *testing.T) {
	rng := newRand(t)
	for _, density := range []int{2, 128} {
		m := newModel(rng, sequence(200000), density)
		for _, drawn := range []int{1200, 1500} {
			sample := sortPositions(slices.Clone(m.scatter[:min(drawn, len(m.scatter))]))
			got := estimateFrom(sample, m.milestones(500))
			if got < 110000 || got > 450000 {
				t.Errorf("1 in %d, %d samples: estimated %d of 200000", density, len(sample), got)
			}
		}
	}
	for _, n := range []int{0, 1, 10, 39, 49, 51, 100, 119} {
		m := newModel(rng, sequence(n), 0)
		if got := estimateFrom(nil, m.milestones(10)); got < int64(n)/4 || got > max(10, int64(n)*4) {
			t.Errorf("no samples of %d: estimated %d", n, got)
		}
	}
	if got := estimateFrom(nil, newModel(rng, sequence(121), 0).milestones(10)); got != 0 {
		t.Errorf("no samples: estimated %d, want 0 for unknown", got)
	}
	if got := estimateFrom(positionsOf(sequence(1000)[999:]), newModel(rng, sequence(1000), 0).milestones(10)); got != 0 {
		t.Errorf("no samples among those passed: estimated %d, want 0 for unknown", got)
	}
}

func TestCutAtSamples(t *testing.T) {
	keys := positionsOf(sequence(100))
	for _, samples := range []int{1, 2, 7, 31, 99} {
		for n := 2; n <= samples+1; n++ {
			s := stretch{start: keys[0], samples: keys[1 : samples+1], estimate: 1000}
			pieces := cutAtSamples(s, n)
			if len(pieces) != n || pieces[0].start != s.start || pieces[n-1].end != nil {
				t.Fatalf("%d samples, %d pieces: %v", samples, n, pieces)
			}
			inside, smallest, largest := 0, samples, 0
			for i, p := range pieces {
				if i > 0 && p.start != pieces[i-1].end {
					t.Fatalf("%d samples, %d pieces: piece %d does not begin where the one before ends", samples, n, i)
				}
				for _, k := range p.samples {
					if comparePositions(k, p.start) <= 0 || p.end != nil && comparePositions(k, p.end) >= 0 {
						t.Fatalf("sample %v is not inside %v to %v", k, p.start, p.end)
					}
				}
				inside += len(p.samples)
				smallest, largest = min(smallest, len(p.samples)), max(largest, len(p.samples))
			}
			if inside != samples-(n-1) || largest-smallest > 1 {
				t.Errorf("%d samples, %d pieces: %d inside, between %d and %d each", samples, n, inside, smallest, largest)
			}
		}
	}
}

// TestWeighed counts pieces that were taken for equally long.
func TestWeighed(t *testing.T) {
	keys := positionsOf(sequence(60))
	pieces := func() []stretch {
		return cutAtSamples(stretch{samples: keys[1:60], estimate: 600, workers: 6}, 6)
	}
	type piece struct {
		from, to *position
		samples  int
		estimate int64
		exact    bool
		workers  int64
	}
	all := pieces()
	cut := func(i int) *position { return all[i].end }
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
			{nil, cut(4), 49, 0, false, 1}, {cut(4), nil, 9, 600, true, 6},
		}},
		{"short ones together", []int64{30, 20, 250, 40, 60, 200}, []piece{
			{nil, cut(1), 19, 50, true, 1}, {cut(1), cut(2), 9, 250, true, 3}, {cut(2), cut(4), 19, 100, true, 1}, {cut(4), nil, 9, 200, true, 2},
		}},
		{"more than was counted", []int64{1000, 0, 0, 0, 0, 0}, []piece{
			{nil, cut(0), 9, 1000, false, 6}, {cut(0), nil, 49, 0, false, 1},
		}},
		{"none", []int64{0, 0, 0, 0, 0, 0}, []piece{{nil, nil, 59, 0, false, 1}}},
	} {
		var got []piece
		for _, p := range weighed(pieces(), test.counts, 1000, 6, 1) {
			got = append(got, piece{p.start, p.end, len(p.samples), p.estimate, p.exact, p.workers})
			if !slices.IsSortedFunc(p.samples, comparePositions) {
				t.Errorf("%s: samples %v", test.name, p.samples)
			}
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(piece{})); diff != "" {
			t.Errorf("%s: want -, have +\n%s", test.name, diff)
		}
	}
}

func TestCapSamples(t *testing.T) {
	keys := positionsOf(sequence(1000))
	each := keys[0].size()
	for _, want := range []int{1000, 999, 500, 100, 3, 0} {
		got := capSamples(keys, want*each)
		if len(got) > want || len(got) < want/2 || !slices.IsSortedFunc(got, comparePositions) {
			t.Errorf("room for %d of 1000 samples: %d kept", want, len(got))
		}
	}
}

// TestLastPieces cuts ranges of one worker: what a task leaves is shorter if the function is slow.
func TestLastPieces(t *testing.T) {
	for _, test := range []struct {
		name          string
		page, usual   int64
		estimate      int64
		keep, each    int64
		portion, want int64
	}{
		{"fast", 100, 100, 900, 600, 200, 0, 3},
		{"slow", 10, 100, 90, 20, 10, 0, 8},
		{"slow and long", 10, 100, 240, 20, 30, 0, 9},
		{"a portion of twenty pages", 100, 100, 2000, 1500, 500, 2000, 2},
	} {
		s := stretch{estimate: test.estimate, exact: true, workers: 1, portion: test.portion}
		c := Splitting{}.cut(s, false, test.page, test.usual)
		if c.keep != test.keep || c.each != test.each || c.first {
			t.Errorf("%s: %+v, want to keep %d and cut %d each", test.name, c, test.keep, test.each)
		}
		if n := int64(len(c.lengthsFor(test.estimate))) + 1; n != test.want {
			t.Errorf("%s: %d pieces, want %d", test.name, n, test.want)
		}
	}
}

// TestMostlyCounted cuts kinds of which nothing is known but a sample in clumps, and counts the
// pieces: that says how large they are, if most entities are in pieces that end before the count.
func TestMostlyCounted(t *testing.T) {
	samples := positionsOf(sequence(1601)[1:])
	pieces := cutBlindly(stretch{samples: samples, workers: 100})
	if len(pieces) != 100 || !ordered(pieces) {
		t.Fatalf("%d pieces", len(pieces))
	}
	if few := cutBlindly(stretch{samples: samples[:3], workers: 100}); len(few) != 4 {
		t.Errorf("%d pieces with 3 samples", len(few))
	}
	most := mostInPiece(len(pieces))
	for _, test := range []struct {
		name  string
		long  int // pieces that are longer than is counted
		short int64
		total int64
		ok    bool
	}{
		{"none is long", 0, 10_000, 1_000_000, true},
		{"some are long", 10, 10_000, 900_000 + 10*most, true},
		{"half of them are", 50, most - 1, 0, false},
		{"all are", 100, 0, 0, false},
	} {
		counts := make([]int64, len(pieces))
		for i := range counts {
			if counts[i] = test.short; i < test.long {
				counts[i] = most
			}
		}
		total, ok := mostlyCounted(weighed(pieces, counts, most, 100, 500))
		if ok != test.ok || ok && total != test.total {
			t.Errorf("%s: %d, %v; want %d, %v", test.name, total, ok, test.total, test.ok)
		}
	}
}
