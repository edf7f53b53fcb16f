package split

import (
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A CutPlan says where a piece is cut. The task that cuts it keeps the first part.
type CutPlan struct {
	Pieces int64 // how many; 0 or 1: the range is not cut

	bisect   bool    // at the middle of the key space
	Samples  bool    // at samples, with equally many in each part
	Keep     int64   // otherwise exactly: behind so many entities for the first part,
	each     int64   // and so many for each of the others,
	doubling bool    // or twice as many as for the one before
	given    []int64 // or these, but for the last one:
	near     int     // so many of the same length, and then longer ones
	spread   int64   // if not 0: a short rest is spread over the parts, up to so many entities on each

	wholeShares bool // a part of less than two fair shares is for one worker

	First bool // the other parts begin before the page is processed
}

// A Finder finds the position of the n-th entity from a position on, counted from 0, or nil if the range
// ends before it.
type Finder func(from *keyspace.Position, n int64) (*keyspace.Position, error)

// Apply cuts a piece. The task keeps the first of the parts.
func (c CutPlan) Apply(s Piece, find Finder) ([]Piece, error) {
	if c.Pieces <= 1 {
		return []Piece{s}, nil
	}
	if c.Samples && c.Keep == 0 {
		return cutAtSamples(s, int(c.Pieces)), nil
	}
	var pieces []Piece
	rest, all, ended := s, c.lengths(), s.Exact
	lengths := all
	if s.Exact {
		lengths = c.lengthsFor(s.Estimate)
	}
	expected := FindParallel
	if c.given != nil {
		expected = len(c.given) + 1
	} else if s.Estimate > c.Keep && c.each > 0 && !c.doubling {
		expected = int((s.Estimate-c.Keep)/c.each) + 2
	}
	for len(lengths) > 0 {
		few := lengths[:min(len(lengths), FindParallel, expected)]
		if expected -= len(few); expected == 0 {
			expected = FindParallel // there is more than estimated
		}
		lengths = lengths[len(few):]
		found, here, err := findAll(find, rest, few)
		if err != nil && len(pieces) == 0 {
			return nil, err
		}
		for i, at := range found {
			piece := rest
			piece.Far = c.given != nil && len(pieces) > c.near
			piece.End, piece.Estimate, piece.Exact, piece.Workers, piece.Samples = at, few[i], true, c.workersFor(s, few[i]), rest.Until(at)
			pieces = append(pieces, piece)
			rest = rest.From(at, rest.Estimate-few[i])
		}
		if len(found) < len(few) {
			ended = here
			break
		}
	}
	switch {
	case len(pieces) == 0:
	case c.Samples:
		return append(pieces, cutAtSamples(rest, int(c.Pieces)-1)...), nil
	case c.bisect, c.doubling && int64(len(pieces)) == c.Pieces-1:
		return append(pieces, rest.halves()...), nil
	}
	rest.Far = c.given != nil && len(pieces) > c.near
	last := ended && len(pieces) < len(all) // the range ends in this one
	switch {
	case s.Exact:
		rest.Workers = c.workersFor(s, rest.Estimate)
		if last && s.Workers > 1 {
			rest.Stagger = max(0, 1-float64(rest.Estimate)/float64(c.each))
		}
	case last:
		rest.Estimate, rest.Workers = all[len(pieces)], 1
	default:
		rest.Estimate, rest.Workers = max(rest.Estimate, beyond(s.Samples, rest.Samples, all[:len(pieces)])), max(1, s.Workers/c.Pieces)
		if s.Estimate > 0 {
			rest.Workers = max(rest.Workers, s.Workers*min(rest.Estimate, s.Estimate)/s.Estimate)
		}
	}
	return append(pieces, rest), nil
}

// workersFor returns how many of a range's workers should share a piece of so many entities.
func (c CutPlan) workersFor(s Piece, n int64) int64 {
	if s.Exact && s.Estimate > 0 {
		half := s.Estimate / 2
		if c.wholeShares {
			half = 0
		}
		return max(1, (s.Workers*n+half)/s.Estimate)
	}
	return max(1, s.Workers/c.Pieces)
}

// lengths returns how many entities the pieces have, but for the last one.
func (c CutPlan) lengths() []int64 {
	if c.Samples || c.bisect {
		return []int64{c.Keep}
	}
	lengths := append([]int64{c.Keep}, c.given...)
	if c.given != nil {
		return lengths
	}
	for each := c.each; int64(len(lengths)) < c.Pieces-1; lengths = append(lengths, each) {
		if c.doubling && len(lengths) > 1 {
			each *= 2
		}
	}
	return lengths
}

// lengthsFor returns the lengths for a range of so many entities: one at the end has no boundary.
//
// Where each piece is a worker's whole fair share, a task for a rest behind them would have no
// worker until the first of them ends. So a rest of up to two thirds of a piece is spread over
// the last ones. The price is some more pages that are not full.
func (c CutPlan) lengthsFor(n int64) []int64 {
	lengths := c.lengths()
	if c.given != nil {
		return before(lengths, n)
	}
	boundaries := max(0, (n-c.Keep+c.each-1)/max(1, c.each))
	if boundaries > int64(len(lengths)) {
		return lengths
	}
	lengths = lengths[:boundaries]
	if c.spread == 0 || boundaries == 0 {
		return lengths
	}
	rest := (n-c.Keep-1)%c.each + 1
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

// before returns the lengths whose pieces end before the n-th entity.
func before(lengths []int64, n int64) []int64 {
	for i, length := range lengths {
		if n -= length; n <= 0 {
			return lengths[:i]
		}
	}
	return lengths
}

// FindParallel is how many boundaries are looked for at once. Each query passes the keys
// of those before it once more, which is 8.5 times as many as one after the other.
const FindParallel = 16

// findAll finds the ends of pieces that follow each other, as far as the range goes. If some
// can't be found, those before them are enough: what is behind is another piece. So are those
// before one that is not behind them, as entities have come or gone meanwhile.
func findAll(find Finder, s Piece, lengths []int64) (found []*keyspace.Position, ended bool, err error) {
	found = make([]*keyspace.Position, len(lengths))
	errs := make([]error, len(lengths))
	var group sync.WaitGroup
	n := int64(0)
	for i, length := range lengths {
		n += length
		offset := n
		group.Go(func() { found[i], errs[i] = find(s.Start, offset) })
	}
	group.Wait()
	last := s.Start
	for i, at := range found {
		if at == nil {
			break
		}
		if last != nil && keyspace.Compare(at, last) <= 0 || !s.Holds(at) {
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

// CountsPieces reports whether the root should count its pieces: samples need not be a random choice.
// Those of entities below ancestors come in clumps [Google's classic
// emulator: the value of __scatter__ is a hash of all IDs of a path, XORed].
func (c CutPlan) CountsPieces(s Piece) bool {
	return c.Samples && c.Keep == 0 && s.Estimate > 0 && s.Estimate <= MostCountedPieces
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
