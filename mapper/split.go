package mapper

import (
	"slices"

	"cloud.google.com/go/datastore"
)

// The constants of splitting. They are ratios of pages, so that they hold for
// any page size.
const (
	// maxFanOut is the most children that a range is cut into: a hundred records
	// of at most maxSampleBytes fit a commit, and at a hundred a level a billion
	// pages are five levels deep.
	maxFanOut = 100

	// lookAheadPages is how far a keys-only look-ahead reads to find exact page
	// boundaries. Cuts at samples aim at pieces of this size: each of them wastes
	// half a page on average, so 20 waste 2.5%.
	lookAheadPages = 20

	// rootPages is how far the root looks ahead before it draws the sample, and
	// the least that a piece of its cut is estimated to hold: 5 waste 10%.
	rootPages = 5

	// samplesPerCut is how many samples are drawn for each cut: the largest of
	// 64 pieces is then 1.5 times the mean, where one sample a cut gives 4.6
	// [simulation].
	samplesPerCut = 32

	// workersPerCut is how many workers share one piece of the root's cut. Its
	// children find the rest: too many cuts at random keys waste pages.
	workersPerCut = 4
)

// A stretch is what splitting knows of a range, and what it makes of it.
type stretch struct {
	start, end *datastore.Key   // nil: the ends of the key space
	samples    []*datastore.Key // inside, in key order
	estimate   int64            // of the entities inside; 0 is unknown
}

// lookAhead returns how many keys of a range a task reads before it splits.
// One more than a page tells whether there is anything else.
func lookAhead(s stretch, root bool, page int) int {
	switch {
	case root:
		return rootPages*page + 1
	case s.estimate > 0 && s.estimate <= int64(page):
		return page + 1 // made to be one page
	case cuts(s, page) > 1:
		return page + 1 // the cuts will be at samples
	}
	return lookAheadPages*page + 1
}

// cuts returns into how many pieces the samples inside a range can cut it, so
// that each is about as long as a look-ahead.
func cuts(s stretch, page int) int {
	n := int(min(s.estimate/int64(page*lookAheadPages), maxFanOut))
	return max(1, min(n, len(s.samples)+1))
}

// sampleSize returns how many keys the root samples.
func sampleSize(workers int) int {
	return samplesPerCut * max(1, workers/workersPerCut)
}

// estimateFrom estimates how many entities the root's range holds: as many for
// each of its samples as the look-ahead saw for each of those that it passed.
// How dense samples are differs between databases, so no constant is used. The
// sample may be only the first part of all scatter keys; the ratio is the same.
// No sample says nothing.
func estimateFrom(sample []*datastore.Key, seen view) int64 {
	n := int64(len(seen.keys))
	if n == 0 || len(sample) == 0 {
		return 0
	}
	last := seen.keys[n-1]
	passed := 0
	for passed < len(sample) && compareKeys(sample[passed], last) <= 0 {
		passed++
	}
	return max(n, n*int64(len(sample))/int64(max(1, passed)))
}

// splitRoot cuts the root's range behind its page: evenly at the sample, into
// min(workers/4, pages/5) pieces. If that is no more than one, or the look-ahead
// saw everything, it cuts like any other.
func splitRoot(root stretch, seen view, workers, page int) (pageEnd *datastore.Key, children []stretch) {
	if seen.all || len(root.samples) == 0 {
		return split(root, seen, page)
	}
	rest := root.from(seen.keys[page], root.estimate-int64(page))
	pages := int(min(root.estimate/int64(page*rootPages), maxFanOut))
	if n := min(workers/workersPerCut, pages, len(rest.samples)+1); n > 1 {
		return rest.start, cutAtSamples(rest, n)
	}
	return split(root, seen, page)
}

// split returns where a range's page ends, and cuts what lies behind it into
// children. A pageEnd that is the range's own end means that there is no more.
//
//   - What the look-ahead saw to its end is cut into exact pages.
//   - Many samples: the rest is cut evenly at them.
//   - Few samples: exact pages as far as the look-ahead saw, and one piece
//     behind them.
//   - None: that piece is halved by arithmetic.
func split(r stretch, seen view, page int) (pageEnd *datastore.Key, children []stretch) {
	if len(seen.keys) <= page {
		return r.end, nil
	}
	rest := r.from(seen.keys[page], r.estimate-int64(page))
	if n := min(cuts(r, page), len(rest.samples)+1); !seen.all && n > 1 {
		return rest.start, cutAtSamples(rest, n)
	}
	for i := page; i < len(seen.keys); i += page {
		next := i + page
		switch {
		case next < len(seen.keys):
			children = append(children, stretch{start: seen.keys[i], end: seen.keys[next], estimate: int64(page)})
		case seen.all:
			children = append(children, stretch{start: seen.keys[i], end: r.end, estimate: int64(len(seen.keys) - i)})
		default: // the last key seen, which is the first of the rest
			children = append(children, behind(r.from(seen.keys[i], r.estimate-int64(i)), page)...)
		}
	}
	return rest.start, children
}

// cutPages cuts keys that are known into ranges of size, in which they are all;
// the last one ends at end. There are no more than maxFanOut, which may be larger.
func cutPages(keys []*datastore.Key, end *datastore.Key, size int) []stretch {
	size = max(size, (len(keys)+maxFanOut-1)/maxFanOut)
	var pages []stretch
	for i := 0; i < len(keys); i += size {
		s := stretch{start: keys[i], end: end, estimate: int64(min(size, len(keys)-i))}
		if i+size < len(keys) {
			s.end = keys[i+size]
		}
		pages = append(pages, s)
	}
	return pages
}

// behind returns what lies behind a look-ahead: one piece if samples will tell
// more of it or the next look-ahead will reach its end, two if nothing does.
func behind(rest stretch, page int) []stretch {
	if len(rest.samples) > 0 || 0 < rest.estimate && rest.estimate <= int64(lookAheadPages*page) {
		return []stretch{rest}
	}
	middle := bisect(rest.start, rest.end, rest.start.Kind, rest.start.Namespace)
	if middle == nil {
		return []stretch{rest}
	}
	half := (rest.estimate + 1) / 2
	return []stretch{
		{start: rest.start, end: middle, estimate: half},
		{start: middle, end: rest.end, estimate: half},
	}
}

// from returns the part of a range from a key on, which is there. An estimate
// that says there is nothing was too low: then nothing is known.
func (s stretch) from(start *datastore.Key, estimate int64) stretch {
	estimate = max(0, estimate)
	i := 0
	for i < len(s.samples) && compareKeys(s.samples[i], start) <= 0 {
		i++
	}
	return stretch{start: start, end: s.end, samples: s.samples[i:], estimate: estimate}
}

// cutAtSamples cuts a range into n pieces with equal shares of its samples. Each
// takes along the samples inside it.
func cutAtSamples(s stretch, n int) []stretch {
	pieces := make([]stretch, 0, n)
	start, first := s.start, 0
	total := int64(len(s.samples) + 1) // gaps between samples
	for i := 1; i <= n; i++ {
		end, next := s.end, len(s.samples)
		if i < n {
			// The i-th cut is at sample c, counted from 1: c of the gaps are before it.
			c := (len(s.samples) + 1) * i / n
			end, next = s.samples[c-1], c-1
		}
		inside := s.samples[first:next]
		pieces = append(pieces, stretch{
			start:    start,
			end:      end,
			samples:  slices.Clip(inside),
			estimate: max(1, s.estimate*int64(len(inside)+1)/total),
		})
		start, first = end, next+1
	}
	return pieces
}
