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
)

// A page is what a task is about to process.
type page struct {
	at   []*position // its entities, as they were read
	next *position   // the first one behind them in the range, if there is one

	// Where the range is cut. The first piece begins with the page, and is the range's
	// own; the others become its children, if there are any.
	pieces func() ([]stretch, error)
	first  bool // before the page is processed
}

// plan reads the keys of the page, and decides where its range is cut.
func (w *work) plan(ctx context.Context) (page, error) {
	r := w.record
	if r.Alone {
		return page{at: []*position{r.Start}}, nil
	}
	if w.keys == nil {
		w.keys = w.engine.stream(ctx, w.query, r.Start, r.End, w.readsWhole())
	}
	s := r.stretch()
	root := (r.ID == w.job.root() || r.Survey) && !r.Cut
	if w.local = w.query; w.query.many() {
		if p, settled, err := w.planSpaces(ctx, s, root); settled || err != nil {
			return p, err
		}
		s.space = r.space()
		w.local = w.query.in(s.space)
	}
	if root {
		if err := w.lookAround(ctx, &s); err != nil {
			return page{}, err
		}
	}
	size := r.pageSize()
	if r.Narrowed == 0 {
		size = int(s.even(r.PageSize, w.job.PageSize))
	}
	size, err := w.pacedSize(size)
	if err != nil {
		return page{}, err
	}
	ready := w.keys.peekLater(size + 1)
	var p page
	if w.count(ctx, &s, root) && s.estimate > int64(size) { // there is more than a page
		p.pieces, p.first = w.cutting(ctx, s, root, size, view{})
	}
	found, err := ready()
	if err != nil {
		w.dropKeys()
		return page{}, fmt.Errorf("read the keys of range %s: %w", r.ID, err)
	}
	if err := w.checkOrder(found); err != nil {
		return page{}, err
	}
	p.at = w.ahead(found)
	if len(p.at) == 0 { // what was counted has gone, or come, since
		return page{}, nil
	}
	if len(p.at) > size {
		p.at, p.next = p.at[:size], p.at[size]
	}
	if p.pieces != nil || p.next == nil {
		return p, nil
	}
	if r.Solo {
		if p.pieces, err = w.unsuspected(s); err != nil || p.pieces != nil {
			p.first = true
			return p, err
		}
	}
	if size >= int(r.PageSize) && s.estimate <= int64(size) {
		s.estimate, s.exact = 0, false // it was too low
	}
	p.pieces, p.first = w.cutting(ctx, s, root, size, w.keys.known())
	return p, nil
}

// dropKeys ends a stream that is of no use any more.
func (w *work) dropKeys() {
	w.keys.close()
	w.keys = nil
}

// planSpaces plans a range of a query that is over several spaces: it is cut between them, or
// done one after the other, until its entities are in one. That is planned like others, unless
// it is one page: then, and if the range is cut, the plan is settled.
func (w *work) planSpaces(ctx context.Context, s stretch, root bool) (p page, settled bool, err error) {
	r := w.record
	if r.Kind != "" && !root {
		return p, false, nil
	}
	if root && !r.Solo && r.Kind == "" && w.listed != r.ID && (!w.divided || s.workers > 1) {
		w.listed = r.ID
		if r.ID == w.job.root() {
			s.workers = w.job.Workers
		}
		pieces, err := w.cutSpaces(ctx, s)
		if err != nil || len(pieces) > 1 {
			w.listed = "" // what it keeps may be cut once more
			return page{pieces: func() ([]stretch, error) { return pieces, nil }, first: true}, true, err
		}
	}
	size, err := w.pacedSize(r.pageSize())
	if err != nil {
		return p, false, err
	}
	found, err := w.keys.peek(size + 1)
	if err != nil {
		w.dropKeys()
		return p, false, fmt.Errorf("read the keys of range %s: %w", r.ID, err)
	}
	if err := w.checkOrder(found); err != nil {
		return p, false, err
	}
	if found = w.ahead(found); len(found) == 0 {
		return p, true, nil
	}
	local := found[0].space()
	n := slices.IndexFunc(found, func(p *position) bool { return p.space() != local })
	switch {
	case n > 0 && n <= size: // all of a space
		return page{at: found[:n], next: found[n]}, true, nil
	case len(found) <= size:
		return page{at: found}, true, nil
	case r.Kind != "":
		return p, false, nil
	}
	if r.Solo { // those on a page of the usual size are suspected, and stay together
		wide, err := w.keys.peek(int(w.job.PageSize) + 1)
		if err != nil {
			w.dropKeys()
			return p, false, fmt.Errorf("read the keys of range %s: %w", r.ID, err)
		}
		if wide = w.ahead(wide); len(wide) <= int(w.job.PageSize) || wide[len(wide)-1].space() != local {
			return page{at: found[:size], next: found[size]}, true, nil
		}
	}
	own, rest := s, s.from(local.end(), 0)
	own.end, own.space, own.survey, rest.survey = local.end(), local, true, true
	if r.End != nil && comparePositions(r.End, own.end) <= 0 {
		r.in(local)
		return p, false, nil
	}
	return page{first: true, pieces: func() ([]stretch, error) { return []stretch{own, rest}, nil }}, true, nil
}

// mostSpaces is how many spaces a task lists at once.
const mostSpaces = 10_000

// cutSpaces cuts a range between spaces, evenly.
func (w *work) cutSpaces(ctx context.Context, s stretch) (pieces []stretch, err error) {
	var all []space
	next := w.engine.spaces(ctx, w.query, s.start, s.end)
	for len(all) < mostSpaces {
		sp, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		all = append(all, sp)
	}
	n := 1
	if workers := max(1, s.workers); workers > 1 || len(all) > longWalk {
		n = min(len(all), maxFanOut, int(spacesPerWorker*workers))
	}
	rest := s
	rest.workers = max(1, s.workers/int64(max(1, n)))
	for i := 1; i < n; i++ {
		at := &position{Namespace: all[len(all)*i/n].namespace, Kind: all[len(all)*i/n].kind}
		piece := rest
		piece.end, piece.survey = at, true
		pieces, rest = append(pieces, piece), rest.from(at, 0)
	}
	rest.survey = true
	return append(pieces, rest), nil
}

// spacesPerWorker is into how many ranges of spaces a range is cut for each worker: how large
// they are is not known. longWalk is how many spaces a task goes through one after the other.
const (
	spacesPerWorker = 4
	longWalk        = 1000
)

// unsuspected cuts a range whose process has died behind its page, which is at most as long as
// the job's pages are: nothing behind it is suspected. It returns nil if nothing is.
func (w *work) unsuspected(s stretch) (pieces func() ([]stretch, error), err error) {
	size := int(w.job.PageSize)
	found, err := w.keys.peek(size + 1)
	if err != nil {
		return nil, err
	}
	if found = w.ahead(found); len(found) <= size {
		return nil, nil
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
		c = s.behind(page, time.Since(w.begunAt), w.engine.paces.get(w.job.ID))
	}
	if c.pieces <= 1 {
		return nil, false
	}
	if c.keep > 0 {
		c.keep = max(c.keep, int64(size)) // with the page
	}
	return w.later(ctx, c, s, root, page, usual, known), c.first
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

// readsWhole reports whether a stream should read entities in place of keys: for a [Visit],
// which does not read them in a transaction, once it is known that they are small. Of one that is
// a list nothing would tell at which of its values it is.
func (w *work) readsWhole() bool {
	return w.mode == visit && w.query.ShardBy == "" && !w.query.KeysOnly && w.engine.paces.get(w.job.ID).fit(2*w.record.pageSize()+1)
}

// ahead returns those of the next positions that are in the range, which may have become
// shorter since they were read.
func (w *work) ahead(found []*position) []*position {
	n, _ := slices.BinarySearchFunc(found, w.record, func(p *position, r *rangeRecord) int {
		if r.End != nil && comparePositions(p, r.End) >= 0 {
			return 1
		}
		return -1
	})
	return found[:n]
}

// lookAround draws a sample of the kind, and estimates how large it is.
func (w *work) lookAround(ctx context.Context, s *stretch) error {
	s.workers = w.job.Workers
	if w.splitting.sampleSize(s.workers) == 0 {
		return nil
	}
	w.keys.readAhead(int(w.job.PageSize) + 1)
	look := lookAround{engine: w.engine, query: w.local, start: s.start, end: s.end, page: w.job.PageSize}
	found, err := look.around(ctx, w.splitting, s.workers)
	if err != nil {
		return fmt.Errorf("look around in the root: %w", err)
	}
	s.samples, s.estimate, s.portion = found.samples, found.estimate, found.estimate/s.workers
	job := w.job.ID
	w.entitySize = inBackground(func() int64 {
		n, _ := look.entitySize(ctx, found.samples) // it only helps
		w.engine.paces.expect(job, n)
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
	query, find := w.local, w.finder(ctx, s.end, known)
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		if pieces, err = c.apply(s, find); err == nil && !ordered(pieces) {
			err = errCut
		}
		if err == nil && root && w.splitting.adaptive() && c.weighs(s) {
			if pieces = w.weigh(ctx, query, s.workers, page, pieces); len(pieces) == 1 { // it is short
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
		workers = max(1, min(workers, total/(rootPages*w.job.PageSize)))
	}
	return weighed(pieces, counts, most, workers, page)
}

// finder returns a finder that knows the first entities of a range that ends at a position.
func (w *work) finder(ctx context.Context, end *position, known view) finder {
	query := w.local
	return func(from *position, n int64) (*position, error) {
		i := 0
		if from != nil {
			i, _ = slices.BinarySearchFunc(known.at, from, comparePositions)
		}
		if at := int64(i) + n; at < int64(len(known.at)) {
			if p := known.at[at]; end == nil || comparePositions(p, end) < 0 {
				return p, nil
			}
			return nil, nil
		} else if known.all {
			return nil, nil
		}
		return w.engine.find(ctx, query.scans(from, end), n)
	}
}

// errOrder is a fault of the database that no retry mends.
var errOrder = errors.New("the database orders keys in another way than Datastore does, so ranges of keys can't be trusted")

// errCut is a mistake in this package.
var errCut = errors.New("a range was cut into pieces that are not in order: this is a mistake in scattermap, please report it")

// checkOrder checks that entities are where this package thinks they are: in order,
// and not before the range. Otherwise ranges might overlap or leave gaps.
func (w *work) checkOrder(found []*position) error {
	for i, p := range found {
		if w.record.Start != nil && comparePositions(w.record.Start, p) > 0 || w.keys.end != nil && comparePositions(p, w.keys.end) >= 0 ||
			i > 0 && comparePositions(found[i-1], p) >= 0 {
			return errOrder
		}
	}
	return nil
}

// ordered reports whether each of some pieces begins behind the one before, and ends
// behind where it begins.
func ordered(pieces []stretch) bool {
	for _, p := range pieces {
		if p.start != nil && p.end != nil && comparePositions(p.start, p.end) >= 0 {
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
	r.End, r.Samples, r.Estimate, r.Exact, r.Workers, r.Portion, r.Cut = own.end, own.samples, own.estimate, own.exact, own.workers, own.portion, !own.survey
	r.Survey = own.survey
	if w.query.many() {
		r.in(own.space)
	}
	return mutations
}
