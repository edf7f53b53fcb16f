package split

import (
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// Balance moves the boundaries between neighbouring pieces (parts of a range) whose entities were
// counted. After that, each has about one worker's fair share. A piece whose count has reached its
// limit keeps its boundaries. If a new boundary can't be found, the pieces next to it keep the old
// one.
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
// The argument total is the job's number of entities, and page the number in a full page. To find a
// new boundary, it searches from the start of the piece that contains the boundary. If the boundary
// is more than BalancePages away, it uses this start as the boundary.
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
				continue // this boundary needs no search
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
// the piece that contains it. A query reads all keys between the two to find the boundary, and the
// job's start waits for this query.
const BalancePages = 2 * nearPages

// ShareLengths returns the numbers of entities in the pieces into which a range with n entities is
// cut. Each piece is one worker's fair share, of fair entities. If the job has more than MaxFanOut
// fair shares among its total entities, each piece is several of them.
//
// Pieces consist of full pages of page entities. A small remainder is spread over some pieces: each
// of them gets up to a third of a page, and up to a twentieth of the piece. A larger remainder is
// spread over all pieces. A piece with a part of the remainder has one page that is not full. If
// there is less than a page for each piece, pieces are shorter, see leastFirst.
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
// for each worker. Only the last piece may have fewer. Shorter pieces would cost too much, because
// each needs a task, which reads two records and writes two.
const leastFirst = 50

// shortLengths returns the lengths of the pieces of n entities if there is less than one page for
// each worker: see [ShareLengths].
func shortLengths(n, workers, page int64) []int64 {
	each := min(page, max((n+workers-1)/workers, leastFirst))
	lengths := slices.Repeat([]int64{each}, int((n+each-1)/each))
	lengths[len(lengths)-1] = n - each*int64(len(lengths)-1)
	return lengths
}
