package split

import (
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Piece is a range as this package sees it: before a cut, or as the result of a cut.
type Piece struct {
	Start, End *keyspace.Position   // its start and end; nil: the start or the end of the job's query
	Samples    []*keyspace.Position // sampled keys inside the piece, in order
	Estimate   int64                // the number of entities in the piece; 0: unknown
	Exact      bool                 // whether Estimate was counted
	Workers    int64                // how many workers should share the piece; 0: one
	FairShare  int64                // how many entities one worker should get; 0: all
	// Space is the kind and namespace of all entities in the piece. It is empty if the piece may
	// have several.
	Space keyspace.Space
	// Far says that the piece is far from the page after which it was cut off. So the pace that was
	// measured in that page does not count for the piece.
	Far bool
	// Resample says that the piece's own task must sample and count its entities, as the task of a
	// job's first range does.
	Resample bool
}

// Holds reports whether a position is before the end of the piece.
func (s Piece) Holds(p *keyspace.Position) bool {
	return s.End == nil || keyspace.Compare(p, s.End) < 0
}

// From returns the part of the piece from start on. The parameter estimate is the estimated number
// of entities in that part; 0 or less means unknown.
func (s Piece) From(start *keyspace.Position, estimate int64) Piece {
	i := 0
	for i < len(s.Samples) && keyspace.Compare(s.Samples[i], start) <= 0 {
		i++
	}
	s.Start, s.Samples, s.Estimate, s.Exact = start, s.Samples[i:], max(0, estimate), s.Exact && estimate > 0
	return s
}

// Until returns the piece's sampled keys before a position.
func (s Piece) Until(end *keyspace.Position) []*keyspace.Position {
	i := 0
	for i < len(s.Samples) && keyspace.Compare(s.Samples[i], end) < 0 {
		i++
	}
	return slices.Clip(s.Samples[:i])
}

// Even returns how many entities to process in the next page, so that the last page of the piece is
// not small. The result is usually size, and at most 2*size or most, whichever is less.
func (s Piece) Even(size, most int64) int64 {
	n := max(1, s.Estimate/size)
	return max(size, min((s.Estimate+n-1)/n, 2*size, most))
}

// Counted returns the piece after a count of its entities has found n, with the limit most. If n
// has reached the limit, there may be more entities, and Counted returns the piece unchanged.
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

// evenly cuts a piece about which nothing is known into up to n parts. They are equal parts of the
// key space, or of the space of values, no matter where the entities are. If until is not nil, it
// is a position after the job's last entity.
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

// cutAtSamples cuts a piece into n pieces with the same number of samples. With fewer than n-1
// samples, it cuts at each sample. Each new piece gets its part of the samples and of the workers.
func cutAtSamples(s Piece, n int) []Piece {
	n = min(n, len(s.Samples)+1)
	pieces := make([]Piece, 0, n)
	start, first := s.Start, 0
	total := int64(len(s.Samples) + 1) // number of gaps between samples
	for i := 1; i <= n; i++ {
		end, next := s.End, len(s.Samples)
		if i < n {
			// c gaps between samples are before the i-th cut, which is at the c-th sample.
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

// AtSamples returns up to n-1 of the sorted sampled keys as cuts. Between them, there are about
// equal numbers of samples.
func AtSamples(sample []*keyspace.Position, n int) (at []*keyspace.Position) {
	for _, p := range cutAtSamples(Piece{Samples: sample}, n)[1:] {
		at = append(at, p.Start)
	}
	return at
}

// MostCountedPieces limits the counts after a cut at samples: the pieces of a job's first range are
// counted only if it has up to this estimated number of entities. A count costs one read for each
// thousand entities.
const MostCountedPieces = 4_000_000

// MostInPiece returns the limit of each count, in entities, if n pieces are counted. It is four
// times the mean of a piece. There is a limit because the job's start waits for the longest count.
// A piece whose count reaches the limit can't be balanced.
func MostInPiece(n int) int64 { return 4 * MostCountedPieces / int64(n) }

// WithCounts returns the pieces with counted numbers of entities. Each count had the limit most.
// Each piece gets a number of workers in proportion to its entities.
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

// joined joins neighbouring pieces that together have at most short entities. It also joins each
// empty piece to a neighbour. Each piece gets a number of workers in proportion to its entities.
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

// with returns one piece that consists of s and next, the piece after it.
func (s Piece) with(next Piece) Piece {
	s.Samples = slices.Concat(s.Samples, []*keyspace.Position{next.Start}, next.Samples)
	s.End, s.Estimate, s.Exact = next.End, s.Estimate+next.Estimate, s.Exact && next.Exact
	return s
}

// shareCount returns how many workers are needed for n entities if each of them processes about
// fair entities. It is at least 1.
func shareCount(n, fair int64) int64 { return max(1, (n+fair/2)/fair) }

// CellsOf returns the number of cells (intervals between samples) of a job's first range whose
// entities should be counted. There is one cell for every two pages. Then counting takes about as
// many queries as a search for boundaries inside cells would. The sample was read with a limit of
// size keys. The rank first is the end of the first page.
func CellsOf(sample []*keyspace.Position, size int, first Rank) int64 {
	cells := EstimateFrom(sample, []Rank{first}) / (2 * first.Before)
	if cells < 2 && len(sample) == size { // the first page has no sample
		return int64(size)
	}
	return cells
}

// Cells cuts a job's first range at its samples into up to n cells, whose entities are then
// counted.
func Cells(s Piece, n int64) []Piece {
	s.Estimate = MostCountedPieces
	return cutAtSamples(s, int(min(n, int64(len(s.Samples)+1))))
}

// MostlyCounted returns the total number of entities in the pieces after a count. It returns false
// if the total is unknown, because most entities are in pieces whose counts have reached their
// limit.
func MostlyCounted(pieces []Piece) (total int64, ok bool) {
	counted := int64(0)
	for _, p := range pieces {
		if total += p.Estimate; p.Exact {
			counted += p.Estimate
		}
	}
	return total, 2*counted >= total
}

// MaxSampleBytes is the largest size of the samples in a range's record, in bytes. With it, a
// record stays well below 1 MiB, the limit of an entity. The records of all children of a range
// stay below 10 MiB, the limit of a transaction.
const MaxSampleBytes = 64 << 10

// CapSamples drops every other sample until the remaining ones take at most limit bytes. The
// remaining ones are spread as evenly as before.
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

// Ordered reports whether each piece ends after it starts. Otherwise the cut that has made the
// pieces is wrong.
func Ordered(pieces []Piece) bool {
	for _, p := range pieces {
		if p.Start != nil && p.End != nil && keyspace.Compare(p.Start, p.End) >= 0 {
			return false
		}
	}
	return true
}

// Beyond returns the piece, in which a reader has found more than page entities. If its estimate is
// not higher than that, the estimate was too low, and Beyond sets it to 0 (unknown).
func (s Piece) Beyond(page int64) Piece {
	if s.Estimate <= page {
		s.Estimate, s.Exact = 0, false
	}
	return s
}
