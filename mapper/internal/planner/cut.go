package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/survey"
)

// unsuspected cuts a range whose last page has killed its process. That page had at most
// job.PageSize entities. So unsuspected cuts after this number of entities: the entity at fault
// comes before the cut, and the part after the cut is not suspected. If there is no such part, the
// function pieces is nil.
func (p *Planner) unsuspected(s split.Piece) (pieces func() ([]split.Piece, error), err error) {
	size := int(p.job.PageSize)
	found, err := p.ahead(p.keys.Peek(size + 1))
	if err != nil || len(found) <= size {
		return nil, err
	}
	own, rest := s, s.From(found[size], s.Estimate-int64(size))
	own.End, own.Estimate, own.Workers, own.Samples = found[size], int64(size), 1, s.Until(found[size])
	return func() ([]split.Piece, error) { return []split.Piece{own, rest}, nil }, nil
}

// A prefix is a function that returns the positions at the start of a range that were read so far.
// A search for the n-th entity can then start at the last of these. If start is true, n counts from
// the start of the range. The function may wait for a read in the background.
type prefix func(n int64, start bool) source.Prefix

// planCut decides whether and where the range is cut. If so, it sets plan.Pieces. It does not
// search for boundaries that are not among the keys read so far: it only prepares this search.
func (p *Planner) planCut(ctx context.Context, plan *Plan, s split.Piece, root bool, size int, known prefix) {
	t := p.task(root)
	c := p.Strategy.Decide(s, t)
	if root && p.countedPieces != nil {
		c = split.CutPlan{Pieces: int64(len(p.countedPieces)), Samples: true, First: true}
	}
	if c.Pieces <= 1 || p.mustNotCut() {
		return
	}
	if c.Keep >= t.Page {
		c.Keep = max(c.Keep, int64(size)) // the task also keeps the next page
	}
	_, c.Until = p.local.Bounds()
	p.later(ctx, plan, c, s, t, known)
}

// Load returns the facts by which [split.Load.Keep] decides how many entities the task gives to
// other workers. The task has already processed the first dealt entities of the plan's page. The
// argument each is the function's time for one entity. The bool ok is false if the task can't give
// any entities away.
func (p *Planner) Load(plan Plan, dealt int, each time.Duration) (l split.Load, ok bool) {
	l = split.Load{Left: plan.Rest().Estimate - int64(dealt), Here: each, Full: p.job.PageSize, Page: p.record.PageSize,
		Workers: p.job.Workers}
	if p.keys != nil {
		l.Query = p.keys.Waited()
	}
	return l, plan.Pieces == nil && plan.known != nil && l.Left > 0 && p.Strategy.Gives(p.task(false)) &&
		!p.record.Solo && (!p.Query.Many() || p.record.Kind != "")
}

// Rest returns the plan's range as a piece for one worker. If the page is the last one of the
// range, the piece has the exact number of entities. Otherwise it has the estimate from the time of
// the plan.
func (p Plan) Rest() split.Piece {
	s := p.Range
	s.Workers = 1
	if p.Next == nil {
		s.Estimate, s.Exact = int64(len(p.At)), true
	}
	return s
}

// Give cuts the range after the plan's page has started, so that other workers can take a part. The
// task has already processed the first dealt entities of the page, and keeps the next keep
// entities. The rest is cut into pieces of each or more entities, which get tasks of their own.
// Give returns all pieces in order. The first one is the task's own.
func (p *Planner) Give(ctx context.Context, plan Plan, dealt int, keep, each int64) ([]split.Piece, error) {
	s := plan.Rest()
	pieces, err := s.Give(int64(dealt), keep, each, p.job.Workers).Apply(s, p.finder(ctx, s, plan.known))
	if err == nil && !split.Ordered(pieces) {
		err = ErrCut
	}
	return pieces, err
}

// task returns the facts about this task by which package split decides where to cut. The argument
// root says that the task first samples and counts the range, as for a job's first range.
func (p *Planner) task(root bool) split.Task {
	return split.Task{Root: root, Blind: !p.Source.Counts(), Divided: p.divided, Page: p.pageToCut()}
}

// mustNotCut reports whether the range must not be cut, because KeepWhole was called or because it
// may have killed a process.
func (p *Planner) mustNotCut() bool { return p.whole == p.record.ID || p.record.Solo }

// count counts the range's entities if package split needs their number for a cut, and stores it in
// s. It reports whether the number in s is now exact.
func (p *Planner) count(ctx context.Context, s *split.Piece, root bool) (counted bool) {
	t := p.task(root)
	if p.mustNotCut() || !t.MayCut(*s) {
		return false
	}
	if s.Exact {
		return true
	}
	most := p.Strategy.Counts(*s, t)
	if most == 0 {
		return false
	}
	if p.counted && s.Estimate > 0 && s.Workers <= 1 { // a further count would not change the plan
		return false
	}
	p.counted = true
	n, known := p.Source.Count(ctx, p.local.Scans(s.Start, s.End), int(most))
	if known {
		*s = s.Counted(n, most)
	}
	return s.Exact
}

// survey samples the keys of the range and estimates how many entities it has. It stores both in s.
func (p *Planner) survey(ctx context.Context, s *split.Piece) error {
	s.Workers = p.job.Workers
	if p.Strategy.SampleSize(s.Workers) == 0 {
		return nil
	}
	next := p.keys.PeekLater(int(p.job.PageSize) + 1)
	look := survey.Survey{Source: p.Source, Query: p.local, Start: s.Start, End: s.End, Space: s.Space,
		Page: p.job.PageSize, Brief: p.Starts,
		Next: func() ([]*keyspace.Position, error) { return p.ahead(next()) }}
	if page := p.task(true).Page; p.Strategy.Adaptive() && s.Workers > 1 {
		look.CountPieces = func(pieces []split.Piece) []split.Piece {
			return p.countPieces(ctx, p.local, s.Workers, page, pieces)
		}
	}
	found, err := look.Run(ctx, p.Strategy, s.Workers)
	if err != nil {
		return fmt.Errorf("survey the root: %w", err)
	}
	s.Samples, s.Estimate, s.Exact, s.FairShare, p.countedPieces = found.Samples, found.Estimate, found.Exact,
		found.Estimate/s.Workers, found.Pieces
	job, some := p.job.Ref(), found.Samples
	if len(some) == 0 {
		if some, err = look.Next(); err != nil {
			return err
		}
	}
	p.entitySize = inBackground(func() int64 {
		n, _ := look.EntitySize(ctx, some) // an error is ignored, because the size only improves the plan
		p.Paces.Expect(job, n)
		return n
	})
	if !p.Query.Many() && !p.Starts {
		p.unsharded = inBackground(func() int64 { return look.Unsharded(ctx) })
	}
	return nil
}

// inBackground calls f in a goroutine. The function that it returns waits for the result of f and
// returns it.
func inBackground[T any](f func() T) func() T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return sync.OnceValue(func() T { return <-result })
}

// later carries out the cut c of the piece s in the background. It sets plan.Pieces to a function
// that waits for the resulting pieces. If the range is cut before its page is processed, the search
// for boundaries starts at once, and otherwise in the callback of [Plan.Progress]. The goroutine
// must not use fields of the Planner that may change meanwhile.
func (p *Planner) later(ctx context.Context, plan *Plan, c split.CutPlan, s split.Piece, t split.Task, known prefix) {
	var pieces []split.Piece
	var err error
	var begun atomic.Bool
	local, find, counted := p.local, p.finder(ctx, s, known), p.countedPieces
	ready := make(chan struct{})
	apply := func() {
		defer close(ready)
		if !t.Root || counted == nil {
			if pieces, err = c.Apply(s, find); err == nil && !split.Ordered(pieces) {
				err = ErrCut
			}
			if err == nil && t.Root && p.Strategy.Adaptive() && c.CountsPieces(s) {
				counted = p.countPieces(ctx, local, s.Workers, t.Page, pieces)
			}
		}
		if t.Root && counted != nil {
			pieces = split.Balance(counted, t.Page, find)
			if len(pieces) == 1 { // the range is shorter than assumed, so it is cut by the plan for short ranges
				pieces, err = p.Strategy.Decide(pieces[0], split.Task{Blind: t.Blind, Page: t.Page}).Apply(pieces[0],
					find)
			}
		}
	}
	plan.First = c.First
	plan.seek = func() {
		if !begun.Swap(true) {
			go apply()
		}
	}
	plan.Pieces = func() ([]split.Piece, error) {
		if p.unsought = !begun.Load(); p.unsought {
			return nil, nil
		}
		if <-ready; err != nil {
			return nil, err
		}
		return pieces, nil
	}
	if c.First || !p.Strategy.Adaptive() {
		plan.seek()
	}
}

// countPieces returns the pieces with their numbers of entities. It counts the pieces at the same
// time, each up to a limit. If the database can't count, it returns them unchanged.
func (p *Planner) countPieces(
	ctx context.Context, local query.Query, workers, page int64, pieces []split.Piece,
) []split.Piece {
	counts, known := make([]int64, len(pieces)), make([]bool, len(pieces))
	most := split.MostInPiece(len(pieces))
	var group sync.WaitGroup
	for i, piece := range pieces {
		group.Go(func() { counts[i], known[i] = p.Source.Count(ctx, local.Scans(piece.Start, piece.End), int(most)) })
	}
	group.Wait()
	if slices.Contains(known, false) {
		return pieces
	}
	if p.Query.Many() { // the job's other workers process other kinds and namespaces
		total := int64(0)
		for _, n := range counts {
			total += n
		}
		workers = max(1, min(workers, total/(split.RootPages*page)))
	}
	return split.WithCounts(pieces, counts, most, workers)
}

// finder returns a [split.Finder] for a range: a function that finds the n-th entity after a
// position. It looks among the positions that were read so far, and otherwise makes a query.
func (p *Planner) finder(ctx context.Context, s split.Piece, known prefix) split.Finder {
	local := p.local
	return func(from *keyspace.Position, n int64) (*keyspace.Position, error) {
		first, i := known(n, from == s.Start), 0
		if from != nil {
			i, _ = slices.BinarySearchFunc(first.At, from, keyspace.Compare)
		}
		if at := int64(i) + n; at < int64(len(first.At)) {
			if found := first.At[at]; s.Holds(found) {
				return found, nil
			}
			return nil, nil
		} else if first.All {
			return nil, nil
		}
		return p.Source.Find(ctx, local.Scans(from, s.End), n)
	}
}

// ErrCut says that the pieces of a cut are not in order, because of a bug in scattermap.
var ErrCut = fault.Fatal(errors.New("a range was cut into pieces that are not in order: this is a bug in " +
	"scattermap, please report it"))

// EntitySize returns the mean size of an entity in bytes, or 0 if this planner has not sampled
// entities.
func (p *Planner) EntitySize() int64 {
	if p.entitySize == nil {
		return 0
	}
	return p.entitySize()
}

// AwaitCounts waits for the results of [Planner.EntitySize] and [Planner.Unsharded], which are
// found in the background. If this planner has not started to count for Unsharded, AwaitCounts
// starts it.
func (p *Planner) AwaitCounts(ctx context.Context) {
	if p.unsharded == nil { // an earlier delivery of the task has cut the range
		look := survey.Survey{Source: p.Source, Query: p.Query}
		p.unsharded = sync.OnceValue(func() int64 { return look.Unsharded(ctx) })
	}
	p.unsharded()
	p.EntitySize()
}

// Unsharded returns how many entities the job skips because they lack the property in ShardBy. A
// negative number means unknown. Call AwaitCounts first.
func (p *Planner) Unsharded() int64 {
	if p.unsharded == nil {
		return 0
	}
	return p.unsharded()
}
