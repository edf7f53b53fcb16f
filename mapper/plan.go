package mapper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A page is what a task is about to process.
type page struct {
	keys []*datastore.Key // of its entities, as they were read
	next *datastore.Key   // the first key behind them in the range, if there is one

	// Where the range is cut. The first piece begins with the page, and is the range's
	// own; the others become its children, if there are any.
	pieces func() ([]stretch, error)
	first  bool // before the page is processed
}

// plan reads the keys of the page, and decides where its range is cut.
func (w *work) plan(ctx context.Context) (page, error) {
	r := w.record
	if r.Alone {
		return page{keys: []*datastore.Key{r.Start}}, nil
	}
	if w.keys == nil {
		w.keys = w.engine.stream(ctx, w.query.within(r.Start, r.End), r.End)
	}
	s := r.stretch()
	root := r.ID == w.job.root() && !r.Cut
	if root {
		if err := w.lookAround(ctx, &s); err != nil {
			return page{}, err
		}
	}
	size, err := w.pacedSize(r.pageSize())
	if err != nil {
		return page{}, err
	}
	keys, err := w.keys.peek(size + 1)
	if err != nil {
		w.keys = nil
		return page{}, fmt.Errorf("read the keys of range %s: %w", r.ID, err)
	}
	if err := w.checkOrder(keys); err != nil {
		return page{}, err
	}
	p := page{keys: w.ahead(keys)}
	if len(p.keys) > size {
		p.keys, p.next = p.keys[:size], p.keys[size]
	}
	if p.next != nil && size == int(r.PageSize) && s.estimate <= r.PageSize {
		s.estimate = 0 // it was too low
	}
	switch {
	case p.next == nil || w.whole == r.ID || w.divided && s.estimate > 0 && s.workers <= 1 || r.Solo && r.Narrowed > 0:
	case r.Solo: // nothing but the page is
		own, rest := s, s.from(p.next, s.estimate-int64(size))
		own.end, own.estimate = p.next, int64(size)
		p.pieces, p.first = func() ([]stretch, error) { return []stretch{own, rest}, nil }, true
	default:
		if c := w.splitting.cut(s, root, r.PageSize, w.job.PageSize); c.pieces > 1 {
			p.pieces, p.first = w.later(ctx, c, s), c.first
		}
	}
	return p, nil
}

// ahead returns those of the next keys that are in the range, which may have become
// shorter since they were read.
func (w *work) ahead(keys []*datastore.Key) []*datastore.Key {
	n, _ := slices.BinarySearchFunc(keys, w.record, func(k *datastore.Key, r *rangeRecord) int {
		if r.End != nil && compareKeys(k, r.End) >= 0 {
			return 1
		}
		return -1
	})
	return keys[:n]
}

// lookAround draws a sample of the kind and measures its beginning, at the same time.
// The two give an estimate of how large it is.
func (w *work) lookAround(ctx context.Context, s *stretch) error {
	s.workers = w.job.Workers
	n := w.splitting.sampleSize(s.workers)
	if n == 0 {
		return nil
	}
	w.keys.readAhead(int(w.job.PageSize) + 1)
	marks := make([]mark, len(markPages))
	group, gctx := errgroup.WithContext(ctx)
	for i, pages := range markPages {
		group.Go(func() (err error) {
			marks[i].rank = pages * w.job.PageSize
			if marks[i].key, err = w.find(gctx, nil, nil, marks[i].rank); err != nil {
				return fmt.Errorf("look ahead in the root: %w", err)
			}
			return nil
		})
	}
	draw := func(ctx context.Context, n int) (err error) {
		if s.samples, err = w.engine.sample(ctx, w.query, n, maxSampleBytes*maxFanOut/2); err != nil {
			return fmt.Errorf("sample %q by __scatter__: %w", w.query.Kind, err)
		}
		return nil
	}
	group.Go(func() error { return draw(gctx, n) })
	if err := group.Wait(); err != nil {
		return err
	}
	if at := further(s.samples, marks); at != nil {
		rank, err := w.countBefore(ctx, at)
		if err != nil {
			return err
		}
		if rank > 0 {
			marks = append(marks, mark{key: at, rank: rank})
		}
	}
	s.estimate = estimateFrom(s.samples, marks)
	if more := samplesFor(s.estimate, w.job.PageSize, s.workers); len(s.samples) == n && more > n && w.splitting.adaptive() {
		if err := draw(ctx, more); err != nil {
			return err
		}
	}
	s.portion = s.estimate / s.workers
	return nil
}

// mostCounted bounds a count. 1,000 of them are billed as a read.
const mostCounted = 10_000_000

// countBefore counts the entities before a key, or up to mostCounted of them; 0 is that
// the database can't.
func (w *work) countBefore(ctx context.Context, k *datastore.Key) (int64, error) {
	result, err := w.engine.client.RunAggregationQuery(ctx, w.query.within(nil, k).Limit(mostCounted).NewAggregationQuery().WithCount("n"))
	if code := status.Code(err); code == codes.Unimplemented || code == codes.DeadlineExceeded && ctx.Err() == nil {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("count the entities before a sample: %w", err)
	}
	n, ok := result["n"].(*datastorepb.Value)
	if !ok {
		return 0, fmt.Errorf("count the entities before a sample: the answer has %T", result["n"])
	}
	return n.GetIntegerValue(), nil
}

// find returns the key of an entity: the n-th of a range, counted from 0. nil is the end of
// the range.
func (w *work) find(ctx context.Context, start, end *datastore.Key, n int64) (*datastore.Key, error) {
	found, err := w.engine.readKeys(ctx, w.query.within(start, end).Offset(int(n)), 1)
	if err != nil || len(found.keys) == 0 {
		return nil, err
	}
	return found.keys[0], nil
}

// later applies a cutting while something else is done. Whoever asks for the result
// waits for it.
func (w *work) later(ctx context.Context, c cutting, s stretch) func() ([]stretch, error) {
	var pieces []stretch
	var err error
	ready := make(chan struct{})
	known := w.keys.known()
	go func() {
		defer close(ready)
		if pieces, err = c.apply(s, w.finder(ctx, s.end, known)); err == nil && !ordered(pieces) {
			err = errOrder
		}
	}()
	return func() ([]stretch, error) {
		<-ready
		return pieces, err
	}
}

// finder returns a finder that knows the first keys of a range that ends at a key.
func (w *work) finder(ctx context.Context, end *datastore.Key, known view) finder {
	return func(from *datastore.Key, n int64) (*datastore.Key, error) {
		i := 0
		if from != nil {
			i, _ = slices.BinarySearchFunc(known.keys, from, compareKeys)
		}
		if at := int64(i) + n; at < int64(len(known.keys)) {
			if k := known.keys[at]; end == nil || compareKeys(k, end) < 0 {
				return k, nil
			}
			return nil, nil
		} else if known.all {
			return nil, nil
		}
		return w.find(ctx, from, end, n)
	}
}

// errOrder is a fault of the database that no retry mends.
var errOrder = errors.New("the database orders keys in another way than Datastore does, so ranges of keys can't be trusted")

// checkOrder checks that keys are where this package thinks they are: in order,
// and not before the range. Otherwise ranges might overlap or leave gaps.
func (w *work) checkOrder(keys []*datastore.Key) error {
	for i, k := range keys {
		if w.record.Start != nil && compareKeys(w.record.Start, k) > 0 || w.keys.end != nil && compareKeys(k, w.keys.end) >= 0 ||
			i > 0 && compareKeys(keys[i-1], k) >= 0 {
			return errOrder
		}
	}
	return nil
}

// ordered reports whether each of some pieces begins behind the one before, and ends
// behind where it begins.
func ordered(pieces []stretch) bool {
	for _, p := range pieces {
		if p.start != nil && p.end != nil && compareKeys(p.start, p.end) >= 0 {
			return false
		}
	}
	return true
}

// cut takes the children out of a range, and returns their inserts.
func (w *work) cut(r *rangeRecord, pieces []stretch) []*datastore.Mutation {
	now := time.Now().UTC().Truncate(time.Microsecond)
	mutations := make([]*datastore.Mutation, 0, len(pieces)-1)
	for _, s := range pieces[1:] {
		child := r.child(s, now)
		mutations = append(mutations, datastore.NewInsert(child.key(), child))
	}
	own := pieces[0]
	r.End, r.Samples, r.Estimate, r.Workers, r.Portion, r.Cut = own.end, own.samples, own.estimate, own.workers, own.portion, true
	return mutations
}
