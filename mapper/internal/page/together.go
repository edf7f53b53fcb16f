package page

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// A crew runs the function on several entities of a chunk (a part of a page) at the same time, or
// on batches of them. Calls start in the order of the entities, and results are added in this
// order. A call may have read an entity that the call for an earlier entity has written afterwards.
// In this case, the function runs again. So the page's results are the same as with one call at a
// time.
type crew struct {
	page    *Page
	results *Results
	chunk   *chunk
	begun   time.Time // start of the page

	base    int     // index in the page of the chunk's first entity
	taken   int     // number of the chunk's entities for which calls were prepared
	turns   []*turn // calls that have started and whose results are not added yet, in order
	again   *turn   // the call that must be repeated next; nil: none
	atOnce  int     // maximum number of calls at the same time
	batch   int     // maximum number of entities in a call
	running int
	ended   chan *turn
	bytes   int // size of the results of ended calls that are not added yet

	over     bool // whether no further call may start
	cut      bool // whether no further result may be added
	err      error
	panicked any

	// clock is how much time one call would have got since the start of the chunk, up to the time
	// at. Calls that run at the same time share the time equally.
	clock time.Duration
	at    time.Time

	next  *turn     // a prepared call that has to wait; nil: none
	pass  pace.Pass // the permission of the brake (pace.Brake) for this call
	since time.Time // when this call started to wait; zero: it does not wait
}

// A turn is the state of one call of the function by a crew.
type turn struct {
	group         // the entities of the call
	all   []*hand // the call's entities, and entities between them on which the function need not run
	called
	left     error // why the call did not return: it timed out, or it ended its goroutine
	panicked any

	from  time.Time     // when the call started
	clock time.Duration // the value of the crew's clock when the call started
	reran bool
	done  bool
}

// runTogether does the same as runChunk, but with overlapping calls or with batches: it runs the
// function over the entities of a chunk. The bool full says that the page must end before the end
// of the chunk.
func (p *Page) runTogether(ctx context.Context, o *Results, c *chunk, begun time.Time) (full bool, err error) {
	w := &crew{page: p, results: o, chunk: c, begun: begun, base: o.Reached, atOnce: max(1, p.AtOnce),
		batch: p.inCall(), ended: make(chan *turn, max(1, p.AtOnce)), at: time.Now()}
	for {
		wait := w.begin(ctx)
		w.add()
		if w.running == 0 && wait == 0 { // no call waits to be repeated, because it would be running now
			break
		}
		w.await(ctx, wait)
		w.add()
	}
	p.Paces.Brake(p.Job.Ref()).Leave(w.pass)
	if w.panicked != nil {
		panic(w.panicked) // the delivery's goroutine handles the panic
	}
	return w.over, w.err
}

// begin starts as many calls as may run at the same time. The result wait is how long the next call
// has to wait for the job's rate. If it is 0, the next call waits for the end of another call.
func (w *crew) begin(ctx context.Context) (wait time.Duration) {
	for w.running < w.atOnce {
		if t := w.again; t != nil {
			w.again = nil
			w.start(ctx, t)
			continue
		}
		if w.over || w.taken == len(w.chunk.at) {
			return 0
		}
		if w.over = w.full(w.base + w.taken); w.over {
			return 0
		}
		if err := ctx.Err(); err != nil {
			w.fail(err)
			return 0
		}
		if w.next == nil {
			w.next = w.turn()
		}
		t := w.next
		if len(t.hands) == 0 {
			t.done = true
			w.take(t)
			w.share(t, 0, 0)
			continue
		}
		wait, err := w.mayBegin(t.hands[0].place)
		if err != nil {
			w.fail(err)
		}
		if w.over || wait > 0 {
			return wait
		}
		*t.pass, w.pass, w.since = w.pass, pace.Pass{}, time.Time{}
		w.take(t)
		w.start(ctx, t)
	}
	return 0
}

// turn prepares the call for the chunk's next entities.
func (w *crew) turn() *turn {
	t := &turn{group: group{first: true, notes: true, pass: new(pace.Pass)}}
	for i := w.taken; i < len(w.chunk.at) && len(t.hands) < w.batch; i++ {
		r, counts := w.page.look(w.chunk.at[i], w.chunk.entities[i])
		h := &hand{place: w.base + i, r: r}
		if counts {
			t.hands = append(t.hands, h)
		}
		if t.all = append(t.all, h); w.batch == 1 {
			break
		}
	}
	return t
}

// take adds a prepared call to the calls that have started.
func (w *crew) take(t *turn) {
	w.next = nil
	w.taken += len(t.all)
	w.turns = append(w.turns, t)
}

// share divides the time of a call among its entities. The argument share is the call's part of the
// time that it shared with overlapping calls. The argument hung is the part of share in which the
// call waited or timed out.
func (w *crew) share(t *turn, share, hung time.Duration) {
	n := time.Duration(len(t.all))
	for range t.all {
		w.results.shared(share/n, hung/n, !t.reran)
	}
}

// full reports whether the page must end before the entity at place, its index in the page.
func (w *crew) full(place int) bool {
	p, o := w.page, w.results
	w.tick(time.Now())
	return place > 0 && (p.Ends() || w.bytes+o.Bytes >= maxBytes ||
		o.full(p.At[place].Key, place, len(p.At)-place, time.Duration(p.Job.PageTime)))
}

// fail ends the page with an error, after the calls under way have ended.
func (w *crew) fail(err error) {
	if w.err == nil {
		w.err = err
	}
	w.end()
}

// end makes the page end before the next result that is not added yet.
func (w *crew) end() { w.over, w.cut, w.again = true, true, nil }

// mayBegin returns how long the call for the entity at place (its index in the page) has to wait
// for the job's rate and its brake, see Page.await. If this is too long, no further call starts,
// and the page ends there.
func (w *crew) mayBegin(place int) (wait time.Duration, err error) {
	p, now := w.page, time.Now()
	if wait := p.Begin.Add(time.Duration(place) * p.Spacing).Sub(now); wait > 0 {
		return wait, nil
	}
	if w.since.IsZero() {
		w.since = now
	}
	brake := p.Paces.Brake(p.Job.Ref())
	wait, begins := brake.Ask(now, &w.pass)
	switch {
	case begins:
		return 0, nil
	case now.Sub(w.since)+wait <= p.Pause && !p.Ends():
		return wait, nil
	case brake.Insist(&w.pass):
		return 0, nil
	case place == 0:
		return 0, hasToWait
	}
	w.over = true
	return 0, nil
}

// start runs a prepared call in its own goroutine.
func (w *crew) start(ctx context.Context, t *turn) {
	p, o := w.page, w.results
	w.tick(time.Now())
	w.running++
	t.from, t.clock = w.at, w.clock
	go func() {
		defer func() {
			t.panicked = recover()
			w.ended <- t
		}()
		t.left = function.Calls(ctx, time.Duration(p.Job.Timeout), p.Strays, func(runner *function.Runner) {
			if got := p.call(ctx, runner, o, &t.group); !got.abandoned {
				t.called = got
			}
		})
	}()
}

// await waits until a call ends, or until the time wait has passed. If wait is 0, it waits for a
// call.
func (w *crew) await(ctx context.Context, wait time.Duration) {
	if wait == 0 { // so a call is running, see runTogether
		w.finish(<-w.ended)
	} else {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case t := <-w.ended:
			w.finish(t)
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	for {
		select {
		case t := <-w.ended:
			w.finish(t)
		default:
			return
		}
	}
}

// finish records that a call has ended, and how long it took. Its results are added later, in
// order.
func (w *crew) finish(t *turn) {
	w.tick(time.Now())
	w.running--
	t.done = true
	share := w.clock - t.clock
	hung := time.Duration(float64(share) * min(1, float64(t.waited)/float64(max(1, w.at.Sub(t.from)))))
	if t.panicked != nil {
		w.panicked = t.panicked
		w.end()
		return
	}
	if errors.Is(t.left, function.ErrTimeout) {
		hung = share
		// The entities that were read with this chunk may have changed while the call hung.
		w.over = w.over || w.page.Mode == function.Update
	}
	if t.left != nil {
		w.leave(t)
	}
	w.over = w.over || t.end != nil
	for _, h := range t.all {
		w.bytes += h.r.load()
	}
	w.share(t, share, hung)
}

// leave records the outcome of a call that did not return, because it timed out or ended its
// goroutine. Its entity fails. If the call has several entities, the page ends before them instead.
// If these are the page's first entities, the page is retried with smaller batches.
func (w *crew) leave(t *turn) {
	err := w.page.left(&t.group, t.left)
	first := t.hands[0]
	switch {
	case len(t.hands) == 1:
		first.r = w.page.fails(first.r.at, first.r.read, err)
	case first.place == 0:
		t.end, t.err = first, BatchError{len(t.hands), err}
	default:
		t.end = first
	}
}

// load returns how many bytes a result adds to the page's commit.
func (r *result) load() int {
	if r.effect == nil {
		return 0
	}
	return r.effect.Bytes + r.bytes
}

// add adds the results of ended calls to the page in the order of the entities, up to the first
// call that still runs.
func (w *crew) add() {
	for !w.cut && len(w.turns) > 0 && w.turns[0].done {
		t := w.turns[0]
		for i := range t.all {
			if !w.addNext(t, i) {
				return
			}
		}
		w.turns = w.turns[1:]
	}
}

// addNext adds the result of the next entity to the page: entity i of the call t. It returns false
// if the page ends before the entity, or if the function must run again on it.
func (w *crew) addNext(t *turn, i int) bool {
	p, o, c, h := w.page, w.results, w.chunk, t.all[i]
	switch {
	case t.err != nil: // the page ends before its first entity, or the delivery has ended
		w.fail(t.err)
		return false
	case t.end == h,
		// A Visit has already had its effects, so its results are added.
		p.Mode == function.Update && o.Bytes >= maxBytes:
		w.end()
		return false
	case w.stale(t, h):
		w.rerun(t, i)
		return false
	case !o.takes(h.r.at.Key, h.r.effect):
		w.end()
		return false
	}
	w.bytes -= h.r.load()
	c.bytes += keyspace.EntitySize(c.entities[c.next].Entity)
	p.dealt(o, c, h.r, w.at)
	return true
}

// stale reports whether the function must run again on an entity, because its call has read
// something that the call for an earlier entity has written afterwards.
func (w *crew) stale(t *turn, h *hand) bool {
	return h.view != nil && !errors.Is(t.left, function.ErrTimeout) && h.view.stale()
}

// rerun runs the function again on entity i of the call t, and on the call's later entities that
// need it. By then, all earlier entities are done, so this call reads the same as if calls did not
// overlap. If the page's time is over, the page ends before the entity instead. The entities may
// depend on each other, so rerun also halves the number of overlapping calls, and of entities in a
// call.
func (w *crew) rerun(t *turn, i int) {
	p := w.page
	if p.Ends() || w.results.tookAll(0, time.Duration(p.Job.PageTime)) {
		w.end()
		return
	}
	w.atOnce, w.batch = max(1, w.atOnce/2), max(1, w.batch/2)
	w.next = nil // it may have too many entities now, and is prepared again
	again := &turn{group: group{notes: true, pass: new(pace.Pass)}, reran: true}
	rest := *t
	for rest.all = t.all[i:]; len(rest.all) > 0 && len(again.all) < w.batch && rest.all[0] != t.end &&
		w.stale(t, rest.all[0]); rest.all = rest.all[1:] {
		was := rest.all[0]
		w.bytes -= was.r.load()
		h := &hand{place: was.place, r: was.r}
		p.resume([]*hand{h})
		again.all = append(again.all, h)
	}
	again.hands, w.again = again.all, again
	w.turns = append([]*turn{again, &rest}, w.turns[1:]...)
}

// tick divides the time since the last tick equally among the running calls.
func (w *crew) tick(now time.Time) {
	if w.running > 0 {
		w.clock += now.Sub(w.at) / time.Duration(w.running)
	}
	w.at = now
	o := w.results
	t := now.Sub(w.begun) - o.Spent
	o.Spent, o.Ran = o.Spent+t, o.Ran+t
}
