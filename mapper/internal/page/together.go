package page

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// A crew runs the function on several entities of a chunk at once. Calls begin in the order of the
// entities, and their results are added to the page's in that order, whichever ends first. If an
// entity has read what an earlier one writes, before that was known, its function runs again. So
// the page comes to the same as if the calls had run one after the other.
type crew struct {
	page    *Page
	results *Results
	chunk   *chunk
	begun   time.Time // the page

	base    int     // the place of the chunk's first entity in the page
	turns   []*turn // of the chunk's entities, in order: those that have begun
	again   *turn   // runs again, once there is room for it; nil: none does
	atOnce  int     // calls, at most
	running int
	ended   chan *turn
	bytes   int // that the results want to write which are not added yet

	over     bool // no further entity begins
	cut      bool // no further result is added
	err      error
	panicked any

	// Calls share the time in which they run: clock is what one has had that ran all along, at a
	// time.
	clock time.Duration
	at    time.Time

	pass  pace.Pass // of the next call, that the page waits for
	since time.Time // it does; zero: it does not
}

// A turn is what a crew has of an entity.
type turn struct {
	hand
	r        result
	then     next
	waited   time.Duration // of the time since it began
	err      error         // of the page
	left     error         // why its call was left behind, or ended its goroutine
	panicked any

	from  time.Time     // it began,
	clock time.Duration // as the crew's was then
	reran bool
	done  bool
}

// runTogether is runChunk with several calls at once.
func (p *Page) runTogether(ctx context.Context, o *Results, c *chunk, begun time.Time) (full bool, err error) {
	w := &crew{page: p, results: o, chunk: c, begun: begun, base: o.Reached, atOnce: p.AtOnce,
		ended: make(chan *turn, p.AtOnce), at: time.Now()}
	for {
		wait := w.begin(ctx)
		w.add()
		if w.running == 0 && wait == 0 && w.again == nil {
			break
		}
		w.await(ctx, wait)
		w.add()
	}
	p.Paces.Brake(p.Job.Ref()).Leave(w.pass)
	if w.panicked != nil {
		panic(w.panicked) // where the delivery's panics are dealt with
	}
	return w.over, w.err
}

// begin begins as many calls as may run. It returns how long the next one has to wait; 0: until
// another one ends.
func (w *crew) begin(ctx context.Context) (wait time.Duration) {
	p, c := w.page, w.chunk
	for w.running < w.atOnce {
		if t := w.again; t != nil {
			w.again = nil
			w.start(ctx, t)
			continue
		}
		if w.over || len(w.turns) == len(c.at) {
			return 0
		}
		t := &turn{hand: hand{place: w.base + len(w.turns), first: true, notes: true}}
		at, read := c.at[len(w.turns)], c.entities[len(w.turns)]
		if w.over = w.full(t.place); w.over {
			return 0
		}
		if err := ctx.Err(); err != nil {
			w.fail(err)
			return 0
		}
		var counts bool
		if t.r, counts = p.look(at, read); !counts {
			t.done = true
			w.turns = append(w.turns, t)
			w.results.shared(0, 0, true)
			continue
		}
		wait, err := w.mayBegin(t.place)
		if err != nil {
			w.fail(err)
		}
		if w.over || wait > 0 {
			return wait
		}
		t.pass, w.pass, w.since = w.pass, pace.Pass{}, time.Time{}
		w.turns = append(w.turns, t)
		w.start(ctx, t)
	}
	return 0
}

// full reports whether the page ends before the entity at a place.
func (w *crew) full(place int) bool {
	p, o := w.page, w.results
	w.tick(time.Now())
	return place > 0 && (p.Ends() || w.bytes+o.Bytes >= maxBytes ||
		o.full(p.At[place].Key, place, len(p.At)-place, time.Duration(p.Job.PageTime)))
}

// fail has the page fail, once the calls under way have ended.
func (w *crew) fail(err error) {
	if w.err == nil {
		w.err = err
	}
	w.end()
}

// end has the page end before the next result.
func (w *crew) end() { w.over, w.cut, w.again = true, true, nil }

// mayBegin returns how long the next call has to wait, for the job's rate and its brake: see await.
// If that is too long, the page is over.
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
	case !brake.SaysLater():
		brake.Force(&w.pass)
		return 0, nil
	case place == 0:
		return 0, hasToWait
	}
	w.over = true
	return 0, nil
}

// start calls the function on an entity.
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
			r := t.r
			then, waited, err := p.call(ctx, runner, o, &t.hand, &r)
			if then == abandoned {
				return
			}
			t.r, t.then, t.waited, t.err = r, then, waited, err
		})
	}()
}

// await waits until calls end, or for a time: 0 is for any.
func (w *crew) await(ctx context.Context, wait time.Duration) {
	if w.running > 0 && wait == 0 {
		w.finish(<-w.ended)
	} else if wait > 0 {
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

// finish notes that a call has ended.
func (w *crew) finish(t *turn) {
	p, limit := w.page, time.Duration(w.page.Job.Timeout)
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
	if left := t.left; left != nil {
		t.view.close()
		if errors.Is(left, function.ErrTimeout) {
			p.Paces.Brake(p.Job.Ref()).Done(w.at, t.pass, pace.End{Took: limit, Failed: true, Busy: true})
			left, hung = TooSlowError{limit}, share
			w.over = w.over || p.Mode == function.Update // what it has read is old by now
		}
		r := p.fails(t.r.at, t.r.read, left)
		t.r, t.then, t.err = r, goesOn, nil
	}
	if e := t.r.effect; e != nil {
		w.bytes += e.Bytes + t.r.bytes
	}
	w.results.shared(share, hung, !t.reran)
}

// add adds the results of the next entities, as far as they are there.
func (w *crew) add() {
	p, o, c := w.page, w.results, w.chunk
	for !w.cut && c.next < len(w.turns) && w.turns[c.next].done {
		t := w.turns[c.next]
		at := c.at[c.next]
		bytes := 0
		if t.r.effect != nil {
			bytes = t.r.effect.Bytes + t.r.bytes
		}
		switch {
		case t.err != nil:
			w.fail(t.err)
			return
		case t.then == endsPage,
			// a Visit's effects would take place twice
			o.Reached > 0 && p.Mode == function.Update && o.Bytes >= maxBytes:
			w.end()
			return
		case w.stale(t):
			w.bytes -= bytes
			w.rerun(t)
			return
		case o.Reached > 0 && !o.takes(at.Key, t.r.effect):
			w.end()
			return
		}
		w.bytes -= bytes
		c.bytes += keyspace.EntitySize(c.entities[c.next].Entity)
		p.dealt(o, c, t.r, w.at)
	}
}

// stale reports whether an entity has to run again, as earlier ones have written what it has read.
func (w *crew) stale(t *turn) bool {
	return t.view != nil && !errors.Is(t.left, function.ErrTimeout) && t.view.stale()
}

// rerun has the function run again on the next entity. All before it are dealt with, so what it
// reads is what it would have read had it run after them. A page that has taken its time ends
// before it. The page begins fewer calls at once then: its entities may wait for each other.
func (w *crew) rerun(t *turn) {
	p := w.page
	if w.results.Reached > 0 && (p.Ends() || w.results.tookAll(0, time.Duration(p.Job.PageTime))) {
		w.end()
		return
	}
	i := w.chunk.next
	w.atOnce = max(1, w.atOnce/2)
	w.again = &turn{hand: hand{place: t.place, notes: true}, reran: true}
	w.again.r, _ = p.look(w.chunk.at[i], w.chunk.entities[i])
	w.turns[i] = w.again
}

// tick lets the calls under way share the time since the last event.
func (w *crew) tick(now time.Time) {
	if w.running > 0 {
		w.clock += now.Sub(w.at) / time.Duration(w.running)
	}
	w.at = now
	o := w.results
	t := now.Sub(w.begun) - o.Spent
	o.Spent, o.Ran = o.Spent+t, o.Ran+t
}
