package split

import (
	"cmp"
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A CutPlan says at which places a range is cut into pieces. The task that cuts the range keeps the
// first piece.
type CutPlan struct {
	Pieces  int64   // number of pieces; 0 or 1: the range is not cut
	Samples bool    // whether to cut at sampled keys, with the same number of samples in each piece
	Keep    int64   // number of entities in the first piece, unless Samples is set
	lengths []int64 // numbers of entities in the other pieces, except the last one
	// near is the number of pieces after the first one that count as near the task's page. Later
	// ones are marked as Far. 0 means that all are near.
	near int
	// evenly is the number of equal parts of the key space into which the last piece is cut; 0: it
	// is not cut.
	evenly int
	atOnce int  // how many searches for boundaries run at the same time; 0: FindParallel
	First  bool // whether the range is cut before the next page is processed

	Until *keyspace.Position // the end of the job's last entity, which limits the last piece; nil: unknown
}

// A Finder is a function that searches a range. It returns the position of the n-th entity at or
// after the position from, counted from 0. It returns nil if the range ends before that entity.
type Finder func(from *keyspace.Position, n int64) (*keyspace.Position, error)

// Apply cuts a piece by the plan, and returns the resulting pieces in order. It calls find for each
// boundary that is not a sampled key. The first piece is for the task that cuts.
func (c CutPlan) Apply(s Piece, find Finder) ([]Piece, error) {
	if c.Pieces <= 1 {
		return []Piece{s}, nil
	}
	if c.Samples && c.Keep == 0 {
		return cutAtSamples(s, int(c.Pieces)), nil
	}
	var pieces []Piece
	rest, all, ended := s, append([]int64{c.Keep}, c.lengths...), s.Exact
	lengths := all
	if s.Exact {
		lengths = before(all, s.Estimate)
	}
	far := func() bool { return c.near > 0 && len(pieces) > c.near }
	for len(lengths) > 0 {
		few := lengths[:min(len(lengths), cmp.Or(c.atOnce, FindParallel))]
		lengths = lengths[len(few):]
		found, here, err := findAll(find, rest, few)
		if err != nil && len(pieces) == 0 {
			return nil, err
		}
		for i, at := range found {
			piece := rest
			piece.Far = far()
			piece.End, piece.Estimate, piece.Exact, piece.Workers, piece.Samples = at, few[i], true,
				c.workersFor(s, few[i]), rest.Until(at)
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
	case c.evenly > 0 && len(pieces) == len(all):
		return append(pieces, rest.evenly(c.evenly, c.Until)...), nil
	}
	rest.Far = far()
	switch last := ended && len(pieces) < len(all); { // whether the range ends in this piece
	case s.Exact:
		rest.Workers = c.workersFor(s, rest.Estimate)
	case last:
		rest.Estimate, rest.Workers = all[len(pieces)], 1
	default:
		rest.Estimate, rest.Workers = max(rest.Estimate, beyond(s.Samples, rest.Samples, all[:len(pieces)])),
			max(1, s.Workers/c.Pieces)
		if s.Estimate > 0 {
			rest.Workers = max(rest.Workers, s.Workers*min(rest.Estimate, s.Estimate)/s.Estimate)
		}
	}
	return append(pieces, rest), nil
}

// workersFor returns how many workers should share a part with n entities of the piece s. It is at
// least 1.
func (c CutPlan) workersFor(s Piece, n int64) int64 {
	if s.Exact && s.Estimate > 0 {
		return max(1, s.Workers*n/s.Estimate)
	}
	return max(1, s.Workers/c.Pieces)
}

// before returns the leading lengths that fit into n entities. More exactly: pieces with these
// lengths, one after the other, end before the n-th entity.
func before(lengths []int64, n int64) []int64 {
	for i, length := range lengths {
		if n -= length; n <= 0 {
			return lengths[:i]
		}
	}
	return lengths
}

// FindParallel is the number of searches for boundaries that run at the same time. All of them
// start at the same position, so the later ones pass the same keys again. Together they read 8.5
// times as many keys as one search after the other would.
const FindParallel = 16

// findAll finds the ends of consecutive pieces with the given numbers of entities, starting at the
// start of s. The result has fewer ends if the range ends before, a search fails, or the ends are
// not in order because entities were added or deleted meanwhile. Then the rest of the range stays
// one piece. The bool ended says that the range has ended.
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

// CountsPieces reports whether a task that has cut a job's first range at samples should then count
// the entities of each piece. It should if there are not too many entities, because samples may be
// uneven: entities with the same ancestors can have clumped samples. [In Google's classic emulator,
// the value of __scatter__ is the XOR of the hashes of all IDs of a path.]
func (c CutPlan) CountsPieces(s Piece) bool {
	return c.Samples && c.Keep == 0 && s.Estimate > 0 && s.Estimate <= MostCountedPieces
}

// beyond estimates how many entities follow the first pieces of a range. The argument lengths has
// the lengths of these pieces, samples all sampled keys of the range, and left the sampled keys
// after the pieces. beyond assumes the same number of entities between any two samples. Without
// samples, it assumes that as many entities follow as all of these pieces have.
func beyond(samples, left []*keyspace.Position, lengths []int64) int64 {
	known := int64(0)
	for _, n := range lengths {
		known += n
	}
	passed := len(samples) - len(left)
	return known * int64(len(left)+1) / int64(passed+1)
}
