package split

import (
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Piece is what splitting knows of a range, and what it makes of it.
type Piece struct {
	Start, End *keyspace.Position   // nil: the ends of the job
	Samples    []*keyspace.Position // inside, in order
	Estimate   int64                // of the entities inside; 0 is unknown
	Exact      bool                 // they were counted
	guess      int64                // what the estimate was before that
	Workers    int64                // how many should share it; 0 is one
	FairShare  int64                // how many entities are one worker's fair share; 0: all of them
	Stagger    float64              // which share of lateBy its task begins later
	Space      keyspace.Space       // that all its entities are in; empty: there may be several
	Resample   bool                 // its task surveys it, as that of the root does
}

// Holds reports whether the piece goes on behind a position.
func (s Piece) Holds(p *keyspace.Position) bool {
	return s.End == nil || keyspace.Compare(p, s.End) < 0
}

// From returns the part of a range from a position on. An estimate that says there is
// nothing was too low: then nothing is known.
func (s Piece) From(start *keyspace.Position, estimate int64) Piece {
	i := 0
	for i < len(s.Samples) && keyspace.Compare(s.Samples[i], start) <= 0 {
		i++
	}
	s.Start, s.Samples, s.Estimate, s.guess, s.Exact = start, s.Samples[i:], max(0, estimate), 0, s.Exact && estimate > 0
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

// Even returns the size of a range's pages, up to twice as many as usual, so that the last
// one is no small one.
func (s Piece) Even(size, most int64) int64 {
	n := max(1, s.Estimate/size)
	return max(size, min((s.Estimate+n-1)/n, 2*size, most))
}

// Counted returns the range with the number of its entities, which was counted up to most.
func (s Piece) Counted(n, most int64) Piece {
	if n >= most {
		return s
	}
	if s.Estimate > 0 && s.Workers > 1 {
		s.Workers = max(1, (s.Workers*n+s.Estimate/2)/s.Estimate)
	}
	s.Estimate, s.guess, s.Exact = n, s.Estimate, n > 0
	return s
}

// halves cuts a range of which nothing is known by arithmetic on keys.
func (s Piece) halves() []Piece {
	middle := keyspace.Middle(s.Start, s.End)
	if middle == nil {
		return []Piece{s}
	}
	lower, upper := s, s
	lower.End, upper.Start = middle, middle
	lower.Estimate, upper.Estimate = (s.Estimate+1)/2, (s.Estimate+1)/2
	lower.Samples, upper = s.Until(middle), s.From(middle, upper.Estimate)
	return []Piece{lower, upper}
}

// cutAtSamples cuts a range into n pieces with equal shares of its samples. Each
// takes along the samples inside it, and its share of the workers.
func cutAtSamples(s Piece, n int) []Piece {
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

// MostCountedPieces is up to how many entities a kind may be estimated to have so that the pieces
// that the root cuts it into at samples are counted. That costs a read for a thousand of them.
const MostCountedPieces = 4_000_000

// MostInPiece is up to how many entities are counted in each of n pieces, four times as many as
// each would have if they were even: the longest count is what the job's start waits for, and
// pieces that are not counted to their ends can't be made even.
func MostInPiece(n int) int64 { return 4 * MostCountedPieces / int64(n) }

// WithCounts returns pieces whose entities were counted, up to so many each. Neighbours that are
// short together become one, and long ones are shared by as many workers as they have fair shares.
func WithCounts(pieces []Piece, counts []int64, most, workers, page int64) []Piece {
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
	short := max(fair, RootPages*page)
	var merged []Piece
	for _, p := range pieces {
		if n := len(merged) - 1; n >= 0 && (merged[n].Estimate+p.Estimate <= short || merged[n].Exact && p.Exact && min(merged[n].Estimate, p.Estimate) == 0) {
			merged[n] = merged[n].with(p)
			continue
		}
		merged = append(merged, p)
	}
	for i := range merged {
		p := &merged[i]
		p.FairShare, p.Workers = fair, shareCount(p.Estimate, fair)
		p.Exact = p.Exact && p.Estimate > 0
	}
	return merged
}

// with returns a piece and the one behind it as one.
func (s Piece) with(next Piece) Piece {
	s.Samples = slices.Concat(s.Samples, []*keyspace.Position{next.Start}, next.Samples)
	s.End, s.Estimate, s.Exact = next.End, s.Estimate+next.Estimate, s.Exact && next.Exact
	return s
}

// shareCount returns of how many workers' fair shares n entities are, at least of one.
func shareCount(n, fair int64) int64 { return max(1, (n+fair/2)/fair) }

// CutAtAllSamples cuts the root's range at its samples, to be counted, when nothing else is known: the
// entities at the beginning of the kind have no samples among them. That is so below ancestors,
// where samples come in clumps.
func CutAtAllSamples(s Piece) []Piece {
	s.Estimate = MostCountedPieces
	return cutAtSamples(s, int(min(s.Workers, MaxFanOut, int64(len(s.Samples)+1))))
}

// MostlyCounted returns how many entities pieces have that were weighed, if most of these are in
// pieces that were counted to their ends. Otherwise the kind is larger than that.
func MostlyCounted(pieces []Piece) (total int64, ok bool) {
	counted := int64(0)
	for _, p := range pieces {
		if total += p.Estimate; p.Exact {
			counted += p.Estimate
		}
	}
	return total, 2*counted >= total
}

// MaxSampleBytes keeps a record well below the 1 MiB of an entity, and the
// records of all children of a range below the 10 MiB of a transaction.
const MaxSampleBytes = 64 << 10

// CapSamples leaves out every other sample until the rest fits: it is as evenly
// spread as the whole.
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

// Ordered reports whether each of some pieces, which begin where the one before ends, ends behind
// where it begins.
func Ordered(pieces []Piece) bool {
	for _, p := range pieces {
		if p.Start != nil && p.End != nil && keyspace.Compare(p.Start, p.End) >= 0 {
			return false
		}
	}
	return true
}
