package estimate

import (
	"context"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// A VirtualKind is a kind without stored entities, so it can have any size. A function calculates
// the key of each entity from its rank. The rank is the key's place in the order of keys, counted
// from 0.
type VirtualKind struct {
	N   int64
	Key func(rank int64) *datastore.Key // returns the key with a rank
}

// SequentialKey returns the key with the given rank (place in the order of keys, counted from 0) in
// a kind with the IDs 1, 2, 3 and so on.
func SequentialKey(rank int64) *datastore.Key { return datastore.IDKey("K", rank+1, nil) }

// begin returns the rank of the first entity in a range that starts at p. A nil position is the
// start of the kind.
func (v VirtualKind) begin(p *keyspace.Position) int64 {
	if p == nil {
		return 0
	}
	return int64(sort.Search(int(v.N), func(i int) bool {
		return keyspace.Compare(keyspace.At(v.Key(int64(i))), p) >= 0
	}))
}

func (v VirtualKind) end(p *keyspace.Position) int64 {
	if p == nil {
		return v.N
	}
	return v.begin(p)
}

// sample returns the positions of up to n random entities, in ascending order.
func (v VirtualKind) sample(rng *rand.Rand, n int) []*keyspace.Position {
	var keys []*datastore.Key
	seen := make(map[int64]bool, n)
	for len(keys) < n && int64(len(keys)) < v.N {
		if rank := rng.Int64N(v.N); !seen[rank] {
			seen[rank] = true
			keys = append(keys, v.Key(rank))
		}
	}
	return keyspace.Sort(keyspace.AtAll(keys))
}

// Times are the durations of calls that a simulation assumes.
type Times struct {
	Query    time.Duration // the time of a query or a lookup
	Key      time.Duration // the additional time for each key that a query reads
	Commit   time.Duration // the time of a commit, with the transaction's start and read
	Enqueue  time.Duration // the time to enqueue one task, if several are enqueued at the same time
	Dispatch time.Duration // the time from a task's creation in the queue to its delivery to a worker
	Page     time.Duration // the time of all calls of the mapper's function in a page
}

// UsualTimes returns typical durations of calls for a simulation. Package bench uses the same ones.
// The argument parallel is the number of tasks that a process enqueues at the same time.
func UsualTimes(parallel int) Times {
	return Times{
		Query:    20 * time.Millisecond,
		Key:      5 * time.Microsecond,
		Commit:   55 * time.Millisecond,
		Enqueue:  5 * time.Millisecond / time.Duration(parallel),
		Dispatch: 50 * time.Millisecond,
		Page:     100 * time.Millisecond,
	}
}

// queueDispatches is the largest number of tasks that a queue delivers in a second [the quotas page
// of Cloud Tasks].
const queueDispatches = 500

// A Model is the result of a simulation of how a job's query is split into ranges.
type Model struct {
	kind          VirtualKind
	workers, page int64
	times         Times
	Tasks         int64
	Pages         int64
	Depth         int64
	Done          int64 // number of entities in all simulated pages
	LargestRecord int   // size of the largest range's record that a task inserts, in bytes
	LargestCommit int   // the largest total size of the records that one commit inserts, in bytes

	// counted are the parts into which the first range is cut, with counts of their entities. It is
	// nil if nothing was counted before the cut.
	counted []split.Piece

	// begins has the time when each task starts its first page, counted from the job's start. It
	// assumes that the queue can deliver any number of tasks at once.
	begins []time.Duration
}

// Simulate simulates how tasks split a kind into ranges for the given number of workers, and into
// pages of the given number of entities. It uses the real rules of package split.
func Simulate(ctx context.Context, kind VirtualKind, workers, page int64, times Times) (*Model, error) {
	m := &Model{kind: kind, workers: workers, page: page, times: times}
	rng := rand.New(rand.NewPCG(1, 0))
	var sp split.Strategy
	s := split.Piece{Samples: kind.sample(rng, query.Batch), Workers: workers}
	ranks := []split.Rank{{Before: page}, {Before: split.RankPages * page}}
	for i, r := range ranks {
		if r.Before < kind.N {
			ranks[i].At = keyspace.At(kind.Key(r.Before))
		}
	}
	// The keys for the sample and for the first page are read at the same time.
	at := times.Dispatch + times.Query + max(m.reading(len(s.Samples)), m.reading(int(page)))
	known := false
	if ranks[0].At == nil {
		s.Estimate, s.Exact, known = kind.N, kind.N > 0, true
	} else if cells := split.CellsOf(s.Samples, query.Batch, ranks[0]); workers > 1 && cells > 1 {
		m.counted = m.countPieces(workers, split.Cells(s, cells), &at)
		if s.Estimate, known = split.MostlyCounted(m.counted); !known {
			m.counted = nil
		}
	}
	estimate := func() int64 {
		if rough := split.EstimateFrom(s.Samples, ranks); rough > 0 && rough <= split.MostCountedPieces {
			return rough
		}
		return split.EstimateBy(s.Samples, ranks, split.MostAwaited, func(before *keyspace.Position) (int64, bool) {
			n := min(split.MostAwaited, kind.begin(before))
			at += times.Query + time.Duration(n)*times.Key
			return n, true
		})
	}
	if !known { // the sample is read again while the first pages are counted
		s.Samples = kind.sample(rng, sp.SampleSize(workers))
		at += max(m.reading(len(s.Samples)), times.Query+time.Duration(split.CountedPages*page)*times.Key)
		if kind.N < split.CountedPages*page {
			s.Estimate, s.Exact, known = kind.N, true, true
		} else {
			s.Estimate = estimate()
		}
	}
	if more := split.SamplesFor(s.Estimate, page, workers); !known && more > len(s.Samples) {
		s.Samples = kind.sample(rng, more)
		at += m.reading(more)
		s.Estimate = estimate()
	}
	s.FairShare = s.Estimate / workers
	m.task(ctx, sp, &record.Range{Job: "model", ID: record.RangeID("model", 0), PageSize: page}, s, at)
	return m, ctx.Err()
}

// reading returns how long a query for this number of keys takes.
func (m *Model) reading(keys int) time.Duration {
	return time.Duration(keys/query.Batch+1)*m.times.Query + time.Duration(keys)*m.times.Key
}

// task simulates the task of the range r, and then the tasks of all its children, until ctx is
// done. The piece s is the range as package split sees it. The argument at is the simulated time at
// which the task has read the data for its first cut.
func (m *Model) task(ctx context.Context, sp split.Strategy, r *record.Range, s split.Piece, at time.Duration) {
	m.Tasks++
	m.Depth = max(m.Depth, r.Depth)
	type child struct {
		record *record.Range
		piece  split.Piece
		at     time.Duration
	}
	var children []child
	give := func(pieces []split.Piece, enqueued time.Duration) time.Duration {
		size := 0
		for _, piece := range pieces[1:] {
			record := r.Child(piece, time.Time{})
			bytes := record.Size()
			m.LargestRecord, size = max(m.LargestRecord, bytes), size+bytes
			piece.Samples = record.Samples
			enqueued += m.times.Enqueue
			children = append(children, child{record, piece, enqueued + m.times.Dispatch + m.times.Query})
		}
		m.LargestCommit = max(m.LargestCommit, size)
		return enqueued
	}
	first, end := m.kind.begin(s.Start), m.kind.end(s.End)
	for root, pages := r.Depth == 0, 0; ; {
		more := end-first > m.page
		var c split.CutPlan
		if more {
			s = s.Beyond(m.page)
			c = m.decide(sp, &s, split.Task{Root: root, Divided: pages > 0, Page: m.page}, end-first)
		}
		if c.Pieces > 1 {
			pieces, _ := c.Apply(s, m.find(end))
			if root && c.CountsPieces(s) {
				pieces = m.balanced(s, pieces, end, &at)
			}
			root = false
			if !c.Samples {
				at += time.Duration(len(pieces)/split.FindParallel+1) * m.times.Query
			}
			enqueued := at + m.times.Commit
			if !c.First {
				enqueued += m.times.Page
			}
			enqueued = give(pieces, enqueued)
			s, end = pieces[0], m.kind.end(pieces[0].End)
			if c.First && len(pieces) > 1 {
				at = enqueued
				continue
			}
		}
		if pages == 0 {
			m.begins = append(m.begins, at)
		}
		pages++
		m.Pages++
		m.Done += max(0, min(m.page, end-first))
		at += m.times.Page
		if first += m.page; first >= end || ctx.Err() != nil {
			break
		}
		s = s.From(keyspace.At(m.kind.Key(first)), s.Estimate-m.page)
		each := m.times.Page / time.Duration(m.page)
		// While the job runs, fewer entities remain for each worker. At least an eighth of the
		// share is left, because some tasks start late.
		share := max(s.FairShare-int64((at-m.begins[0])/each), s.FairShare/8)
		if t := (split.Task{Divided: true}); more && sp.Gives(t) && !t.MayCut(s) {
			l := split.Load{Left: s.Estimate, Here: each, Page: m.page, Full: m.page, Workers: m.workers,
				Outlook: split.Unseen(share, m.workers, each)}
			if keep, length := l.Keep(); keep < l.Left {
				pieces, _ := s.Give(0, keep, length, m.workers).Apply(s, m.find(end))
				give(pieces, at+m.times.Commit)
				s, end = pieces[0], m.kind.end(pieces[0].End)
				if first >= end {
					break
				}
			}
		}
	}
	for _, c := range children {
		m.task(ctx, sp, c.record, c.piece, c.at)
	}
}

// decide returns where a piece is cut. If the strategy needs a count, the simulated task first
// counts the piece's entities. The argument left is their true number.
func (m *Model) decide(sp split.Strategy, s *split.Piece, t split.Task, left int64) split.CutPlan {
	if most := sp.Counts(*s, t); most > 0 {
		*s = s.Counted(min(most, left), most)
	}
	return sp.Decide(*s, t)
}

// balanced moves the cuts of the job's first range so that its pieces have about equal numbers of
// entities. For this, it counts the entities of each piece, as a task does. It adds the time for
// counts and queries to *at.
func (m *Model) balanced(s split.Piece, pieces []split.Piece, end int64, at *time.Duration) []split.Piece {
	if m.counted == nil {
		m.counted = m.countPieces(s.Workers, pieces, at)
	}
	*at += m.times.Query + time.Duration(min(longest(m.counted), split.BalancePages*m.page))*m.times.Key
	return split.Balance(m.counted, m.page, m.find(end))
}

// longest returns the number of entities in the longest of some pieces.
func longest(pieces []split.Piece) int64 {
	most := int64(0)
	for _, p := range pieces {
		most = max(most, p.Estimate)
	}
	return most
}

// countPieces returns the pieces with the true number of entities in each, as if the simulated task
// had counted them. It adds the time of these concurrent counts to *at.
func (m *Model) countPieces(workers int64, pieces []split.Piece, at *time.Duration) []split.Piece {
	counts, most, longest := make([]int64, len(pieces)), split.MostInPiece(len(pieces)), int64(0)
	for i, p := range pieces {
		counts[i] = min(most, m.kind.end(p.End)-m.kind.begin(p.Start))
		longest = max(longest, counts[i])
	}
	*at += m.times.Query + time.Duration(longest)*m.times.Key
	return split.WithCounts(pieces, counts, most, workers)
}

// find returns a [split.Finder] for the simulated entities: a function that returns the position n
// entities after a given one. The range ends before the entity with the rank end.
func (m *Model) find(end int64) split.Finder {
	return func(from *keyspace.Position, n int64) (*keyspace.Position, error) {
		if rank := m.kind.begin(from) + n; rank < end {
			return keyspace.At(m.kind.Key(rank)), nil
		}
		return nil, nil
	}
}

// busy returns how many of the given workers get a task. This can be fewer than all, because there
// may be fewer tasks than workers.
func (m *Model) busy(workers int64) int64 { return min(workers, m.Tasks) }

// Start returns how long it takes until the given number of workers have a task, if the queue
// delivers tasks as fast as it can.
func (m *Model) Start(workers int64) time.Duration {
	slices.Sort(m.begins)
	var last time.Duration
	for _, at := range m.begins[:min(m.busy(workers), int64(len(m.begins)))] {
		last = max(at, last+time.Second/queueDispatches)
	}
	return last
}

// Takes returns how long the job takes with the given number of workers. It assumes that all of
// them start at the same time, and wait only for the queue.
func (m *Model) Takes(workers int64) time.Duration {
	pages := float64(m.times.Page) * float64(m.Pages) / float64(m.busy(workers))
	begun := float64(m.Tasks) * float64(time.Second) / queueDispatches
	return max(m.Start(workers)+time.Duration(min(pages, float64(pace.MaxTakes))),
		time.Duration(min(begun, float64(pace.MaxTakes))))
}
