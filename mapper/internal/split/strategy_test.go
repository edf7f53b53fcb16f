package split

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/keytest"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A kindModel is a kind of entities without a database. It has all keys in order, and the keys that
// a sample can contain.
type kindModel struct {
	all     []*keyspace.Position
	scatter []*keyspace.Position
}

// newModel returns a kind with these keys. One key in density can be in a sample.
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

// A prefix is the result of a keys-only query of a range: the first keys, and whether the range has
// no more keys.
type prefix struct {
	at  []*keyspace.Position
	all bool
}

func (m kindModel) look(s Piece, limit int) prefix {
	first := 0
	if s.Start != nil {
		first, _ = slices.BinarySearchFunc(m.all, s.Start, keyspace.Compare)
	}
	last := len(m.all)
	if s.End != nil {
		last, _ = slices.BinarySearchFunc(m.all, s.End, keyspace.Compare)
	}
	last = max(first, last)
	return prefix{at: m.all[first:min(last, first+limit)], all: last-first < limit}
}

// milestones returns positions with their ranks (numbers of entities before them), as the task of a
// job's first range finds them.
func (m kindModel) milestones(page int) []Rank {
	var milestones []Rank
	for _, pages := range []int64{1, RankPages} {
		at := Rank{Before: pages * int64(page)}
		if int(at.Before) < len(m.all) {
			at.At = m.all[at.Before]
		}
		milestones = append(milestones, at)
	}
	return milestones
}

// A treeModel is the result of a simulated job: how it was split into pages of entities.
type treeModel struct {
	tasks, depth int
	pages        []Piece // the pages, in the order of the tasks
	counts       []int   // number of entities in each page
}

// runJob simulates how tasks split a kind into ranges and pages of entities.
func (m kindModel) runJob(sp Strategy, workers, page int) treeModel {
	var tree treeModel
	var task func(s Piece, depth int)
	task = func(s Piece, depth int) {
		tree.tasks++
		tree.depth = max(tree.depth, depth)
		root := depth == 0
		if root {
			s.Workers = int64(workers)
			s.Samples = keyspace.Sort(slices.Clone(m.scatter[:min(len(m.scatter), sp.SampleSize(s.Workers))]))
			s.Estimate = EstimateFrom(s.Samples, m.milestones(page))
			s.FairShare = s.Estimate / s.Workers
		}
		own := s
		if !m.look(s, page+1).all {
			s = s.Beyond(int64(page))
			t := Task{Root: root, Page: int64(page)}
			if most := sp.Counts(s, t); most > 0 {
				s = s.Counted(int64(len(m.look(s, int(most)).at)), most)
			}
			pieces, _ := sp.Decide(s, t).Apply(s, func(from *keyspace.Position, n int64) (*keyspace.Position, error) {
				seen := m.look(Piece{Start: from, End: s.End}, int(n)+1)
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
			next := Piece{Start: own.Start, End: own.End}
			if more = len(seen.at) > page; more {
				next.End = seen.at[page]
			}
			tree.pages = append(tree.pages, next)
			tree.counts = append(tree.counts, min(page, len(seen.at)))
			own.Start = next.End
		}
	}
	task(Piece{}, 0)
	return tree
}

// check checks that the pages of entities cover the key space without gaps and overlaps, and that
// none is too large.
func (tree treeModel) check(t *testing.T, m kindModel, page int) {
	t.Helper()
	pages := slices.Clone(tree.pages)
	slices.SortFunc(pages, func(a, b Piece) int {
		switch {
		case a.Start == nil:
			return -1
		case b.Start == nil:
			return 1
		}
		return keyspace.Compare(a.Start, b.Start)
	})
	if pages[0].Start != nil || pages[len(pages)-1].End != nil {
		t.Fatal("the pages do not reach the ends of the key space")
	}
	for i := 1; i < len(pages); i++ {
		if pages[i-1].End == nil || !pages[i-1].End.Equal(pages[i].Start) {
			t.Fatalf("page %v to %v is followed by %v to %v", pages[i-1].Start, pages[i-1].End, pages[i].Start,
				pages[i].End)
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

// shapes are ways in which the keys of a kind can be distributed.
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

// densities say how many entities there are for each one that can be in a sample. They are for
// production, for Google's classic emulator, and for Google's Firestore emulator, which has no
// samples at all.
var densities = []int{128, 2, 0}

// splittings are the adaptive strategy, and strategies that imitate other mappers.
var splittings = []Strategy{{}, {First: 1, FanOut: 1}, {First: 8, FanOut: 1}, {First: 1, FanOut: 10},
	{First: 1, FanOut: 2, Bisect: true}}

// TestSplitTiles splits kinds of all shapes, sizes and densities into pages of entities.
func TestSplitTiles(t *testing.T) {
	testflag.Sequential(t)
	rng, most := testflag.Rand(t), testflag.Size(t, 200, 500, 20_000)
	for name, shape := range shapes {
		for _, density := range densities {
			for _, n := range []int{0, 1, 9, 10, 11, 51, 500, 2000, 20000} {
				for _, page := range []int{1, 10, 100} {
					if n/page > 2000 || n > most {
						continue
					}
					m := newModel(rng, shape(rng, n), density)
					for _, workers := range []int{1, 8, 100, 1000} {
						for _, sp := range splittings {
							tree := m.runJob(sp, workers, page)
							tree.check(t, m, page)
							if t.Failed() {
								t.Fatalf("%+v: %s, 1 in %d, %d entities, page %d, %d workers", sp, name, density, n,
									page, workers)
							}
						}
					}
				}
			}
		}
	}
}

// TestSplitWastesLittle checks the number of tasks for each full page of entities, and the depth of
// the tree of ranges.
func TestSplitWastesLittle(t *testing.T) {
	testflag.Sequential(t)
	const page = 500
	rng := testflag.Rand(t)
	sizes := []int{20_000, 200_000}[:testflag.Size(t, 1, 1, 2)]
	for name, shape := range shapes {
		if name == "every form" {
			continue
		}
		for _, density := range densities {
			for _, n := range sizes {
				m := newModel(rng, shape(rng, n), density)
				for _, workers := range []int{32, 100, 1000} {
					tree := m.runJob(Strategy{}, workers, page)
					ratio := float64(len(tree.pages)) / float64(n/page)
					limit, deepest := 1.3, 8
					if density == 0 {
						// Without samples, the cuts do not depend on where entities are, so some
						// ranges are empty.
						limit, deepest = 2, 40
					}
					if ratio > limit || tree.depth > deepest {
						t.Errorf("%s, 1 in %d, %d entities, %d workers: %.2f pages for each full one, depth %d; want "+
							"at most %.1f and %d",
							name, density, n, workers, ratio, tree.depth, limit, deepest)
					}
				}
			}
		}
	}
}

// TestSharedByAll checks that each worker gets one piece, a fair share of the job's entities.
func TestSharedByAll(t *testing.T) {
	for _, test := range []struct {
		name              string
		estimate, workers int64
		page              int64
		keep              int64
	}{
		{"a page and a third each", 2000, 100, 15, 30},          // there are at most a hundred pieces
		{"more pieces than a range has", 20_000, 1000, 15, 210}, // ten workers with 21 pages each
		{"as many pages as workers", 480, 32, 15, 15},
		{"more pages than a hundred queries should pass", 9_000_000, 100, 500, 20_000},
		{"more workers than pages", 90, 105, 15, 15},
		{"two pages each, but for one entity", 959, 32, 15, 30},
	} {
		s := Piece{Estimate: test.estimate, Exact: true, Workers: test.workers}
		if c := (Strategy{}).Decide(s, Task{Page: test.page}); c.Keep != test.keep || len(c.lengths) > 0 &&
			c.lengths[0] != test.keep || !c.First || c.Pieces > MaxFanOut || int(c.Pieces) != len(c.lengths)+2 {
			t.Errorf("%s: %+v, want pieces of %d", test.name, c, test.keep)
		}
	}
}

// TestDecide checks when a task cuts its range: once before a page of entities, and later only to
// give away work that would end late.
func TestDecide(t *testing.T) {
	for _, test := range []struct {
		name     string
		strategy Strategy
		piece    Piece
		task     Task
		mayCut   bool
		cuts     bool
	}{
		{"a new range for several workers", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 10},
			Task{Page: 100}, true, true},
		{"what it kept, for one worker", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 1},
			Task{Divided: true, Page: 100}, false, false},
		{"what it kept, for several workers", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 10},
			Task{Divided: true, Page: 100}, true, true},
		{"what it kept is longer than it was taken for", Strategy{}, Piece{Workers: 1}, Task{Divided: true, Page: 100},
			true, true},
		{"a new range for one worker", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 1, FairShare: 1000},
			Task{Page: 100}, true, false},
	} {
		if got := test.task.MayCut(test.piece); got != test.mayCut {
			t.Errorf("%s: may cut: %v", test.name, got)
		}
		if got := test.strategy.Decide(test.piece, test.task).Pieces; got > 1 != test.cuts {
			t.Errorf("%s: cut into %d pieces", test.name, got)
		}
	}
}
