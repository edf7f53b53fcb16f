package planner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Planner reads the positions of a range's entities, and decides where the range is cut. It
// serves one delivery: first its range, and after each page the remaining part.
type Planner struct {
	Query    query.Query
	Source   source.Source
	Mode     function.Mode
	Strategy split.Strategy
	Starts   bool // whether the plan is for the start of a job, which waits only for short calls

	Paces *pace.Book[record.Ref] // the pace of each job in this process
	Wait  time.Duration          // the longest wait of a page for its job's rate

	job    *record.Job
	record *record.Range
	local  query.Query // the part of the query in the kind and namespace of the range

	keys     *source.Stream // reads keys from the range's start on
	counted  bool           // whether the planner has counted the range, or tried to
	unsought bool           // whether the range could be cut, but so far that was not worth it
	divided  bool           // whether one worker processes the rest, which is cut only if it would end late
	whole    string         // the ID of the range that must not be cut
	listed   string         // the ID of the range that must not be cut between kinds and namespaces again

	// Results of a survey, which samples and counts the range's entities. They are nil if this
	// planner has not surveyed the range.
	entitySize func() int64
	unsharded  func() int64  // how many entities lack the property in ShardBy, see record.Range
	weighed    []split.Piece // the range's pieces, if their entities were counted before the cut
}

// A Plan says which entities form the next page of a range, and into which pieces the range is cut.
type Plan struct {
	At   []*keyspace.Position // the page's entities, in the order of the read
	Next *keyspace.Position   // the first entity of the range after the page; nil: the page is the last

	// Pieces returns the pieces into which the range is cut. It waits until their boundaries are
	// found. Pieces is nil if the range is not cut. The first piece starts with the page, and this
	// task goes on with it. Each of the others becomes a new range with its own task.
	Pieces func() ([]split.Piece, error)
	First  bool // whether the range is cut before the page is processed

	Range split.Piece // the range at the time of the plan
	known prefix      // the positions of the range that were known at the time of the plan
	seek  func()      // starts the search for boundaries; nil: all are known
}

// Shorten reduces the page to its first n entities.
func (p *Plan) Shorten(n int) {
	if n < len(p.At) {
		p.At, p.Next = p.At[:n], p.At[n]
	}
}

// Progress returns a callback to call after each entity of the page. Its argument ran is how long
// the mapper's function has run on the page so far. Its argument half says that half of the page is
// done. The callback then calls halfway if that is not nil.
//
// If the plan cuts the range, the callback also starts the search for boundaries, once. It waits
// until ran is worthSeeking, because shorter work is not worth a cut.
func (p Plan) Progress(halfway func()) func(ran time.Duration, half bool) {
	return func(ran time.Duration, half bool) {
		if p.seek != nil && ran >= worthSeeking {
			p.seek()
		}
		if half && halfway != nil {
			halfway()
		}
	}
}

// worthSeeking is how long the function runs on a page before the search for boundaries starts. It
// is half of the least time for which a task is worth its cost.
const worthSeeking = split.WorthTask / 2

// Plan reads the keys of the next page of a range, and decides where the range is cut.
func (p *Planner) Plan(ctx context.Context, job *record.Job, r *record.Range) (Plan, error) {
	p.job, p.record = job, r
	if r.Alone {
		return Plan{At: []*keyspace.Position{r.Start}}, nil
	}
	if p.keys == nil {
		p.keys = p.stream(ctx)
	}
	p.keys.Shorten(r.End)
	s := r.Piece()
	root := (r.ID == p.job.Root() || r.Resample) && !r.Cut
	if p.local = p.Query; p.Query.Many() {
		if found, settled, err := p.planSpaces(ctx, s, root); err != nil {
			return Plan{}, err
		} else if settled {
			return found, nil
		}
		s.Space = r.Space()
		p.local = p.Query.In(s.Space)
	}
	if root {
		if err := p.survey(ctx, &s); err != nil {
			return Plan{}, err
		}
	}
	size := r.PageLimit()
	if r.Narrowed == 0 {
		size = int(s.Even(r.PageSize, job.PageSize))
	}
	size, err := p.pageSize(size)
	if err != nil {
		return Plan{}, err
	}
	ready, known := p.peek(size + 1)
	var found Plan
	p.unsought = false
	if p.count(ctx, &s, root) && (root || s.Estimate > int64(size)) { // it may be worth several tasks
		p.planCut(ctx, &found, s, root, size, func(n int64, start bool) source.Prefix {
			if !start || n > int64(size) { // the first positions are still being read
				return source.Prefix{}
			}
			return known()
		})
	}
	if found.At, err = p.ahead(ready()); err != nil {
		return Plan{}, err
	}
	known()                 // the stream's state as of now
	if len(found.At) == 0 { // the entities that were counted have been deleted since
		return Plan{}, nil
	}
	found.Shorten(size)
	if found.Pieces != nil {
		return found, nil
	}
	return p.planRest(ctx, found, s, root, size, func(int64, bool) source.Prefix { return known() })
}

// peek starts to read the next n positions of the range. The returned function ready waits for
// them. The returned function known also waits, and returns all positions read so far, from the
// start of the range.
func (p *Planner) peek(n int) (ready func() ([]*keyspace.Position, error), known func() source.Prefix) {
	keys := p.keys
	ready = keys.PeekLater(n)
	return ready, sync.OnceValue(func() source.Prefix {
		if _, err := ready(); err != nil {
			return source.Prefix{}
		}
		return keys.Known()
	})
}

// planRest decides where the range is cut after the page in found. It returns the plan with the cut.
func (p *Planner) planRest(ctx context.Context, found Plan, s split.Piece, root bool, size int,
	known func(int64, bool) source.Prefix,
) (_ Plan, err error) {
	if found.known, found.Range = known, s; found.Next == nil {
		return found, nil
	}
	if p.record.Solo {
		if found.Pieces, err = p.unsuspected(s); err != nil {
			return Plan{}, err
		}
		if found.First = found.Pieces != nil; found.First {
			return found, nil
		}
	}
	if size >= int(p.record.PageSize) {
		s = s.Beyond(int64(size))
		found.Range = s
	}
	p.planCut(ctx, &found, s, root, size, known)
	return found, nil
}

// stream returns the planner's open stream of the range's keys or entities. It opens one if there
// is none.
func (p *Planner) stream(ctx context.Context) *source.Stream {
	r := p.record
	s := source.NewStream(ctx, p.Source, p.Query, r.Start, r.End, p.readsWhole())
	if s.Whole {
		s.AtOnce = max(1, min(s.AtOnce, p.Paces.Get(p.job.Ref()).In(answerBytes)))
	}
	if s.Whole && r.Workers > 1 { // other tasks will read much of the rest
		s.Few = r.PageLimit() + 1
	}
	return s
}

// answerBytes limits the bytes of entities in one answer to a query. The client takes up to 4 MiB.
const answerBytes = 2 << 20

// ReadOn reads the next page in the background, while the caller processes the current one. If the
// stream reads keys, it starts at once, and returns nil. If the next page will be read as whole
// entities, it reads no keys.
//
// If the stream reads whole entities, ReadOn returns a function that starts the reading. Call it
// after half of the current page. The delay avoids useless reads: if the mapper's function becomes
// slow, other tasks may get the rest of the range, and read its entities again.
func (p *Planner) ReadOn() (halfway func()) {
	keys, n := p.keys, int(min(2*p.record.PageSize, max(p.record.Estimate, p.record.PageSize))+1)
	switch {
	case keys.Whole:
		return sync.OnceFunc(func() { keys.ReadAhead(n) })
	case !p.readsWhole():
		keys.ReadAhead(n)
	}
	return nil
}

// dropKeys ends a stream of keys that is no longer useful.
func (p *Planner) dropKeys() {
	p.keys.Close()
	p.keys = nil
}

// KeepWhole prevents further cuts of the current range.
func (p *Planner) KeepWhole() { p.whole = p.record.ID }

// Forget drops the entities that were read in advance. The caller does so if they may be outdated.
func (p *Planner) Forget() {
	if p.keys != nil && p.keys.Whole {
		p.dropKeys()
	}
}

// GoOn sets the range for the next call of Plan to r, the remaining part of the previous range.
func (p *Planner) GoOn(job *record.Job, r *record.Range) {
	p.job, p.record = job, r
	p.divided = r.Workers <= 1 && !p.unsought
	switch {
	case p.keys == nil:
	case !p.keys.Whole && p.readsWhole():
		p.dropKeys()
	default:
		p.keys.Pass(r.Start)
	}
}

// Close ends the reading in the background.
func (p *Planner) Close() {
	if p.keys != nil {
		p.keys.Close()
	}
}

// readsWhole reports whether the planner reads whole entities, and not only their keys. It does so
// if entities are known to be small. There are three exceptions:
//   - The job reads only keys.
//   - The query has ShardBy. If that property is a list, an entity does not tell for which of its
//     values it was found.
//   - The job processes a share of all keys. Most entities would be read without use.
func (p *Planner) readsWhole() bool {
	return p.Query.ShardBy == "" && p.Query.Share.All() && !p.Query.KeysOnly &&
		p.Paces.Get(p.job.Ref()).Fit(2*p.record.PageLimit()+1)
}

// ahead takes the result of a read, found and err, and returns the positions that are still in the
// range. The range may have been cut since the read started. If err is not nil, ahead drops the
// stream. It also returns an error if the positions are not in order.
func (p *Planner) ahead(found []*keyspace.Position, err error) ([]*keyspace.Position, error) {
	if err != nil {
		p.dropKeys()
		return nil, fmt.Errorf("read the keys of range %s: %w", p.record.ID, err)
	}
	if err := p.checkOrder(found); err != nil {
		return nil, err
	}
	n, _ := slices.BinarySearchFunc(found, p.record, func(at *keyspace.Position, r *record.Range) int {
		if r.End != nil && keyspace.Compare(at, r.End) >= 0 {
			return 1
		}
		return -1
	})
	return found[:n], nil
}

// checkOrder returns an error unless the positions are in order and inside the range. Otherwise
// ranges might overlap or leave gaps.
func (p *Planner) checkOrder(found []*keyspace.Position) error {
	for i, at := range found {
		if p.record.Start != nil && keyspace.Compare(p.record.Start, at) > 0 || p.keys.End != nil &&
			keyspace.Compare(at, p.keys.End) >= 0 ||
			i > 0 && keyspace.Compare(found[i-1], at) >= 0 {
			return source.ErrOrder
		}
	}
	return nil
}

// Reader returns a reader that looks up the page's entities with get. If the job reads only keys,
// it returns empty stamps: entities without contents and versions.
func (p *Planner) Reader(get source.Get) source.Reader {
	if !p.Query.Unread(p.Mode == function.Update) {
		return source.EntityReader(get)
	}
	return func(at []*keyspace.Position) ([]wire.Stamp, error) { return make([]wire.Stamp, len(at)), nil }
}

// ReaderAhead returns a reader of the page's entities. If the planner has read whole entities, the
// reader returns these; otherwise it looks them up.
func (p *Planner) ReaderAhead(ctx context.Context) source.Reader {
	if p.keys != nil && p.keys.Whole {
		return p.keys.Read
	}
	return p.Reader(p.Source.Stored(ctx))
}
