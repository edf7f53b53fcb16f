package planner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Planner reads where the entities of a range are, and decides where it is cut: for one delivery,
// of a range, and then of what is left of it.
type Planner struct {
	Pacer
	Query    query.Query
	Source   source.Source
	Mode     function.Mode
	Strategy split.Strategy

	job    *record.Job
	record *record.Range
	local  query.Query // the part of the query that is in the space of the range

	keys     *source.Stream // from the range's start on
	counted  bool           // it has counted the range, or tried to
	unsought bool           // the range could be cut, and was not worth it so far
	divided  bool           // it has gone on with what one worker does: what is left is cut only if it is late
	whole    string         // the range that can't be cut
	listed   string         // the range that is not cut between spaces

	// What a survey of the range finds out, as of the root; nil: there was none in this delivery.
	entitySize func() int64
	unsharded  func() int64  // see record.Range
	weighed    []split.Piece // the pieces of its range, if they were counted before it was cut
}

// A Plan is what a task is about to process.
type Plan struct {
	At   []*keyspace.Position // its entities, as they were read
	Next *keyspace.Position   // the first one behind them in the range, if there is one

	// Pieces returns where the range is cut; nil: it is not. The first piece begins with the page,
	// and is the range's own; the others become its children, if there are any.
	Pieces func() ([]split.Piece, error)
	First  bool // the range is cut before the page is processed

	piece split.Piece // the range, as it was planned,
	known prefix      // and what was read of it then
	seek  func()      // has the pieces looked for; nil: they are already
}

// Shorten leaves the page its first n entities.
func (p *Plan) Shorten(n int) {
	if n < len(p.At) {
		p.At, p.Next = p.At[:n], p.At[n]
	}
}

// FairShare returns how many entities of the job a worker has.
func (p Plan) FairShare() int64 { return p.piece.FairShare }

// Estimate returns how many entities the range had when it was planned, about; 0: nobody knows.
func (p Plan) Estimate() int64 { return p.piece.Estimate }

// Progress returns what is told behind each entity how long the function has run on the page so
// far, and whether half of the page is done, which calls halfway, unless that is nil. Where a range
// is cut for the sake of those who will have nothing to do, its boundaries are looked for once the
// function has run for long enough to be worth it.
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

// worthSeeking is how long the function runs on a page at least of a range that is cut for others:
// half as long as it has to take on what is worth a task.
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
		if found, settled, err := p.planSpaces(ctx, s, root); settled || err != nil {
			return found, err
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
		size = int(s.Even(r.PageSize, p.job.PageSize))
	}
	size, err := p.Size(p.job, p.Mode, size)
	if err != nil {
		return Plan{}, err
	}
	ready, known := p.peek(size + 1)
	var found Plan
	p.unsought = false
	if p.count(ctx, &s, root) && s.Estimate > int64(size) { // there is more than a page
		p.planCut(ctx, &found, s, root, size, func(n int64, start bool) source.Prefix {
			if !start || n > int64(size) { // these are being read
				return source.Prefix{}
			}
			return known()
		})
	}
	if found.At, err = p.ahead(ready()); err != nil {
		return Plan{}, err
	}
	known()                 // as the stream is now
	if len(found.At) == 0 { // what was counted has gone, or come, since
		return Plan{}, nil
	}
	if len(found.At) > size {
		found.At, found.Next = found.At[:size], found.At[size]
	}
	if found.Pieces == nil {
		err = p.planRest(ctx, &found, s, root, size, func(int64, bool) source.Prefix { return known() })
	}
	return found, err
}

// peek begins to read so many positions. Ready waits for them, and known says where they are, once
// they are read.
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

// planRest plans where what comes after the page is cut.
func (p *Planner) planRest(ctx context.Context, found *Plan, s split.Piece, root bool, size int,
	known func(int64, bool) source.Prefix,
) (err error) {
	if found.known, found.piece = known, s; found.Next == nil {
		return nil
	}
	if p.record.Solo {
		if found.Pieces, err = p.unsuspected(s); err != nil || found.Pieces != nil {
			found.First = true
			return err
		}
	}
	if size >= int(p.record.PageSize) {
		s = s.Beyond(int64(size))
		found.piece = s
	}
	p.planCut(ctx, found, s, root, size, known)
	return nil
}

// stream returns a stream of the range.
func (p *Planner) stream(ctx context.Context) *source.Stream {
	r := p.record
	s := source.NewStream(ctx, p.Source, p.Query, r.Start, r.End, p.readsWhole())
	if s.Whole {
		s.AtOnce = max(1, min(s.AtOnce, p.Paces.Get(p.job.Ref()).In(answerBytes)))
	}
	if s.Whole && r.Workers > 1 { // much of what follows is for others
		s.Few = r.PageLimit() + 1
	}
	return s
}

// answerBytes is how many bytes of entities a query asks for, of the 4 MiB that the client takes in
// one answer.
const answerBytes = 2 << 20

// ReadOn has the next page read while this one is processed. Entities cost more than keys, and
// others may have to read them once more if the function is slower than it was: they are read when
// half of this page is done, which calls halfway. Keys are not read for a page that will read
// entities.
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

// dropKeys ends a stream that is of no use any more.
func (p *Planner) dropKeys() {
	p.keys.Close()
	p.keys = nil
}

// KeepWhole has the range in hand not be cut any more.
func (p *Planner) KeepWhole() { p.whole = p.record.ID }

// Forget drops the entities that were read, as the function may have changed them since.
func (p *Planner) Forget() {
	if p.keys != nil && p.keys.Whole {
		p.dropKeys()
	}
}

// GoOn has the planner go on with what is left of its range.
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

// Close ends the reading.
func (p *Planner) Close() {
	if p.keys != nil {
		p.keys.Close()
	}
}

// readsWhole reports whether a stream should read entities in place of keys: where they are not
// read in a transaction, once it is known that they are small. Of one that is sharded by a property
// which is a list nothing would tell at which of its values it is, and of a share of the keys most
// would be read in vain.
func (p *Planner) readsWhole() bool {
	return p.Query.ShardBy == "" && p.Query.Share.All() && !p.Query.KeysOnly &&
		p.Paces.Get(p.job.Ref()).Fit(2*p.record.PageLimit()+1)
}

// ahead returns those of the next positions of the stream that are in the range, which may have
// become shorter since they were read. It checks that they are in order. A stream that has failed
// is dropped.
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

// checkOrder checks that entities are where this package thinks they are: in order,
// and not before the range. Otherwise ranges might overlap or leave gaps.
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

// Reader returns a reader of the page's entities, by a lookup: of nothing, if they are not read.
func (p *Planner) Reader(get source.Get) source.Reader {
	if !p.Query.Unread(p.Mode == function.Update) {
		return source.EntityReader(get)
	}
	return func(at []*keyspace.Position) ([]wire.Stamp, error) { return make([]wire.Stamp, len(at)), nil }
}

// ReaderAhead returns a Reader which gets what the planner has read already.
func (p *Planner) ReaderAhead(ctx context.Context) source.Reader {
	if p.keys != nil && p.keys.Whole {
		return p.keys.Read
	}
	return p.Reader(p.Source.Stored(ctx))
}
