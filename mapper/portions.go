package mapper

import (
	"slices"
	"sync"
)

// inPortions moves the boundaries between the root's pieces, whose entities were counted: so
// that each has as many as the others, and its workers one portion each. Boundaries are
// looked for from the beginning of a piece on. Pieces that were not counted to their ends stay
// as they are, and so do all of a row in which a boundary can't be found.
func inPortions(pieces []stretch, workers, page int64, find finder) []stretch {
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
		even = append(even, levelled(pieces[:n], workers, page, find)...)
		pieces = pieces[n:]
	}
	return even
}

// levelled is inPortions for pieces that follow each other and were all counted.
func levelled(pieces []stretch, workers, page int64, find finder) []stretch {
	portion, whole := pieces[0].portion, joined(pieces)
	lengths := shares(whole.estimate, portion, workers, page)
	bounds := make([]*position, len(lengths)-1)
	var group sync.WaitGroup
	rank, passed, piece := int64(0), int64(0), 0
	for i := range bounds {
		rank += lengths[i]
		for passed+pieces[piece].estimate <= rank {
			passed += pieces[piece].estimate
			piece++
		}
		start, offset := pieces[piece].start, rank-passed
		if offset == 0 {
			bounds[i] = start
			continue
		}
		group.Go(func() { bounds[i], _ = find(start, offset) }) // without it pieces are less even
	}
	group.Wait()
	even := make([]stretch, 0, len(lengths))
	for i, at := range bounds {
		if at == nil || whole.start != nil && comparePositions(at, whole.start) <= 0 || !whole.holds(at) {
			return pieces
		}
		piece := whole
		piece.end, piece.samples, piece.estimate = at, whole.until(at), lengths[i]
		even, whole = append(even, piece), whole.from(at, whole.estimate-lengths[i])
	}
	even = append(even, whole)
	for i := range even {
		even[i].workers = max(1, (even[i].estimate+portion/2)/portion)
	}
	return even
}

// shares returns how many of n entities each piece gets: a portion, or some where there are more
// workers than a range can be cut into pieces. These have full pages, and what is left over is
// spread over some of them, a third of a page or more each: the price is as many pages more that
// are not full.
func shares(n, portion, workers, page int64) []int64 {
	together := (workers + maxFanOut - 1) / maxFanOut
	pieces := max(1, (n+portion*together/2)/(portion*together))
	if n < pieces*page {
		pieces = (n + page - 1) / page
		lengths := slices.Repeat([]int64{page}, int(pieces))
		lengths[pieces-1] = n - (pieces-1)*page
		return lengths
	}
	each := n / pieces / page * page
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

// joined returns neighbours as one.
func joined(pieces []stretch) stretch {
	whole := pieces[0]
	for _, p := range pieces[1:] {
		whole.samples = append(whole.samples, p.start)
		whole.samples = append(whole.samples, p.samples...)
		whole.end, whole.estimate = p.end, whole.estimate+p.estimate
	}
	return whole
}
