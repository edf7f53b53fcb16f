package mapper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
)

// A page is what a task is about to process.
type page struct {
	keys     []*datastore.Key // of its entities, as they were read
	end      *datastore.Key   // of the range that is left for it
	children []stretch        // what lies behind it, unless the record has that already
}

// plan reads the keys of the page and maybe more, and cuts what lies behind.
func (w *work) plan(ctx context.Context) (page, error) {
	r := w.record
	if r.Alone {
		return page{keys: []*datastore.Key{r.Start}}, nil
	}
	root := r.Depth == 0 && !r.Cut
	size := r.pageSize()
	s := r.stretch()
	limit := size + 1
	if !r.Cut {
		limit = lookAhead(s, root, size)
	}
	q := w.query.within(r.Start, r.End)
	seen, err := w.engine.readKeys(ctx, q, limit)
	if err != nil {
		return page{}, fmt.Errorf("read the keys of range %s: %w", r.ID, err)
	}
	if root && !seen.all {
		if seen, s, err = w.sampleRoot(ctx, q, seen, s, size); err != nil {
			return page{}, err
		}
	}
	if err := w.checkOrder(seen.keys); err != nil {
		return page{}, err
	}
	var p page
	if root {
		p.end, p.children = splitRoot(s, seen, int(w.job.Workers), size)
	} else {
		p.end, p.children = split(s, seen, size)
	}
	p.keys = seen.keys[:min(size, len(seen.keys))]
	return p, nil
}

// sampleRoot draws the sample of a kind that is larger than the root's
// look-ahead. A kind without samples is looked at further.
func (w *work) sampleRoot(ctx context.Context, q *datastore.Query, seen view, s stretch, size int) (view, stretch, error) {
	var err error
	s.samples, err = w.engine.sample(ctx, w.query, sampleSize(int(w.job.Workers)), maxSampleBytes*maxFanOut/2)
	if err != nil {
		return view{}, stretch{}, fmt.Errorf("sample %q by __scatter__: %w", w.query.Kind, err)
	}
	s.estimate = estimateFrom(s.samples, seen)
	if len(s.samples) > 0 {
		return seen, s, nil
	}
	seen, err = w.engine.readKeys(ctx, q, lookAheadPages*size+1)
	if err != nil {
		return view{}, stretch{}, fmt.Errorf("look ahead in the root: %w", err)
	}
	return seen, s, nil
}

// errOrder is a fault of the database that no retry mends.
var errOrder = errors.New("the database orders keys in another way than Datastore does, so ranges of keys can't be trusted")

// checkOrder checks that keys are where this package thinks they are: in order,
// and inside the range. Otherwise ranges might overlap or leave gaps.
func (w *work) checkOrder(keys []*datastore.Key) error {
	for i, k := range keys {
		if !w.record.contains(k) || i > 0 && compareKeys(keys[i-1], k) >= 0 {
			return errOrder
		}
	}
	return nil
}

// cut takes the children out of a range, and returns their inserts.
func (w *work) cut(r *rangeRecord, p page) []*datastore.Mutation {
	now := time.Now().UTC().Truncate(time.Microsecond)
	mutations := make([]*datastore.Mutation, 0, len(p.children))
	child := r.child
	if r.Cut || 0 < r.Estimate && r.Estimate <= r.PageSize { // what is left of its page
		child = r.rest
	}
	for _, s := range p.children {
		child := child(s, now)
		mutations = append(mutations, datastore.NewInsert(child.key(), child))
	}
	r.End, r.Samples, r.Estimate, r.Cut = p.end, nil, int64(len(p.keys)), true
	return mutations
}
