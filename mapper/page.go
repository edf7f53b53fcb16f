package mapper

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// A page is what a task is about to process.
type page struct {
	at   []*keyspace.Position // its entities, as they were read
	next *keyspace.Position   // the first one behind them in the range, if there is one

	// Where the range is cut. The first piece begins with the page, and is the range's
	// own; the others become its children, if there are any.
	pieces func() ([]split.Piece, error)
	first  bool // before the page is processed
}

// plan reads the keys of the page, and decides where its range is cut.
func (w *work) plan(ctx context.Context) (page, error) {
	r := w.record
	if r.Alone {
		return page{at: []*keyspace.Position{r.Start}}, nil
	}
	if w.keys == nil {
		w.keys = w.stream(ctx)
	}
	w.keys.Shorten(r.End)
	s := r.Piece()
	root := (r.ID == w.job.Root() || r.Resample) && !r.Cut
	if w.local = w.query; w.query.Many() {
		if p, settled, err := w.planSpaces(ctx, s, root); settled || err != nil {
			return p, err
		}
		s.Space = r.Space()
		w.local = w.query.In(s.Space)
	}
	if root {
		if err := w.survey(ctx, &s); err != nil {
			return page{}, err
		}
	}
	size := r.PageLimit()
	if r.Narrowed == 0 {
		size = int(s.Even(r.PageSize, w.job.PageSize))
	}
	size, err := w.pacedSize(size)
	if err != nil {
		return page{}, err
	}
	ready := w.keys.PeekLater(size + 1)
	var p page
	if w.count(ctx, &s, root) && s.Estimate > int64(size) { // there is more than a page
		p.pieces, p.first = w.planCut(ctx, s, root, size, source.Prefix{})
	}
	if p.at, err = w.ahead(ready()); err != nil {
		return page{}, err
	}
	if len(p.at) == 0 { // what was counted has gone, or come, since
		return page{}, nil
	}
	if len(p.at) > size {
		p.at, p.next = p.at[:size], p.at[size]
	}
	if p.pieces != nil {
		return p, nil
	}
	if p.next == nil {
		p.pieces, p.first = w.lastPage(ctx, s, w.keys.Known())
		return p, nil
	}
	if r.Solo {
		if p.pieces, err = w.unsuspected(s); err != nil || p.pieces != nil {
			p.first = true
			return p, err
		}
	}
	if size >= int(r.PageSize) && s.Estimate <= int64(size) {
		s.Estimate, s.Exact = 0, false // it was too low
	}
	p.pieces, p.first = w.planCut(ctx, s, root, size, w.keys.Known())
	return p, nil
}

// stream returns a stream of the range.
func (w *work) stream(ctx context.Context) *source.Stream {
	r := w.record
	s := w.source.Stream(ctx, w.query, r.Start, r.End, w.readsWhole())
	if s.Whole && r.Workers > 1 { // much of what follows is for others
		s.Few = r.PageLimit() + 1
	}
	return s
}

// readOn has the next page read while this one is processed. Entities cost more than keys, and
// others may have to read them once more if the function is slower than it was: they are read when
// half of this page is done.
func (w *work) readOn() {
	keys, n := w.keys, int(min(2*w.record.PageSize, max(w.record.Estimate, w.record.PageSize))+1)
	if keys.Whole {
		w.halfway = sync.OnceFunc(func() { keys.ReadAhead(n) })
		return
	}
	keys.ReadAhead(n)
}

// dropKeys ends a stream that is of no use any more.
func (w *work) dropKeys() {
	w.keys.Close()
	w.keys = nil
}

// readsWhole reports whether a stream should read entities in place of keys: for a [Visit],
// which does not read them in a transaction, once it is known that they are small. Of one that is
// a list nothing would tell at which of its values it is.
func (w *work) readsWhole() bool {
	return w.mode == function.Visit && w.query.ShardBy == "" && !w.query.KeysOnly && w.engine.paces.Get(w.job.Ref()).Fit(2*w.record.PageLimit()+1)
}

// ahead returns those of the next positions of the stream that are in the range, which may have
// become shorter since they were read. It checks that they are in order. A stream that has failed
// is dropped.
func (w *work) ahead(found []*keyspace.Position, err error) ([]*keyspace.Position, error) {
	if err != nil {
		w.dropKeys()
		return nil, fmt.Errorf("read the keys of range %s: %w", w.record.ID, err)
	}
	if err := w.checkOrder(found); err != nil {
		return nil, err
	}
	n, _ := slices.BinarySearchFunc(found, w.record, func(p *keyspace.Position, r *record.Range) int {
		if r.End != nil && keyspace.Compare(p, r.End) >= 0 {
			return 1
		}
		return -1
	})
	return found[:n], nil
}

// checkOrder checks that entities are where this package thinks they are: in order,
// and not before the range. Otherwise ranges might overlap or leave gaps.
func (w *work) checkOrder(found []*keyspace.Position) error {
	for i, p := range found {
		if w.record.Start != nil && keyspace.Compare(w.record.Start, p) > 0 || w.keys.End != nil && keyspace.Compare(p, w.keys.End) >= 0 ||
			i > 0 && keyspace.Compare(found[i-1], p) >= 0 {
			return source.ErrOrder
		}
	}
	return nil
}
