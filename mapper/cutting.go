package mapper

import (
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A cutting is where a range is cut. The first piece is the one that its task keeps.
type cutting struct {
	pieces int64 // how many; 0 or 1: the range is not cut

	// How: in the middle, evenly at samples, or else exactly behind so many entities for
	// the first piece, and for each of the next ones.
	bisect, samples bool
	keep, each      int64
	doubling        bool  // each is twice the one before
	spread          int64 // if not 0: a short rest is spread over pieces, up to so many entities on each

	first bool // the others begin before the page is processed
	anew  bool // what is behind the first piece is a portion of its own: it begins late
}

// A finder finds the position of an entity: the n-th from one on, which is the 0-th. nil
// is the end of the range.
type finder func(from *keyspace.Position, n int64) (*keyspace.Position, error)

// apply cuts a range. The first of the pieces is what its task keeps.
func (c cutting) apply(s stretch, find finder) ([]stretch, error) {
	if c.pieces <= 1 {
		return []stretch{s}, nil
	}
	if c.samples && c.keep == 0 {
		return cutAtSamples(s, int(c.pieces)), nil
	}
	var pieces []stretch
	rest, all, ended := s, c.lengths(), s.exact
	lengths := all
	if s.exact {
		lengths = c.lengthsFor(s.estimate)
	}
	expected := findParallel
	if s.estimate > c.keep && c.each > 0 && !c.doubling {
		expected = int((s.estimate-c.keep)/c.each) + 2
	}
	for len(lengths) > 0 {
		few := lengths[:min(len(lengths), findParallel, expected)]
		if expected -= len(few); expected == 0 {
			expected = findParallel // there is more than estimated
		}
		lengths = lengths[len(few):]
		found, here, err := findAll(find, rest, few)
		if err != nil && len(pieces) == 0 {
			return nil, err
		}
		for i, at := range found {
			piece := rest
			piece.end, piece.estimate, piece.exact, piece.workers, piece.samples = at, few[i], true, c.workersFor(s, few[i]), rest.until(at)
			pieces = append(pieces, piece)
			rest = rest.from(at, rest.estimate-few[i])
		}
		if len(found) < len(few) {
			ended = here
			break
		}
	}
	switch {
	case len(pieces) == 0:
	case c.samples:
		return append(pieces, cutAtSamples(rest, int(c.pieces)-1)...), nil
	case c.bisect, c.doubling && int64(len(pieces)) == c.pieces-1:
		return append(pieces, rest.halves()...), nil
	}
	last := ended && len(pieces) < len(all) // the range ends in this one
	switch {
	case s.exact:
		rest.workers = c.workersFor(s, rest.estimate)
		if last && s.workers > 1 {
			rest.late = max(0, 1-float64(rest.estimate)/float64(c.each))
		}
	case last:
		rest.estimate, rest.workers = all[len(pieces)], 1
	default:
		rest.estimate, rest.workers = max(rest.estimate, beyond(s.samples, rest.samples, all[:len(pieces)])), max(1, s.workers/c.pieces)
		if s.estimate > 0 {
			rest.workers = max(rest.workers, s.workers*min(rest.estimate, s.estimate)/s.estimate)
		}
	}
	if c.anew {
		rest.portion = rest.estimate
	}
	return append(pieces, rest), nil
}

// workersFor returns how many of a range's workers should share a piece of so many entities.
func (c cutting) workersFor(s stretch, n int64) int64 {
	if s.exact && s.estimate > 0 {
		return max(1, (s.workers*n+s.estimate/2)/s.estimate)
	}
	return max(1, s.workers/c.pieces)
}

// lengths returns how many entities the pieces have, but for the last one.
func (c cutting) lengths() []int64 {
	if c.samples || c.bisect {
		return []int64{c.keep}
	}
	lengths := []int64{c.keep}
	for each := c.each; int64(len(lengths)) < c.pieces-1; lengths = append(lengths, each) {
		if c.doubling && len(lengths) > 1 {
			each *= 2
		}
	}
	return lengths
}

// lengthsFor returns the lengths for a range of so many entities: one at the end has no boundary.
//
// Where each piece is a worker's whole portion, a task for a rest behind them would have no
// worker until the first of them ends. So a rest of up to two thirds of a piece is spread over
// the last ones. The price is some more pages that are not full.
func (c cutting) lengthsFor(n int64) []int64 {
	lengths := c.lengths()
	boundaries := max(0, (n-c.keep+c.each-1)/max(1, c.each))
	if boundaries > int64(len(lengths)) {
		return lengths
	}
	lengths = lengths[:boundaries]
	if c.spread == 0 || boundaries == 0 {
		return lengths
	}
	rest := (n-c.keep-1)%c.each + 1
	shares := (rest + c.spread - 1) / c.spread
	if 3*rest > 2*c.each || shares > boundaries {
		return lengths
	}
	lengths = lengths[:boundaries-1]
	for i := range shares - 1 {
		lengths[boundaries-2-i] += rest / shares
	}
	return lengths
}

// findParallel is how many boundaries are looked for at once. Each query passes the keys
// of those before it once more, which is 8.5 times as many as one after the other.
const findParallel = 16

// findAll finds the ends of pieces that follow each other, as far as the range goes. If some
// can't be found, those before them are enough: what is behind is another piece. So are those
// before one that is not behind them, as entities have come or gone meanwhile.
func findAll(find finder, s stretch, lengths []int64) (found []*keyspace.Position, ended bool, err error) {
	found = make([]*keyspace.Position, len(lengths))
	errs := make([]error, len(lengths))
	var group sync.WaitGroup
	n := int64(0)
	for i, length := range lengths {
		n += length
		offset := n
		group.Go(func() { found[i], errs[i] = find(s.start, offset) })
	}
	group.Wait()
	last := s.start
	for i, at := range found {
		if at == nil {
			break
		}
		if last != nil && keyspace.Compare(at, last) <= 0 || !s.holds(at) {
			return found[:i], false, nil
		}
		last = at
	}
	switch end := slices.Index(found, nil); {
	case end < 0:
		return found, false, nil
	case end == 0 && errs[0] != nil:
		return nil, false, errs[0]
	default:
		return found[:end], errs[end] == nil, nil
	}
}

// weighs reports whether the root should count its pieces: samples need not be a random choice.
// Those of entities below ancestors come in clumps [Google's classic
// emulator: the value of __scatter__ is a hash of all IDs of a path, XORed].
func (c cutting) weighs(s stretch) bool {
	return c.samples && c.keep == 0 && s.estimate > 0 && s.estimate <= mostWeighed
}

// beyond estimates how many entities are behind pieces of known lengths: as many for each
// of the samples as there are inside. Where there are none it takes the rest for as long as
// all pieces together.
func beyond(samples, left []*keyspace.Position, lengths []int64) int64 {
	known := int64(0)
	for _, n := range lengths {
		known += n
	}
	passed := len(samples) - len(left)
	return known * int64(len(left)+1) / int64(passed+1)
}
