package mapper

import (
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// inPortions moves the boundaries between the root's pieces, whose entities were counted: so
// that each has as many as the others, and its workers one portion each. Pieces that were not
// counted to their ends stay as they are, and so do all of a row in which a boundary can't be
// found.
func inPortions(pieces []stretch, page int64, find finder) []stretch {
	total := int64(0)
	for _, p := range pieces {
		total += p.estimate
	}
	var even []stretch
	for len(pieces) > 0 {
		n := 0
		for n < len(pieces) && pieces[n].exact {
			n++
		}
		if n == 0 {
			even, pieces = append(even, pieces[0]), pieces[1:]
			continue
		}
		even = append(even, levelled(pieces[:n], total, page, find)...)
		pieces = pieces[n:]
	}
	return even
}

// levelled is inPortions for pieces that follow each other and were all counted, of so many
// entities. A boundary is looked for from the beginning of the piece that it is in; where that is
// too far away, the beginning is good enough.
func levelled(pieces []stretch, total, page int64, find finder) []stretch {
	portion, whole := pieces[0].portion, pieces[0]
	for _, p := range pieces[1:] {
		whole = whole.with(p)
	}
	type boundary struct {
		rank int64
		at   *keyspace.Position
	}
	var bounds []*boundary
	var group sync.WaitGroup
	rank, passed, piece := int64(0), int64(0), 0
	lengths := shares(whole.estimate, portion, total, page)
	for _, n := range lengths[:len(lengths)-1] {
		rank += n
		for passed+pieces[piece].estimate <= rank {
			passed += pieces[piece].estimate
			piece++
		}
		b, start, offset := &boundary{rank: rank}, pieces[piece].start, rank-passed
		if offset == 0 || offset > levelPages*page {
			b.rank, b.at = passed, start
			if passed == 0 || len(bounds) > 0 && passed <= bounds[len(bounds)-1].rank {
				continue // it is known
			}
		} else {
			group.Go(func() { b.at, _ = find(start, offset) }) // without it pieces are less even
		}
		bounds = append(bounds, b)
	}
	group.Wait()
	even, begun := make([]stretch, 0, len(bounds)+1), int64(0)
	for _, b := range bounds {
		if b.at == nil || whole.start != nil && keyspace.Compare(b.at, whole.start) <= 0 || !whole.holds(b.at) {
			return pieces
		}
		piece := whole
		piece.end, piece.samples, piece.estimate = b.at, whole.until(b.at), b.rank-begun
		even, whole, begun = append(even, piece), whole.from(b.at, whole.estimate-piece.estimate), b.rank
	}
	even = append(even, whole)
	for i := range even {
		even[i].workers = portions(even[i].estimate, portion)
	}
	return even
}

// levelPages is how many pages a boundary may be behind the beginning of its piece that is looked
// for: a query passes so many keys while the job's start waits.
const levelPages = 2 * nearPages

// shares returns how many of n entities each piece gets: a portion, or some if a total of entities
// has more portions than a range can be cut into pieces. They have full pages, and what is left
// over is spread over some of them, about a third of a page each, or over all. The price is as many
// pages more that are not full.
func shares(n, portion, total, page int64) []int64 {
	each := portion * ((total/portion + maxFanOut - 1) / maxFanOut)
	pieces := min(max(1, (n+each/2)/each), maxFanOut)
	if n < pieces*page {
		pieces = (n + page - 1) / page
		lengths := slices.Repeat([]int64{page}, int(pieces))
		lengths[pieces-1] = n - (pieces-1)*page
		return lengths
	}
	each = n / pieces / page * page
	rest := n - pieces*each
	lengths := slices.Repeat([]int64{each}, int(pieces))
	longer := min(pieces, (3*rest+page-1)/page)
	for i := range longer {
		lengths[i] += rest / longer
		if i < rest%longer {
			lengths[i]++
		}
	}
	return lengths
}
