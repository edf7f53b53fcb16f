package mapper

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// A kindModel is a kind for splitting without a database: its entities in order, and
// those that have __scatter__.
type kindModel struct {
	all     []*keyspace.Position
	scatter []*keyspace.Position
}

// newModel makes a kind of the keys, one in density of which is in its sample.
func newModel(rng *rand.Rand, keys []*datastore.Key, density int) kindModel {
	m := kindModel{all: keyspace.Sort(keyspace.AtAll(keys))}
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
		first, _ = slices.BinarySearchFunc(m.all, s.start, keyspace.Compare)
	}
	last := len(m.all)
	if s.end != nil {
		last, _ = slices.BinarySearchFunc(m.all, s.end, keyspace.Compare)
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
func (m kindModel) runJob(sp strategy, workers, page int) treeModel {
	var tree treeModel
	var task func(s stretch, depth int)
	task = func(s stretch, depth int) {
		tree.tasks++
		tree.depth = max(tree.depth, depth)
		root := depth == 0
		if root {
			s.workers = int64(workers)
			s.samples = keyspace.Sort(slices.Clone(m.scatter[:min(len(m.scatter), sp.sampleSize(s.workers))]))
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
			pieces, _ := sp.cut(s, root, int64(page), int64(page)).apply(s, func(from *keyspace.Position, n int64) (*keyspace.Position, error) {
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
		return keyspace.Compare(a.start, b.start)
	})
	if pages[0].start != nil || pages[len(pages)-1].end != nil {
		t.Fatal("the pages do not reach the ends of the key space")
	}
	for i := 1; i < len(pages); i++ {
		if pages[i-1].end == nil || !pages[i-1].end.Equal(pages[i].start) {
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
var splittings = []strategy{{}, {First: 1, FanOut: 1}, {First: 8, FanOut: 1}, {First: 1, FanOut: 10}, {First: 1, FanOut: 2, Bisect: true}}

// TestSplitTiles cuts kinds of all shapes, sizes and densities to pages.
func TestSplitTiles(t *testing.T) {
	testflag.Sequential(t)
	rng := testflag.Rand(t)
	for name, shape := range shapes {
		for _, density := range densities {
			for _, n := range []int{0, 1, 9, 10, 11, 51, 500, 2000, 20000} {
				for _, page := range []int{1, 10, 100} {
					if n/page > 2000 || testing.Short() && n > 500 {
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
	rng := testflag.Rand(t)
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
					tree := m.runJob(strategy{}, workers, page)
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

// TestBehind has tasks leave what they can't do in a portion's time to others.
func TestBehind(t *testing.T) {
	even := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 1e-4}
	uneven := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 10e-4}
	for _, test := range []struct {
		name              string
		portion, estimate int64
		ran               time.Duration
		pace              pace.Throughput
		want              cutting
	}{
		{"in time", 200, 100, time.Second, even, cutting{}},
		{"a short rest", 200, 149, time.Second, even, cutting{}},
		{"a long rest", 200, 150, time.Second, even, cutting{pieces: 2, keep: 100, each: 100, anew: true}},
		{"a short rest, and others have time", 200, 149, time.Second, uneven, cutting{pieces: 2, keep: 100, each: 100, first: true, anew: true}},
		{"late already", 200, 300, time.Hour, even, cutting{pieces: 2, keep: 100, each: 100, anew: true}},
		{"a little late", 400, 300, 1400 * time.Millisecond, even, cutting{}},
		{"a little late, and others have time", 400, 300, 1400 * time.Millisecond, uneven, cutting{pieces: 2, keep: 200, each: 200, first: true, anew: true}},
		{"many pages a portion", 401, 5000, 0, even, cutting{}},
		{"no portion", 0, 5000, 0, even, cutting{}},
		{"nothing seen yet", 200, 5000, 0, pace.Throughput{}, cutting{}},
	} {
		s := stretch{portion: test.portion, estimate: test.estimate}
		if got := s.behind(100, 100, test.ran, test.pace); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestOverdue has tasks share their last page that would end long after a portion's time.
func TestOverdue(t *testing.T) {
	even := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 1e-4}
	uneven := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 10e-4}
	halves := cutting{pieces: 2, keep: 45, each: 45, first: true, anew: true}
	for _, test := range []struct {
		name string
		s    stretch
		ran  time.Duration
		pace pace.Throughput
		want cutting
	}{
		{"in time", stretch{portion: 200, estimate: 90, exact: true}, 1433 * time.Millisecond, uneven, cutting{}},
		{"overdue", stretch{portion: 200, estimate: 90, exact: true}, 1434 * time.Millisecond, uneven, halves},
		{"nobody has time", stretch{portion: 200, estimate: 90, exact: true}, time.Minute, even, cutting{}},
		{"short", stretch{portion: 200, estimate: 49, exact: true}, time.Minute, uneven, cutting{}},
		{"fast", stretch{portion: 200, estimate: 90, exact: true}, time.Minute, pace.Throughput{Entities: 1000, Spent: time.Second, Squares: 1000 * 10e-6}, cutting{}},
		{"it is not known how short", stretch{portion: 200, estimate: 90}, time.Minute, uneven, cutting{}},
		{"many pages a portion", stretch{portion: 401, estimate: 90, exact: true}, time.Minute, uneven, cutting{}},
		{"no portion", stretch{estimate: 90, exact: true}, time.Minute, uneven, cutting{}},
		{"nothing seen yet", stretch{portion: 200, estimate: 90, exact: true}, time.Second, pace.Throughput{}, cutting{}},
	} {
		if got := test.s.overdue(100, 100, test.ran, test.pace); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestSharedByAll cuts what is left when a function turns out to be slow: between as many workers
// as there are pages, with as many entities each.
func TestSharedByAll(t *testing.T) {
	for _, test := range []struct {
		name              string
		estimate, workers int64
		page              int64
		keep              int64
	}{
		{"a page and a third each", 2000, 100, 15, 20},
		{"more pieces than a range has", 20_000, 1000, 15, 200}, // ten workers with 20 each
		{"as many pages as workers", 480, 32, 15, 15},
		{"more workers than pages", 90, 105, 15, 15},
		{"two pages each, but for one entity", 959, 32, 15, 30},
	} {
		s := stretch{estimate: test.estimate, exact: true, workers: test.workers}
		if c := (strategy{}).cut(s, false, test.page, 500); c.keep != test.keep || c.each != test.keep || !c.first {
			t.Errorf("%s: %+v, want pieces of %d", test.name, c, test.keep)
		}
	}
}

func TestCapSamples(t *testing.T) {
	keys := keyspace.AtAll(sequence(1000))
	each := keys[0].Size()
	for _, want := range []int{1000, 999, 500, 100, 3, 0} {
		got := capSamples(keys, want*each)
		if len(got) > want || len(got) < want/2 || !slices.IsSortedFunc(got, keyspace.Compare) {
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
		c := strategy{}.cut(s, false, test.page, test.usual)
		if c.keep != test.keep || c.each != test.each || c.first {
			t.Errorf("%s: %+v, want to keep %d and cut %d each", test.name, c, test.keep, test.each)
		}
		if n := int64(len(c.lengthsFor(test.estimate))) + 1; n != test.want {
			t.Errorf("%s: %d pieces, want %d", test.name, n, test.want)
		}
	}
}
