package mapper

import (
	"context"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/tasks"
)

// A virtualKind is a kind of any size that is nowhere in memory: its keys are
// calculated from their ranks.
type virtualKind struct {
	n   int64
	key func(rank int64) *datastore.Key // in key order
}

// sequentialKey is the key of a kind whose entities have the ids 1, 2, 3.
func sequentialKey(rank int64) *datastore.Key { return datastore.IDKey("K", rank+1, nil) }

// begin returns how many entities are before a range that begins at a position, and end before
// one that ends there. nil is the end of the kind.
func (v virtualKind) begin(p *keyspace.Position) int64 {
	if p == nil {
		return 0
	}
	return int64(sort.Search(int(v.n), func(i int) bool { return keyspace.Compare(keyspace.At(v.key(int64(i))), p) >= 0 }))
}

func (v virtualKind) end(p *keyspace.Position) int64 {
	if p == nil {
		return v.n
	}
	return v.begin(p)
}

// sample returns up to n random positions, in order.
func (v virtualKind) sample(rng *rand.Rand, n int) []*keyspace.Position {
	var keys []*datastore.Key
	seen := make(map[int64]bool, n)
	for len(keys) < n && int64(len(keys)) < v.n {
		if rank := rng.Int64N(v.n); !seen[rank] {
			seen[rank] = true
			keys = append(keys, v.key(rank))
		}
	}
	return keyspace.Sort(keyspace.AtAll(keys))
}

// callTimes are what calls take in a model.
type callTimes struct{ query, key, commit, enqueue, dispatch, page time.Duration }

// usualTimes are those of package bench: a query, or a lookup; a key that it passes; a
// commit with the begin and the read before it; the creation of a task, and its way to the
// worker; and all calls of a page.
var usualTimes = callTimes{
	query:    20 * time.Millisecond,
	key:      5 * time.Microsecond,
	commit:   55 * time.Millisecond,
	enqueue:  5 * time.Millisecond,
	dispatch: 50 * time.Millisecond,
	page:     100 * time.Millisecond,
}

// queueDispatches is how many tasks a queue begins in a second, as the quotas page of
// Cloud Tasks has it.
const queueDispatches = 500

// A model is what splitting makes of a job.
type model struct {
	kind   virtualKind
	page   int64
	usual  int64 // of pages, if the function is as fast as the first ones expect
	times  callTimes
	tasks  int64
	pages  int64
	depth  int64
	done   int64 // entities
	record int   // the largest that a task inserts, in bytes
	commit int   // the largest sum of them

	weighed []split.Piece // the root's pieces, if they were counted before it was cut

	begins []time.Duration // of tasks, if the queue had no limits
}

// runModel does with a kind what tasks do with ranges.
func runModel(ctx context.Context, kind virtualKind, workers, page, usual int64, times callTimes) (*model, error) {
	m := &model{kind: kind, page: page, usual: usual, times: times}
	rng := rand.New(rand.NewPCG(1, 0))
	var sp split.Strategy
	s := split.Piece{Samples: kind.sample(rng, sp.SampleSize(workers)), Workers: workers}
	milestones := make([]split.Rank, len(split.RankPages))
	for i, pages := range split.RankPages {
		milestones[i].Before = pages * page
		if milestones[i].Before < kind.n {
			milestones[i].At = keyspace.At(kind.key(milestones[i].Before))
		}
	}
	at := times.dispatch + times.query + max(m.reading(len(s.Samples)), times.query+time.Duration(milestones[len(milestones)-1].Before)*times.key)
	estimate := func() int64 {
		if rough := split.EstimateFrom(s.Samples, milestones); rough > 0 && rough <= split.MostCountedPieces {
			return rough
		}
		return split.EstimateBy(s.Samples, milestones, func(before *keyspace.Position) (int64, bool) {
			n := min(split.MostCounted, kind.begin(before))
			at += times.query + time.Duration(n)*times.key
			return n, true
		})
	}
	known := false
	if workers > 1 && len(s.Samples) == sp.SampleSize(workers) && split.EstimateFrom(s.Samples, milestones) == 0 {
		m.weighed = m.weigh(workers, split.CutAtAllSamples(s), &at)
		if s.Estimate, known = split.MostlyCounted(m.weighed); !known {
			m.weighed = nil
		}
	}
	if !known {
		s.Estimate = estimate()
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

// reading returns how long it takes to read so many keys.
func (m *model) reading(keys int) time.Duration {
	return time.Duration(keys/source.QueryBatch+1)*m.times.query + time.Duration(keys)*m.times.key
}

// task does the task of a range, which has found out at a time where it may cut, and the
// tasks of all its children, until the context is done.
func (m *model) task(ctx context.Context, sp split.Strategy, r *record.Range, s split.Piece, at time.Duration) {
	m.tasks++
	m.depth = max(m.depth, r.Depth)
	type child struct {
		record *record.Range
		piece  split.Piece
		at     time.Duration
	}
	var children []child
	first, end := m.kind.begin(s.Start), m.kind.end(s.End)
	for root, pages := r.Depth == 0, 0; ; {
		more := end-first > m.page
		if more && s.Estimate <= m.page {
			s.Estimate, s.Exact = 0, false // it was too low
		}
		var c split.CutPlan
		if more && (pages == 0 || s.Estimate == 0 || s.Workers > 1) {
			if most := sp.Counts(s, root, m.page, m.usual); most > 0 {
				s = s.Counted(min(most, end-first), most)
			}
			c = sp.Plan(s, root, m.page, m.usual)
		}
		if c.Pieces > 1 {
			pieces, _ := c.Apply(s, m.find(end))
			if root && c.CountsPieces(s) {
				if m.weighed == nil {
					m.weighed = m.weigh(s.Workers, pieces, &at)
				}
				at += m.times.query + time.Duration(min(longest(m.weighed), split.BalancePages*m.page))*m.times.key
				pieces = split.Balance(m.weighed, m.page, m.find(end))
			}
			root = false
			if !c.Samples {
				at += time.Duration(len(pieces)/split.FindParallel+1) * m.times.query
			}
			enqueued := at + m.times.commit
			if !c.First {
				enqueued += m.times.page
			}
			size := 0
			for _, piece := range pieces[1:] {
				record := r.Child(piece, time.Time{})
				bytes := sizeOf(record)
				m.record, size = max(m.record, bytes), size+bytes
				piece.Samples = record.Samples
				enqueued += m.times.enqueue / tasks.Parallel
				children = append(children, child{record, piece, enqueued + m.times.dispatch + m.times.query})
			}
			m.commit = max(m.commit, size)
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
		m.pages++
		m.done += max(0, min(m.page, end-first))
		at += m.times.page
		if first += m.page; first >= end || ctx.Err() != nil {
			break
		}
		s = s.From(keyspace.At(m.kind.key(first)), s.Estimate-m.page)
	}
	for _, c := range children {
		m.task(ctx, sp, c.record, c.piece, c.at)
	}
}

// longest returns how many entities the longest of some pieces has.
func longest(pieces []split.Piece) int64 {
	most := int64(0)
	for _, p := range pieces {
		most = max(most, p.Estimate)
	}
	return most
}

// weigh counts the entities of pieces, all at the same time.
func (m *model) weigh(workers int64, pieces []split.Piece, at *time.Duration) []split.Piece {
	counts, most, longest := make([]int64, len(pieces)), split.MostInPiece(len(pieces)), int64(0)
	for i, p := range pieces {
		counts[i] = min(most, m.kind.end(p.End)-m.kind.begin(p.Start))
		longest = max(longest, counts[i])
	}
	*at += m.times.query + time.Duration(longest)*m.times.key
	return split.WithCounts(pieces, counts, most, workers, m.page)
}

// find returns a finder for a range that ends before a rank.
func (m *model) find(end int64) split.Finder {
	return func(from *keyspace.Position, n int64) (*keyspace.Position, error) {
		if rank := m.kind.begin(from) + n; rank < end {
			return keyspace.At(m.kind.key(rank)), nil
		}
		return nil, nil
	}
}

// sizeOf returns how many bytes a record has.
func sizeOf(r *record.Range) int {
	properties, err := datastore.SaveStruct(r)
	if err != nil {
		panic("mapper: a record can't be saved: " + err.Error())
	}
	return keyspace.PropertiesSize(properties)
}

// busy returns how many workers have something to do.
func (m *model) busy(workers int64) int64 { return min(workers, m.tasks) }

// start returns when so many workers have begun, if the queue begins as many tasks a
// second as it can.
func (m *model) start(workers int64) time.Duration {
	slices.Sort(m.begins)
	var last time.Duration
	for _, at := range m.begins[:min(m.busy(workers), int64(len(m.begins)))] {
		last = max(at, last+time.Second/queueDispatches)
	}
	return last
}

// takes returns how long the job takes on some workers, if they all begin at the same time
// and none of them waits but for the queue, which begins so many tasks a second.
func (m *model) takes(workers int64) time.Duration {
	pages := float64(m.times.page) * float64(m.pages) / float64(m.busy(workers))
	begun := float64(m.tasks) * float64(time.Second) / queueDispatches
	return max(m.start(workers)+time.Duration(min(pages, float64(pace.MaxTakes))), time.Duration(min(begun, float64(pace.MaxTakes))))
}
