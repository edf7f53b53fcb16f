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

// unsuspected cuts a range whose last page killed its process. It cuts after one page of the job's
// usual size. The killed page was at most that large, so the entity at fault lies before the cut.
// The part after the cut is not suspected. unsuspected returns nil if the range ends with that
// page.
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

// A prefix is a function that returns the positions of a range's first entities, as far as they
// were read. A search for the n-th entity can then start at the last of them. If start is true, n
// counts from the start of the range. The function may wait for reads under way.
type prefix func(n int64, start bool) source.Prefix

// planCut sets plan.Pieces if the range should be cut, and decides where. Boundaries that are not
// among the keys read so far have to be searched; planCut prepares that search.
func (p *Planner) planCut(ctx context.Context, plan *Plan, s split.Piece, root bool, size int, known prefix) {
	t := p.task(root)
	c := p.Strategy.Decide(s, t)
	if root && p.weighed != nil {
		c = split.CutPlan{Pieces: int64(len(p.weighed)), Samples: true, First: true}
	}
	if c.Pieces <= 1 || p.mustNotCut() {
		return
	}
	if c.Keep >= t.Page {
		c.Keep = max(c.Keep, int64(size)) // the page included
	}
	_, c.Until = p.local.Bounds()
	p.later(ctx, plan, c, s, t, known)
}

// Load returns what split.Load.Keep needs to decide how many entities the task gives away. It
// counts what remains after the first dealt entities of the plan's page. The mapper's function
// takes the time each for one of these entities. The result ok is false if the task can't give any
// of them away.
func (p *Planner) Load(plan Plan, dealt int, each time.Duration) (l split.Load, ok bool) {
	l = split.Load{Left: plan.Rest().Estimate - int64(dealt), Here: each, Full: p.job.PageSize, Page: p.record.PageSize,
		Workers: p.job.Workers}
	if p.keys != nil {
		l.Query = p.keys.Waited()
	}
	return l, plan.Pieces == nil && plan.known != nil && l.Left > 0 && p.Strategy.Gives(p.task(false)) &&
		!p.record.Solo && (!p.Query.Many() || p.record.Kind != "")
}

// Rest returns the plan's range as a piece for one worker. Use it for a page that started before
// the range was cut. The number of entities is exact if the page is the range's last one; otherwise
// it is the estimate from the time of the plan.
func (p Plan) Rest() split.Piece {
	s := p.Range
	s.Workers = 1
	if p.Next == nil {
		s.Estimate, s.Exact = int64(len(p.At)), true
	}
	return s
}

// Give cuts what remains of the range after the first dealt entities of the plan's page. Its first
// piece, of keep entities, stays with this task. The other pieces have each entities and become new
// tasks. It returns all pieces, in order.
func (p *Planner) Give(ctx context.Context, plan Plan, dealt int, keep, each int64) ([]split.Piece, error) {
	s := plan.Rest()
	pieces, err := s.Give(int64(dealt), keep, each, p.job.Workers).Apply(s, p.finder(ctx, s, plan.known))
	if err == nil && !split.Ordered(pieces) {
		err = ErrCut
	}
	return pieces, err
}

// task returns the facts about this task by which package split decides cuts. Set root for a range
// that this task samples and counts, such as the job's first one.
func (p *Planner) task(root bool) split.Task {
	return split.Task{Root: root, Blind: !p.Source.Counts(), Divided: p.divided, Page: p.pageToCut()}
}

// mustNotCut reports whether the range must stay whole: it is too short, or suspected of killing
// its process.
func (p *Planner) mustNotCut() bool { return p.whole == p.record.ID || p.record.Solo }

// count counts the range's entities, unless split decides without the number, and stores the result
// in s. It reports whether the number in s is exact.
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
	if p.counted && s.Estimate > 0 && s.Workers <= 1 { // a range of one worker is planned the same way if it is longer
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
		look.Weigh = func(pieces []split.Piece) []split.Piece { return p.weigh(ctx, p.local, s.Workers, page, pieces) }
	}
	found, err := look.Run(ctx, p.Strategy, s.Workers)
	if err != nil {
		return fmt.Errorf("survey the root: %w", err)
	}
	s.Samples, s.Estimate, s.Exact, s.FairShare, p.weighed = found.Samples, found.Estimate, found.Exact,
		found.Estimate/s.Workers, found.Pieces
	job, some := p.job.Ref(), found.Samples
	if len(some) == 0 {
		if some, err = look.Next(); err != nil {
			return err
		}
	}
	p.entitySize = inBackground(func() int64 {
		n, _ := look.EntitySize(ctx, some) // an error is left out: the size only helps
		p.Paces.Expect(job, n)
		return n
	})
	if !p.Query.Many() && !p.Starts {
		p.unsharded = inBackground(func() int64 { return look.Unsharded(ctx) })
	}
	return nil
}

// inBackground starts f in a goroutine, and returns a function that waits for f and returns its
// result.
func inBackground[T any](f func() T) func() T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return sync.OnceValue(func() T { return <-result })
}

// later carries out the cut c of the piece s in the background, and sets plan.Pieces to a function
// that waits for the pieces. If the range is cut before its page, the search for boundaries starts
// at once; otherwise Plan.Progress starts it. The goroutine uses only values that do not change in
// the meantime.
func (p *Planner) later(ctx context.Context, plan *Plan, c split.CutPlan, s split.Piece, t split.Task, known prefix) {
	var pieces []split.Piece
	var err error
	var begun atomic.Bool
	local, find, counted := p.local, p.finder(ctx, s, known), p.weighed
	ready := make(chan struct{})
	apply := func() {
		defer close(ready)
		if !t.Root || counted == nil {
			if pieces, err = c.Apply(s, find); err == nil && !split.Ordered(pieces) {
				err = ErrCut
			}
			if err == nil && t.Root && p.Strategy.Adaptive() && c.CountsPieces(s) {
				counted = p.weigh(ctx, local, s.Workers, t.Page, pieces)
			}
		}
		if t.Root && counted != nil {
			pieces = split.Balance(counted, t.Page, find)
			if len(pieces) == 1 { // the range is short
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

// weigh counts the entities of each piece, with concurrent calls, and returns the pieces with these
// numbers. If the database can't count, it returns them unchanged.
func (p *Planner) weigh(
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
	if p.Query.Many() { // other workers process other spaces
		total := int64(0)
		for _, n := range counts {
			total += n
		}
		workers = max(1, min(workers, total/(split.RootPages*page)))
	}
	return split.WithCounts(pieces, counts, most, workers)
}

// finder returns a function that finds the n-th entity of a range, see split.Finder. It answers
// from the positions in known if it can, and otherwise queries the database.
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

// ErrCut says that the pieces of a cut are not in order, which is a bug in scattermap.
var ErrCut = fault.Fatal(errors.New("a range was cut into pieces that are not in order: this is a bug in " +
	"scattermap, please report it"))

// EntitySize returns the mean size of an entity in bytes. It returns 0 if that is unknown, because
// the planner has not surveyed the range.
func (p *Planner) EntitySize() int64 {
	if p.entitySize == nil {
		return 0
	}
	return p.entitySize()
}

// AwaitCounts waits for two numbers about the job's first range: the mean size of an entity, and
// how many entities lack the property in ShardBy. If this planner has not counted the latter,
// AwaitCounts does.
func (p *Planner) AwaitCounts(ctx context.Context) {
	if p.unsharded == nil { // an earlier delivery has cut the range
		look := survey.Survey{Source: p.Source, Query: p.Query}
		p.unsharded = sync.OnceValue(func() int64 { return look.Unsharded(ctx) })
	}
	p.unsharded()
	p.EntitySize()
}

// Unsharded returns how many entities of the query lack the property in ShardBy, so the job does
// not process them. Call AwaitCounts first. A negative number means unknown.
func (p *Planner) Unsharded() int64 {
	if p.unsharded == nil {
		return 0
	}
	return p.unsharded()
}
