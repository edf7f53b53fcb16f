package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// unsuspected cuts a range whose process has died behind its page, which is at most as long as
// the job's pages are: nothing behind it is suspected. It returns nil if nothing is.
func (w *work) unsuspected(s stretch) (pieces func() ([]stretch, error), err error) {
	size := int(w.job.PageSize)
	found, err := w.ahead(w.keys.peek(size + 1))
	if err != nil || len(found) <= size {
		return nil, err
	}
	own, rest := s, s.from(found[size], s.estimate-int64(size))
	own.end, own.estimate, own.workers, own.samples = found[size], int64(size), 1, s.until(found[size])
	return func() ([]stretch, error) { return []stretch{own, rest}, nil }, nil
}

// cutting decides where the range is cut, and has the boundaries looked for that are not
// among known keys.
func (w *work) cutting(ctx context.Context, s stretch, root bool, size int, known view) (pieces func() ([]stretch, error), first bool) {
	r := w.record
	page, usual := w.pageToCut()
	var c cutting
	switch {
	case w.whole == r.ID || r.Solo:
	case w.divides(s):
		c = w.splitting.cut(s, root, page, usual)
	case w.splitting.adaptive():
		c = s.behind(page, usual, w.ran, w.engine.paces.Get(w.job.ref()))
	}
	if c.pieces <= 1 {
		return nil, false
	}
	if c.keep > 0 {
		c.keep = max(c.keep, int64(size)) // with the page
	}
	return w.later(ctx, c, s, root, page, usual, known), c.first
}

// lastPage decides whether the last page of the range is cut.
func (w *work) lastPage(ctx context.Context, s stretch, known view) (pieces func() ([]stretch, error), first bool) {
	if w.whole == w.record.ID || w.record.Solo || !w.splitting.adaptive() || w.divides(s) {
		return nil, false
	}
	page, usual := w.pageToCut()
	c := s.overdue(page, usual, w.ran, w.engine.paces.Get(w.job.ref()))
	if c.pieces <= 1 {
		return nil, false
	}
	return w.later(ctx, c, s, false, page, usual, known), true
}

// divides reports whether the range may be cut behind its page.
func (w *work) divides(s stretch) bool {
	r := w.record
	return w.whole != r.ID && (!w.divided || s.estimate == 0 || s.workers > 1) && (!r.Solo || r.Narrowed == 0)
}

// count counts the range, if that helps to cut it.
func (w *work) count(ctx context.Context, s *stretch, root bool) (counted bool) {
	if !w.divides(*s) || w.record.Solo {
		return false
	}
	if s.exact {
		return true
	}
	page, usual := w.pageToCut()
	most := w.splitting.counts(*s, root, page, usual)
	if most == 0 {
		return false
	}
	n, known := w.engine.count(ctx, w.local.scans(s.start, s.end), int(most))
	if known {
		*s = s.counted(n, most)
	}
	return s.exact
}

// lookAround draws a sample of the kind, and estimates how large it is.
func (w *work) lookAround(ctx context.Context, s *stretch) error {
	s.workers = w.job.Workers
	if w.splitting.sampleSize(s.workers) == 0 {
		return nil
	}
	w.keys.readAhead(int(w.job.PageSize) + 1)
	look := lookAround{engine: w.engine, query: w.local, start: s.start, end: s.end, page: w.job.PageSize}
	if page, _ := w.pageToCut(); w.splitting.adaptive() && s.workers > 1 {
		look.weigh = func(pieces []stretch) []stretch { return w.weigh(ctx, w.local, s.workers, page, pieces) }
	}
	found, err := look.around(ctx, w.splitting, s.workers)
	if err != nil {
		return fmt.Errorf("look around in the root: %w", err)
	}
	s.samples, s.estimate, s.portion, w.weighed = found.samples, found.estimate, found.estimate/s.workers, found.pieces
	job := w.job.ref()
	w.entitySize = inBackground(func() int64 {
		n, _ := look.entitySize(ctx, found.samples) // it only helps
		w.engine.paces.Expect(job, n)
		return n
	})
	if !w.query.many() {
		w.unsharded = inBackground(func() int64 { return look.unsharded(ctx) })
	}
	return nil
}

// inBackground calls f while something else is done. Whoever asks for the result waits for it.
func inBackground[T any](f func() T) func() T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return sync.OnceValue(func() T { return <-result })
}

// later applies a cutting while something else is done. Whoever asks for the result
// waits for it. Of the work it uses only what stays the same meanwhile.
func (w *work) later(ctx context.Context, c cutting, s stretch, root bool, page, usual int64, known view) func() ([]stretch, error) {
	var pieces []stretch
	var err error
	query, find, counted := w.local, w.finder(ctx, s.end, known), w.weighed
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		if pieces, err = c.apply(s, find); err == nil && !ordered(pieces) {
			err = errCut
		}
		if err == nil && root && w.splitting.adaptive() && c.weighs(s) {
			if counted == nil {
				counted = w.weigh(ctx, query, s.workers, page, pieces)
			}
			pieces = inPortions(counted, page, find)
			if len(pieces) == 1 { // it is short
				pieces, err = w.splitting.cut(pieces[0], false, page, usual).apply(pieces[0], find)
			}
		}
	}()
	return func() ([]stretch, error) {
		<-ready
		return pieces, err
	}
}

// weigh counts the entities of pieces, all at the same time. If the database can't they stay as
// they are.
func (w *work) weigh(ctx context.Context, query Query, workers, page int64, pieces []stretch) []stretch {
	counts, known := make([]int64, len(pieces)), make([]bool, len(pieces))
	most := mostInPiece(len(pieces))
	var group sync.WaitGroup
	for i, p := range pieces {
		group.Go(func() { counts[i], known[i] = w.engine.count(ctx, query.scans(p.start, p.end), int(most)) })
	}
	group.Wait()
	if slices.Contains(known, false) {
		return pieces
	}
	if w.query.many() { // there are other spaces for the other workers
		total := int64(0)
		for _, n := range counts {
			total += n
		}
		workers = max(1, min(workers, total/(rootPages*page)))
	}
	return weighed(pieces, counts, most, workers, page)
}

// finder returns a finder that knows the first entities of a range that ends at a position.
func (w *work) finder(ctx context.Context, end *keyspace.Position, known view) finder {
	query := w.local
	return func(from *keyspace.Position, n int64) (*keyspace.Position, error) {
		i := 0
		if from != nil {
			i, _ = slices.BinarySearchFunc(known.at, from, keyspace.Compare)
		}
		if at := int64(i) + n; at < int64(len(known.at)) {
			if p := known.at[at]; end == nil || keyspace.Compare(p, end) < 0 {
				return p, nil
			}
			return nil, nil
		} else if known.all {
			return nil, nil
		}
		return w.engine.find(ctx, query.scans(from, end), n)
	}
}

// errCut is a mistake in this package.
var errCut = fault.Fatal(errors.New("a range was cut into pieces that are not in order: this is a mistake in scattermap, please report it"))

// ordered reports whether each of some pieces, which begin where the one before ends, ends behind
// where it begins.
func ordered(pieces []stretch) bool {
	for _, p := range pieces {
		if p.start != nil && p.end != nil && keyspace.Compare(p.start, p.end) >= 0 {
			return false
		}
	}
	return true
}

// cut takes the children out of a range, and returns their inserts.
func (w *work) cut(r *rangeRecord, pieces []stretch) []*datastore.Mutation {
	now := time.Now().UTC().Truncate(time.Microsecond)
	if w.entitySize != nil {
		r.EntitySize = cmp.Or(w.entitySize(), r.EntitySize)
	}
	mutations := make([]*datastore.Mutation, 0, len(pieces)-1)
	for _, s := range pieces[1:] {
		child := r.child(s, now)
		mutations = append(mutations, datastore.NewInsert(child.key(), child))
	}
	own := pieces[0]
	r.End, r.Samples, r.Estimate, r.Exact, r.Workers, r.Portion, r.Cut = own.end, capSamples(own.samples, maxSampleBytes), own.estimate, own.exact, own.workers, own.portion, !own.survey
	r.Survey = own.survey
	if w.query.many() {
		r.in(own.space)
	}
	return mutations
}
