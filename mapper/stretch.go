package mapper

import (
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A stretch is what splitting knows of a range, and what it makes of it.
type stretch struct {
	start, end *keyspace.Position   // nil: the ends of the job
	samples    []*keyspace.Position // inside, in order
	estimate   int64                // of the entities inside; 0 is unknown
	exact      bool                 // they were counted
	guess      int64                // what the estimate was before that
	workers    int64                // how many should share it; 0 is one
	portion    int64                // how many entities are one worker's portion; 0: all of them
	late       float64              // which share of lateBy its task begins later
	space      keyspace.Space       // that all its entities are in; empty: there may be several
	survey     bool                 // its task looks around, as the root does
}

// holds reports whether the stretch goes on behind a position.
func (s stretch) holds(p *keyspace.Position) bool {
	return s.end == nil || keyspace.Compare(p, s.end) < 0
}

// from returns the part of a range from a position on. An estimate that says there is
// nothing was too low: then nothing is known.
func (s stretch) from(start *keyspace.Position, estimate int64) stretch {
	i := 0
	for i < len(s.samples) && keyspace.Compare(s.samples[i], start) <= 0 {
		i++
	}
	s.start, s.samples, s.estimate, s.guess, s.exact = start, s.samples[i:], max(0, estimate), 0, s.exact && estimate > 0
	return s
}

// until returns the samples before a position.
func (s stretch) until(end *keyspace.Position) []*keyspace.Position {
	i := 0
	for i < len(s.samples) && keyspace.Compare(s.samples[i], end) < 0 {
		i++
	}
	return slices.Clip(s.samples[:i])
}

// even returns the size of a range's pages, up to twice as many as usual, so that the last
// one is no small one.
func (s stretch) even(size, most int64) int64 {
	n := max(1, s.estimate/size)
	return max(size, min((s.estimate+n-1)/n, 2*size, most))
}

// counted returns the range with the number of its entities, which was counted up to most.
func (s stretch) counted(n, most int64) stretch {
	if n >= most {
		return s
	}
	if s.estimate > 0 && s.workers > 1 {
		s.workers = max(1, (s.workers*n+s.estimate/2)/s.estimate)
	}
	s.estimate, s.guess, s.exact = n, s.estimate, n > 0
	return s
}

// halves cuts a range of which nothing is known by arithmetic on keys.
func (s stretch) halves() []stretch {
	middle := keyspace.Middle(s.start, s.end)
	if middle == nil {
		return []stretch{s}
	}
	lower, upper := s, s
	lower.end, upper.start = middle, middle
	lower.estimate, upper.estimate = (s.estimate+1)/2, (s.estimate+1)/2
	lower.samples, upper = s.until(middle), s.from(middle, upper.estimate)
	return []stretch{lower, upper}
}

// cutAtSamples cuts a range into n pieces with equal shares of its samples. Each
// takes along the samples inside it, and its share of the workers.
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
			workers:  max(1, s.workers/int64(n)),
			portion:  s.portion,
			space:    s.space,
		})
		start, first = end, next+1
	}
	return pieces
}

// mostWeighed is up to how many entities a kind may be estimated to have so that the pieces
// that the root cuts it into at samples are counted. That costs a read for a thousand of them.
const mostWeighed = 4_000_000

// mostInPiece is up to how many entities are counted in each of n pieces, four times as many as
// each would have if they were even: the longest count is what the job's start waits for, and
// pieces that are not counted to their ends can't be made even.
func mostInPiece(n int) int64 { return 4 * mostWeighed / int64(n) }

// weighed returns pieces whose entities were counted, up to so many each. Neighbours that are
// short together become one, and long ones are shared by as many workers as they have portions.
func weighed(pieces []stretch, counts []int64, most, workers, page int64) []stretch {
	pieces = slices.Clone(pieces)
	total := int64(0)
	for i, n := range counts {
		p := &pieces[i]
		if p.exact = n < most; p.exact {
			p.estimate = n
		}
		p.estimate = max(n, p.estimate)
		total += p.estimate
	}
	portion := max(1, total/max(1, workers))
	short := max(portion, rootPages*page)
	var merged []stretch
	for _, p := range pieces {
		if n := len(merged) - 1; n >= 0 && (merged[n].estimate+p.estimate <= short || merged[n].exact && p.exact && min(merged[n].estimate, p.estimate) == 0) {
			merged[n] = merged[n].with(p)
			continue
		}
		merged = append(merged, p)
	}
	for i := range merged {
		p := &merged[i]
		p.portion, p.workers = portion, portions(p.estimate, portion)
		p.exact = p.exact && p.estimate > 0
	}
	return merged
}

// with returns a piece and the one behind it as one.
func (s stretch) with(next stretch) stretch {
	s.samples = slices.Concat(s.samples, []*keyspace.Position{next.start}, next.samples)
	s.end, s.estimate, s.exact = next.end, s.estimate+next.estimate, s.exact && next.exact
	return s
}

// portions returns of how many workers' portions n entities are, at least of one.
func portions(n, portion int64) int64 { return max(1, (n+portion/2)/portion) }

// cutBlindly cuts the root's range at its samples, to be counted, when nothing else is known: the
// entities at the beginning of the kind have no samples among them. That is so below ancestors,
// where samples come in clumps.
func cutBlindly(s stretch) []stretch {
	s.estimate = mostWeighed
	return cutAtSamples(s, int(min(s.workers, maxFanOut, int64(len(s.samples)+1))))
}

// mostlyCounted returns how many entities pieces have that were weighed, if most of these are in
// pieces that were counted to their ends. Otherwise the kind is larger than that.
func mostlyCounted(pieces []stretch) (total int64, ok bool) {
	counted := int64(0)
	for _, p := range pieces {
		if total += p.estimate; p.exact {
			counted += p.estimate
		}
	}
	return total, 2*counted >= total
}
