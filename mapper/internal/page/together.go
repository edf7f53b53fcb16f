package page

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// A crew runs the function on several entities of a chunk at once. Calls start in the order of the
// entities, and results are added in that order. If an entity has read something before an earlier
// entity's write of it was known, its function runs again. So the page's results are the same as in
// sequential calls.
type crew struct {
	page    *Page
	results *Results
	chunk   *chunk
	begun   time.Time // start of the page

	base    int     // place of the chunk's first entity in the page
	turns   []*turn // of the entities that have started, in order
	again   *turn   // the entity that waits to run again; nil: none
	atOnce  int     // maximum number of calls
	running int
	ended   chan *turn
	bytes   int // of ended calls' results that are not added yet

	over     bool // no further entity starts
	cut      bool // no further result is added
	err      error
	panicked any

	// Concurrent calls share the time in which they run. clock is the share, at the time at, of a
	// call that had run from the start.
	clock time.Duration
	at    time.Time

	pass  pace.Pass // of the next call, while the page waits for it
	since time.Time // start of that wait; zero: no wait
}

// A turn is the state of one entity in a crew.
type turn struct {
	hand
	r        result
	then     next
	waited   time.Duration // time that the call has waited since its start
	err      error         // an error of the whole page
	left     error         // why the call was abandoned or ended its goroutine
	panicked any

	from  time.Time     // start of the call
	clock time.Duration // the crew's clock at the start
	reran bool
	done  bool
}

// runTogether is the concurrent form of runChunk.
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
		panic(w.panicked) // panic in the delivery's goroutine, which handles it
	}
	return w.over, w.err
}

// begin starts as many calls as may run. It returns how long the next call has to wait; 0: until
// another call ends.
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

// full reports whether the page ends before the entity at place.
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

// end ends the page before the next result.
func (w *crew) end() { w.over, w.cut, w.again = true, true, nil }

// mayBegin returns how long the next call has to wait for the job's rate and its brake, see
// await. If that is too long, the page is over.
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

// start calls the function on an entity in its own goroutine.
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

// await waits until a call ends, or for the given time; 0: no limit.
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

// finish records the end of a call.
func (w *crew) finish(t *turn) {
	p := w.page
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
		if errors.Is(left, function.ErrTimeout) {
			hung = share
			w.over = w.over || p.Mode == function.Update // the entities that it has read are old by now
		}
		t.r, t.then, t.err = p.left(&t.hand, left, t.r.at, t.r.read), goesOn, nil
	}
	if e := t.r.effect; e != nil {
		w.bytes += e.Bytes + t.r.bytes
	}
	w.results.shared(share, hung, !t.reran)
}

// add adds the results of the next entities, up to the first call that has not ended.
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
			// not for a Visit: the call has already had its effects
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

// stale reports whether an entity has to run again because an earlier one has written something
// after it was read.
func (w *crew) stale(t *turn) bool {
	return t.view != nil && !errors.Is(t.left, function.ErrTimeout) && t.view.stale()
}

// rerun runs the function again on the next entity. All earlier entities are handled by then, so
// it reads the same as in a sequential run. A page whose time is over ends before the entity
// instead. rerun also halves the number of concurrent calls, because the entities may depend on
// each other.
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

// tick divides the time since the last event among the calls under way.
func (w *crew) tick(now time.Time) {
	if w.running > 0 {
		w.clock += now.Sub(w.at) / time.Duration(w.running)
	}
	w.at = now
	o := w.results
	t := now.Sub(w.begun) - o.Spent
	o.Spent, o.Ran = o.Spent+t, o.Ran+t
}
