package split

import (
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// Balance moves the boundaries between pieces whose entities were counted, so that each worker gets
// about the same number: its fair share. A piece whose count has reached its limit keeps its
// boundaries. If a new boundary between neighbouring pieces can't be found, they keep their old
// ones.
func Balance(pieces []Piece, page int64, find Finder) []Piece {
	total := int64(0)
	for _, p := range pieces {
		total += p.Estimate
	}
	var even []Piece
	for len(pieces) > 0 {
		n := 0
		for n < len(pieces) && pieces[n].Exact {
			n++
		}
		if n == 0 {
			even, pieces = append(even, pieces[0]), pieces[1:]
			continue
		}
		even = append(even, balanceCounted(pieces[:n], total, page, find)...)
		pieces = pieces[n:]
	}
	return even
}

// balanceCounted does the work of Balance for neighbouring pieces that were all counted completely.
// The job has total entities. To find a new boundary, it searches from the start of the piece that
// contains it. If the boundary is too far from there, that start becomes the boundary.
func balanceCounted(pieces []Piece, total, page int64, find Finder) []Piece {
	fair, whole := pieces[0].FairShare, pieces[0]
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
	lengths := ShareLengths(whole.Estimate, fair, total, page)
	for _, n := range lengths[:len(lengths)-1] {
		rank += n
		for passed+pieces[piece].Estimate <= rank {
			passed += pieces[piece].Estimate
			piece++
		}
		b, start, offset := &boundary{rank: rank}, pieces[piece].Start, rank-passed
		if offset == 0 || offset > BalancePages*page {
			b.rank, b.at = passed, start
			if passed == 0 || len(bounds) > 0 && passed <= bounds[len(bounds)-1].rank {
				continue // the boundary is known
			}
		} else {
			group.Go(func() { b.at, _ = find(start, offset) }) // after an error, the pieces are only less equal
		}
		bounds = append(bounds, b)
	}
	group.Wait()
	even, begun := make([]Piece, 0, len(bounds)+1), int64(0)
	for _, b := range bounds {
		if b.at == nil || whole.Start != nil && keyspace.Compare(b.at, whole.Start) <= 0 || !whole.Holds(b.at) {
			return joined(pieces, max(fair, RootPages*page))
		}
		piece := whole
		piece.End, piece.Samples, piece.Estimate = b.at, whole.Until(b.at), b.rank-begun
		even, whole, begun = append(even, piece), whole.From(b.at, whole.Estimate-piece.Estimate), b.rank
	}
	even = append(even, whole)
	for i := range even {
		even[i].Workers = shareCount(even[i].Estimate, fair)
	}
	return even
}

// BalancePages is the largest distance, in pages of entities, of a new boundary from the start of
// its piece. The query that finds the boundary passes all keys between them, and the job's start
// waits for it.
const BalancePages = 2 * nearPages

// ShareLengths returns the numbers of entities in the pieces into which n entities are cut. Each
// piece is one worker's fair share. If the job's total is more than MaxFanOut fair shares, each
// piece is several of them.
//
// Pieces consist of full pages. A small remainder is spread over some pieces. Each of them gets up
// to a third of a page, and up to a twentieth of the piece. A larger remainder is spread over all
// pieces. A piece with a part of the remainder has one page that is not full. If there is less than
// a page for each piece, pieces are shorter, see leastFirst.
func ShareLengths(n, fair, total, page int64) []int64 {
	each := fair * ((total/fair + MaxFanOut - 1) / MaxFanOut)
	pieces := min(max(1, (n+each/2)/each), MaxFanOut)
	if n < pieces*page {
		return shortLengths(n, pieces, page)
	}
	each = n / pieces / page * page
	rest := n - pieces*each
	lengths := slices.Repeat([]int64{each}, int(pieces))
	longer := min(pieces, max((3*rest+page-1)/page, (20*rest+each-1)/each))
	for i := range longer {
		lengths[i] += rest / longer
		if i < rest%longer {
			lengths[i]++
		}
	}
	return lengths
}

// leastFirst is the least number of entities in a job's first pieces, if there is less than a page
// for each worker. Only the last piece may have fewer. The limit exists because each piece needs a
// task, which reads two records and writes two.
const leastFirst = 50

// shortLengths does the work of ShareLengths if there is less than a page of entities for each
// worker.
func shortLengths(n, workers, page int64) []int64 {
	each := min(page, max((n+workers-1)/workers, leastFirst))
	lengths := slices.Repeat([]int64{each}, int((n+each-1)/each))
	lengths[len(lengths)-1] = n - each*int64(len(lengths)-1)
	return lengths
}
