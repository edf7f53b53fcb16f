package executor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// A planner reads where the entities of a range are, and decides where it is cut.
type planner struct {
	x        *Executor
	claim    *claim // of the range
	query    query.Query
	local    query.Query // the part of it that is in the space of the range
	source   source.Source
	mode     function.Mode
	strategy split.Strategy

	keys    *source.Stream // from the range's start on
	divided bool           // it has gone on with what one worker does: what is left is cut only if it is late
	ran     time.Duration  // the function, in this delivery
	whole   string         // the range that can't be cut
	listed  string         // the range that is not cut between spaces

	// What a survey of the range finds out, as of the root; nil: there was none in this delivery.
	entitySize func() int64
	unsharded  func() int64  // see record.Range
	weighed    []split.Piece // the pieces of its range, if they were counted before it was cut
}

// A plan is what a task is about to process.
type plan struct {
	at   []*keyspace.Position // its entities, as they were read
	next *keyspace.Position   // the first one behind them in the range, if there is one

	// Where the range is cut. The first piece begins with the page, and is the range's
	// own; the others become its children, if there are any.
	pieces func() ([]split.Piece, error)
	first  bool // before the page is processed
}

// plan reads the keys of the page, and decides where its range is cut.
func (p *planner) plan(ctx context.Context) (plan, error) {
	r := p.claim.record
	if r.Alone {
		return plan{at: []*keyspace.Position{r.Start}}, nil
	}
	if p.keys == nil {
		p.keys = p.stream(ctx)
	}
	p.keys.Shorten(r.End)
	s := r.Piece()
	root := (r.ID == p.claim.job.Root() || r.Resample) && !r.Cut
	if p.local = p.query; p.query.Many() {
		if found, settled, err := p.planSpaces(ctx, s, root); settled || err != nil {
			return found, err
		}
		s.Space = r.Space()
		p.local = p.query.In(s.Space)
	}
	if root {
		if err := p.survey(ctx, &s); err != nil {
			return plan{}, err
		}
	}
	size := r.PageLimit()
	if r.Narrowed == 0 {
		size = int(s.Even(r.PageSize, p.claim.job.PageSize))
	}
	size, err := p.x.pacedSize(p.claim.job, p.mode, size)
	if err != nil {
		return plan{}, err
	}
	ready := p.keys.PeekLater(size + 1)
	var found plan
	if p.count(ctx, &s, root) && s.Estimate > int64(size) { // there is more than a page
		found.pieces, found.first = p.planCut(ctx, s, root, size, source.Prefix{})
	}
	if found.at, err = p.ahead(ready()); err != nil {
		return plan{}, err
	}
	if len(found.at) == 0 { // what was counted has gone, or come, since
		return plan{}, nil
	}
	if len(found.at) > size {
		found.at, found.next = found.at[:size], found.at[size]
	}
	if found.pieces != nil {
		return found, nil
	}
	if found.next == nil {
		found.pieces, found.first = p.lastPage(ctx, s, p.keys.Known())
		return found, nil
	}
	if r.Solo {
		if found.pieces, err = p.unsuspected(s); err != nil || found.pieces != nil {
			found.first = true
			return found, err
		}
	}
	if size >= int(r.PageSize) {
		s = s.Beyond(int64(size))
	}
	found.pieces, found.first = p.planCut(ctx, s, root, size, p.keys.Known())
	return found, nil
}

// stream returns a stream of the range.
func (p *planner) stream(ctx context.Context) *source.Stream {
	r := p.claim.record
	s := source.NewStream(ctx, p.source, p.query, r.Start, r.End, p.readsWhole())
	if s.Whole && r.Workers > 1 { // much of what follows is for others
		s.Few = r.PageLimit() + 1
	}
	return s
}

// readOn has the next page read while this one is processed. Entities cost more than keys, and others may
// have to read them once more if the function is slower than it was: they are read when half of this page
// is done, which calls halfway.
func (p *planner) readOn() (halfway func()) {
	keys, n := p.keys, int(min(2*p.claim.record.PageSize, max(p.claim.record.Estimate, p.claim.record.PageSize))+1)
	if keys.Whole {
		return sync.OnceFunc(func() { keys.ReadAhead(n) })
	}
	keys.ReadAhead(n)
	return nil
}

// dropKeys ends a stream that is of no use any more.
func (p *planner) dropKeys() {
	p.keys.Close()
	p.keys = nil
}

// forget drops the entities that were read, as the function may have changed them since.
func (p *planner) forget() {
	if p.keys != nil && p.keys.Whole {
		p.dropKeys()
	}
}

// goOn has the planner go on with what is left of its range.
func (p *planner) goOn(r *record.Range) {
	p.divided = r.Workers <= 1 // after a surprise it is shared anew
	switch {
	case p.keys == nil:
	case !p.keys.Whole && p.readsWhole():
		p.dropKeys()
	default:
		p.keys.Pass(r.Start)
	}
}

// close ends the reading.
func (p *planner) close() {
	if p.keys != nil {
		p.keys.Close()
	}
}

// readsWhole reports whether a stream should read entities in place of keys: for a Visit,
// which does not read them in a transaction, once it is known that they are small. Of one that is
// a list nothing would tell at which of its values it is.
func (p *planner) readsWhole() bool {
	return p.mode == function.Visit && p.query.ShardBy == "" && !p.query.KeysOnly && p.x.paces.Get(p.claim.job.Ref()).Fit(2*p.claim.record.PageLimit()+1)
}

// ahead returns those of the next positions of the stream that are in the range, which may have
// become shorter since they were read. It checks that they are in order. A stream that has failed
// is dropped.
func (p *planner) ahead(found []*keyspace.Position, err error) ([]*keyspace.Position, error) {
	if err != nil {
		p.dropKeys()
		return nil, fmt.Errorf("read the keys of range %s: %w", p.claim.record.ID, err)
	}
	if err := p.checkOrder(found); err != nil {
		return nil, err
	}
	n, _ := slices.BinarySearchFunc(found, p.claim.record, func(at *keyspace.Position, r *record.Range) int {
		if r.End != nil && keyspace.Compare(at, r.End) >= 0 {
			return 1
		}
		return -1
	})
	return found[:n], nil
}

// checkOrder checks that entities are where this package thinks they are: in order,
// and not before the range. Otherwise ranges might overlap or leave gaps.
func (p *planner) checkOrder(found []*keyspace.Position) error {
	for i, at := range found {
		if p.claim.record.Start != nil && keyspace.Compare(p.claim.record.Start, at) > 0 || p.keys.End != nil && keyspace.Compare(at, p.keys.End) >= 0 ||
			i > 0 && keyspace.Compare(found[i-1], at) >= 0 {
			return source.ErrOrder
		}
	}
	return nil
}

// reader returns a reader of what the function gets: nothing, if the query is KeysOnly.
func (p *planner) reader(get func([]*datastore.Key, any) error) source.Reader {
	if !p.query.KeysOnly {
		return source.EntityReader(get)
	}
	return func(at []*keyspace.Position) ([]datastore.PropertyList, []bool, error) {
		return make([]datastore.PropertyList, len(at)), make([]bool, len(at)), nil
	}
}
