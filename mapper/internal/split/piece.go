package split

import (
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Piece is a range as this package sees it, before or after a cut.
type Piece struct {
	Start, End *keyspace.Position   // nil: the start or end of the job
	Samples    []*keyspace.Position // inside, in order
	Estimate   int64                // the number of entities inside; 0: unknown
	Exact      bool                 // they were counted
	Workers    int64                // how many workers should share it; 0 means one
	FairShare  int64                // one worker's fair share, in entities; 0: all of them
	Space      keyspace.Space       // the space of all its entities; empty: there may be several
	Far        bool                 // it is far from where it was cut off: the pace measured there does not apply
	Resample   bool                 // its task surveys it as the root's task does
}

// Holds reports whether the piece extends beyond a position.
func (s Piece) Holds(p *keyspace.Position) bool {
	return s.End == nil || keyspace.Compare(p, s.End) < 0
}

// From returns the part of a piece from a position on, with its estimate. An estimate of 0 or less
// was too low, and becomes unknown.
func (s Piece) From(start *keyspace.Position, estimate int64) Piece {
	i := 0
	for i < len(s.Samples) && keyspace.Compare(s.Samples[i], start) <= 0 {
		i++
	}
	s.Start, s.Samples, s.Estimate, s.Exact = start, s.Samples[i:], max(0, estimate), s.Exact && estimate > 0
	return s
}

// Until returns the samples before a position.
func (s Piece) Until(end *keyspace.Position) []*keyspace.Position {
	i := 0
	for i < len(s.Samples) && keyspace.Compare(s.Samples[i], end) < 0 {
		i++
	}
	return slices.Clip(s.Samples[:i])
}

// Even returns how many entities a page should have, so that the piece's last page is not small.
// The usual number is size. The result is at most twice that, and at most most.
func (s Piece) Even(size, most int64) int64 {
	n := max(1, s.Estimate/size)
	return max(size, min((s.Estimate+n-1)/n, 2*size, most))
}

// Counted returns the piece after its entities were counted. n is the count, and most was its
// limit.
func (s Piece) Counted(n, most int64) Piece {
	if n >= most {
		return s
	}
	if s.Estimate > 0 && s.Workers > 1 {
		s.Workers = max(1, (s.Workers*n+s.Estimate/2)/s.Estimate)
	}
	s.Estimate, s.Exact = n, n > 0
	return s
}

// evenly cuts a piece whose contents are unknown into up to n pieces, by arithmetic on keys or
// values. If until is not nil, the job's entities end there.
func (s Piece) evenly(n int, until *keyspace.Position) (pieces []Piece) {
	end := s.End
	if end == nil && until != nil && until.Space() == s.Start.Space() {
		end = until
	}
	cuts := keyspace.Cuts(s.Start, end, n)
	each, parts := s.Estimate, int64(len(cuts)+1)
	if parts > 1 {
		each = (each + parts - 1) / parts
	}
	for _, at := range cuts {
		piece := s
		piece.End, piece.Estimate, piece.Samples = at, each, s.Until(at)
		pieces = append(pieces, piece)
		s = s.From(at, each*(parts-int64(len(pieces))))
	}
	s.Estimate = each
	return append(pieces, s)
}

// cutAtSamples cuts a piece into n pieces with the same number of samples, or at every sample if
// there are fewer. Each piece keeps the samples inside it, and its part of the workers.
func cutAtSamples(s Piece, n int) []Piece {
	n = min(n, len(s.Samples)+1)
	pieces := make([]Piece, 0, n)
	start, first := s.Start, 0
	total := int64(len(s.Samples) + 1) // gaps between samples
	for i := 1; i <= n; i++ {
		end, next := s.End, len(s.Samples)
		if i < n {
			// The i-th cut is at sample c, counted from 1: c of the gaps are before it.
			c := (len(s.Samples) + 1) * i / n
			end, next = s.Samples[c-1], c-1
		}
		inside := s.Samples[first:next]
		pieces = append(pieces, Piece{
			Start:     start,
			End:       end,
			Samples:   slices.Clip(inside),
			Estimate:  max(1, s.Estimate*int64(len(inside)+1)/total),
			Workers:   max(1, s.Workers/int64(n)),
			FairShare: s.FairShare,
			Space:     s.Space,
		})
		start, first = end, next+1
	}
	return pieces
}

// AtSamples returns up to n-1 samples of a sorted sample that cut it into parts with the same
// number of samples.
func AtSamples(sample []*keyspace.Position, n int) (at []*keyspace.Position) {
	for _, p := range cutAtSamples(Piece{Samples: sample}, n)[1:] {
		at = append(at, p.Start)
	}
	return at
}

// MostCountedPieces is the largest estimate of a kind whose pieces are counted after the root has
// cut it at samples. A count costs one read for each thousand entities.
const MostCountedPieces = 4_000_000

// MostInPiece returns the limit of each count when n pieces are counted: four times the entities of
// a piece if all are equal. The job's start waits for the longest count, so there is a limit. A
// piece that exceeds it can't be balanced.
func MostInPiece(n int) int64 { return 4 * MostCountedPieces / int64(n) }

// WithCounts returns the pieces with the counts of their entities. Each was counted with a limit of
// most. Each piece gets one worker for each fair share.
func WithCounts(pieces []Piece, counts []int64, most, workers int64) []Piece {
	pieces = slices.Clone(pieces)
	total := int64(0)
	for i, n := range counts {
		p := &pieces[i]
		if p.Exact = n < most; p.Exact {
			p.Estimate = n
		}
		p.Estimate = max(n, p.Estimate)
		total += p.Estimate
	}
	fair := max(1, total/max(1, workers))
	for i := range pieces {
		pieces[i].FairShare = fair
	}
	return joined(pieces, 0)
}

// joined joins neighbours that have at most short entities together. It also joins empty pieces
// with their neighbours. Each piece gets one worker for each fair share.
func joined(pieces []Piece, short int64) (all []Piece) {
	for _, p := range pieces {
		if n := len(all) - 1; n >= 0 && (all[n].Estimate+p.Estimate <= short || all[n].Exact && p.Exact &&
			min(all[n].Estimate, p.Estimate) == 0) {
			all[n] = all[n].with(p)
			continue
		}
		all = append(all, p)
	}
	for i := range all {
		p := &all[i]
		p.Workers = shareCount(p.Estimate, p.FairShare)
		p.Exact = p.Exact && p.Estimate > 0
	}
	return all
}

// with joins a piece and the one after it.
func (s Piece) with(next Piece) Piece {
	s.Samples = slices.Concat(s.Samples, []*keyspace.Position{next.Start}, next.Samples)
	s.End, s.Estimate, s.Exact = next.End, s.Estimate+next.Estimate, s.Exact && next.Exact
	return s
}

// shareCount returns how many fair shares n entities are, at least one.
func shareCount(n, fair int64) int64 { return max(1, (n+fair/2)/fair) }

// CellsOf returns how many cells a range is cut into before the entities of each cell are counted:
// one for every two pages. Counting then takes about as many queries as finding the boundaries
// inside the cells. The sample was drawn with a limit of size keys, and first is the position at
// the end of the first page.
func CellsOf(sample []*keyspace.Position, size int, first Rank) int64 {
	cells := EstimateFrom(sample, []Rank{first}) / (2 * first.Before)
	if cells < 2 && len(sample) == size { // no sample is in the first page
		return int64(size)
	}
	return cells
}

// Cells cuts the root's range at its samples into up to n cells, for counting.
func Cells(s Piece, n int64) []Piece {
	s.Estimate = MostCountedPieces
	return cutAtSamples(s, int(min(n, int64(len(s.Samples)+1))))
}

// MostlyCounted returns the sum of all pieces' entities after they were counted. It is ok if most
// of them are in pieces that were counted to their ends. Otherwise the kind is larger than total.
func MostlyCounted(pieces []Piece) (total int64, ok bool) {
	counted := int64(0)
	for _, p := range pieces {
		if total += p.Estimate; p.Exact {
			counted += p.Estimate
		}
	}
	return total, 2*counted >= total
}

// MaxSampleBytes is the limit of the samples in a record. It keeps a record well below the 1 MiB of
// an entity. The records of all children of a range stay below the 10 MiB of a transaction.
const MaxSampleBytes = 64 << 10

// CapSamples drops every other sample until the rest fits into limit bytes. So the rest is spread
// as evenly as before.
func CapSamples(samples []*keyspace.Position, limit int) []*keyspace.Position {
	for {
		size := 0
		for _, p := range samples {
			size += p.Size()
		}
		if size <= limit {
			return samples
		}
		half := make([]*keyspace.Position, 0, len(samples)/2)
		for i := 1; i < len(samples); i += 2 {
			half = append(half, samples[i])
		}
		samples = half
	}
}

// Ordered reports whether each piece ends after its start.
func Ordered(pieces []Piece) bool {
	for _, p := range pieces {
		if p.Start != nil && p.End != nil && keyspace.Compare(p.Start, p.End) >= 0 {
			return false
		}
	}
	return true
}

// Beyond returns the piece after the task has found more than a page of entities in it. If the
// estimate was at most a page, it was too low, and becomes unknown.
func (s Piece) Beyond(page int64) Piece {
	if s.Estimate <= page {
		s.Estimate, s.Exact = 0, false
	}
	return s
}
