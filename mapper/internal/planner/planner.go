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

// A Planner plans the pages of one delivery, which is one run of a task for a range. It reads the
// positions of the range's entities, and decides where the range is cut. After each page it
// continues with the rest of the range.
type Planner struct {
	Query    query.Query
	Source   source.Source
	Mode     function.Mode
	Strategy split.Strategy
	// Starts says that the plan is for the start of a job, which a user waits for. So only short
	// calls are allowed.
	Starts bool

	// Paces has what this process has measured for each job, such as the time and the writes for an
	// entity.
	Paces *pace.Book[record.Ref]
	Wait  time.Duration // the longest wait of a page for its job's rate

	job    *record.Job
	record *record.Range
	local  query.Query // the part of the query in the range's kind and namespace

	keys    *source.Stream // reads keys from the range's start on
	counted bool           // whether the planner has counted the range, or tried to
	// unsought says that a cut was planned, but the page was too short to start the search for its
	// boundaries.
	unsought bool
	// divided says that the rest is for one worker, which gives work away only if the rest would
	// end late.
	divided bool
	whole   string // the ID of the range that KeepWhole protects from cuts
	listed  string // the ID of the range whose kinds and namespaces were already listed

	// Results of a survey, which samples and counts the range's entities. They are nil or empty if
	// this planner has made no survey.
	entitySize    func() int64
	unsharded     func() int64  // returns how many entities lack the property in ShardBy, see record.Range
	countedPieces []split.Piece // the pieces of the range, if their entities were counted before the cut
}

// A Plan says which entities form the next page of a range, and whether and where the range is cut.
type Plan struct {
	At   []*keyspace.Position // the positions of the page's entities, in the order in which they were read
	Next *keyspace.Position   // the range's first entity after the page; nil: the range ends with the page

	// Pieces returns the pieces into which the range is cut. It waits until their boundaries are
	// found. If Pieces is nil, the range is not cut. The first piece contains the page, and this
	// task continues with it. Each other piece becomes a new range with a task of its own.
	Pieces func() ([]split.Piece, error)
	First  bool // whether the range is cut before the page is processed, and not in the page's commit

	Range split.Piece // the range at the time of the plan
	known prefix      // returns the positions of the range that were already read at the time of the plan
	seek  func()      // starts the search for the boundaries of the pieces; nil: no search is needed
}

// Shorten reduces the plan's page to its first n entities. If it has at most n, nothing changes.
func (p *Plan) Shorten(n int) {
	if n < len(p.At) {
		p.At, p.Next = p.At[:n], p.At[n]
	}
}

// Progress returns a callback, which the caller must call after each entity of the page. Its
// argument ran is how long the mapper's function has run on the page so far. Its argument nearly
// says that three quarters of the page are done. The callback then calls readOn, if that is not nil.
//
// If the plan cuts the range, the callback also starts the search for boundaries when ran reaches
// worthSeeking. A shorter page is not worth a cut.
func (p Plan) Progress(readOn func()) func(ran time.Duration, nearly bool) {
	return func(ran time.Duration, nearly bool) {
		if p.seek != nil && ran >= worthSeeking {
			p.seek()
		}
		if nearly && readOn != nil {
			readOn()
		}
	}
}

// worthSeeking is how long the function must have run on a page of entities before the search for
// boundaries starts. It is half of the least time that is worth a separate task.
const worthSeeking = split.WorthTask / 2

// Plan reads the keys of a range's next page of entities, and decides where the range is cut.
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
	// The range may be long enough for several tasks.
	if p.count(ctx, &s, root) && (root || s.Estimate > int64(size)) {
		p.planCut(ctx, &found, s, root, size, func(n int64, start bool) source.Prefix {
			if !start || n > int64(size) { // the search does not wait for the positions that are still being read
				return source.Prefix{}
			}
			return known()
		})
	}
	if found.At, err = p.ahead(ready()); err != nil {
		return Plan{}, err
	}
	known()                 // these are the positions that the stream has read by now
	if len(found.At) == 0 { // the counted entities were deleted meanwhile
		return Plan{}, nil
	}
	found.Shorten(size)
	if found.Pieces != nil {
		return found, nil
	}
	return p.planRest(ctx, found, s, root, size, func(int64, bool) source.Prefix { return known() })
}

// peek starts to read the next n positions of the range in the background. It returns two functions
// that wait for this: ready returns the n positions, and known returns all positions of the range
// that were read so far.
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

// planRest decides where the range is cut after the page in found, and returns found with this cut.
// The argument root says whether the task first samples and counts the range. The argument size is
// the largest number of entities in the page, and known is as for planCut.
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

// stream opens a stream that reads the keys of the range, or whole entities if readsWhole says so.
func (p *Planner) stream(ctx context.Context) *source.Stream {
	r := p.record
	s := source.NewStream(ctx, p.Source, p.Query, r.Start, r.End, p.readsWhole())
	if s.Whole {
		s.AtOnce = max(1, min(s.AtOnce, p.Paces.Get(p.job.Ref()).In(answerBytes)))
	}
	if s.Whole && r.Workers > 1 { // other tasks will process much of the rest
		s.Few = r.PageLimit() + 1
	}
	return s
}

// answerBytes is the intended size of one answer to a query for entities, in bytes. The client
// accepts up to 4 MiB.
const answerBytes = 2 << 20

// ReadOn lets the planner read the keys of the next page in the background, while the caller
// processes the current page. It returns nil. If the next page will be read as whole entities,
// ReadOn reads nothing yet.
//
// If the planner already reads whole entities, ReadOn returns a function that starts this read. The
// caller must call it after three quarters of the current page. The rest of the page and its commit
// take about as long as the read. With an earlier read, other clients would have more time to change
// the entities, and the read would be useless if other tasks get the rest of the range meanwhile.
func (p *Planner) ReadOn() (readOn func()) {
	keys, n := p.keys, int(min(2*p.record.PageSize, max(p.record.Estimate, p.record.PageSize))+1)
	switch {
	case keys.Whole:
		return sync.OnceFunc(func() { keys.ReadAhead(n) })
	case !p.readsWhole():
		keys.ReadAhead(n)
	}
	return nil
}

// dropKeys closes the stream of keys, because its remaining keys are not needed. The next plan
// opens another stream.
func (p *Planner) dropKeys() {
	p.keys.Close()
	p.keys = nil
}

// KeepWhole tells the planner not to cut the current range any more.
func (p *Planner) KeepWhole() { p.whole = p.record.ID }

// Forget drops entities that were read in advance, so that they are read again. Call it if they may
// have changed in the database.
func (p *Planner) Forget() {
	if p.keys != nil && p.keys.Whole {
		p.dropKeys()
	}
}

// GoOn makes r the next range to plan. It must be the rest of the current one.
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

// Close stops the planner's reads in the background.
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

// ahead returns the positions in found that are still in the range. The range may have been cut
// since the read started. The arguments found and err are the results of the read. If err is not
// nil, ahead drops the stream and returns the error. It also returns an error if the positions are
// not in order.
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

// checkOrder returns an error if the positions are not in order, or not inside the range. Otherwise
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

// Reader returns a [source.Reader] that looks up entities by get. If the job needs only keys, the
// reader makes no call, and returns stamps without entities and versions.
func (p *Planner) Reader(get source.Get) source.Reader {
	if !p.Query.Unread(p.Mode.Updates()) {
		return source.EntityReader(get)
	}
	return func(at []*keyspace.Position) ([]wire.Stamp, error) { return make([]wire.Stamp, len(at)), nil }
}

// ReaderAhead returns a [source.Reader] for the page's entities. If the planner has already read
// whole entities, the reader returns these. Otherwise it looks them up.
func (p *Planner) ReaderAhead(ctx context.Context) source.Reader {
	if p.keys != nil && p.keys.Whole {
		return p.keys.Read
	}
	return p.Reader(p.Source.Stored(ctx))
}
