package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// A hand is one entity of the page while the function is called for it. If calls fail for now,
// there may be several, one after the other.
type hand struct {
	place int    // the entity's index in the page
	r     result // the outcome of the last call
	view  *view  // the last call's access to other entities
}

// A group has the entities of one call of the mapper's function: a single entity, or a batch.
type group struct {
	hands []*hand
	// first says that the page has already waited for this call, so that it may start immediately.
	first bool
	// notes says whether to record what the calls read, because calls for earlier entities still
	// run.
	notes bool
	// pass is the permission to make the current call, from the brake (pace.Brake).
	pass *pace.Pass
	// narrows is the search for entities at fault to which the group belongs. It is nil if there is
	// none.
	narrows *narrowing
}

// A called says what a group's call means for the whole page.
type called struct {
	end *hand // the entity before which the page ends; nil: the page continues
	// abandoned says that the call timed out and may still run. So nothing that it shares may be
	// used.
	abandoned bool
	waited    time.Duration // how long the page has waited
	err       error         // an error with which the whole page fails
}

// callsInPage is the largest number of calls for one entity in a page, if a service refuses its
// calls for now ([mapper.RetryAfter]).
const callsInPage = 3

var errWaits = errors.New("the service that the function calls has refused too many calls")

var hasToWait = fault.Refusal{Summary: "the function has to wait", Cause: errWaits, Later: true}

// call runs the function on a group as soon as the job's rate and its brake (pace.Brake) allow it.
// It stores the outcomes in g.hands.
//
// A service may refuse the calls for some entities for now. The page then waits, and calls the
// function for these entities again, with at most callsInPage calls in all. If the service still
// refuses them, its answers to other calls of this process decide what happens:
//
//   - It has accepted most of the recent calls: the attempt of each refused entity has failed.
//   - It has refused one entity of the group, and fewer than three entities in a row: the refused
//     entity gets a range of its own, and the page continues.
//   - Otherwise the page ends before the first refused entity. If this is the page's first entity,
//     the range is postponed. If the range has already waited for an hour, the attempt of the
//     page's first entity has failed instead.
//
// If a batch has failed as a whole, the function runs on its halves.
func (p *Page) call(ctx context.Context, runner *function.Runner, o *Results, g *group) (got called) {
	brake := p.Paces.Brake(p.Job.Ref())
	runner.OnWait = brake.Wait
	now := g.hands // the entities of the next call
	for calls := 1; ; calls++ {
		if calls > 1 || !g.first {
			ok, wait, err := p.await(ctx, brake, g, now[0].place, got.waited)
			if got.waited += wait; err != nil {
				got.err = err
				return got
			}
			if !ok {
				return got.ends(now[0], hasToWait)
			}
		}
		begun := time.Now()
		ran := p.run(runner, o, g, now)
		if ran.abandoned {
			got.abandoned = true
			return got
		}
		if ran.refused != nil {
			brake.Cancel(*g.pass)
			return got.ends(now[0], ran.refused)
		}
		whole := ran.whole
		e, later := endOf(now, whole)
		e.Took = time.Since(begun) - runner.Paused()
		brake.Done(time.Now(), *g.pass, e)
		if len(later) > 0 {
			after := waits(later)
			if calls < callsInPage && got.waited+after <= p.Pause {
				pause, err := pause(ctx, after)
				if got.waited += pause; err != nil {
					got.err = err
					return got
				}
				p.resume(later)
				now = later
				continue
			}
			if !brake.Accepts() {
				return p.giveUp(brake, later, got)
			}
		}
		if whole == nil || len(now) == 1 {
			return got
		}
		return p.narrow(g, now, got, func(part *group) called { return p.call(ctx, runner, o, part) })
	}
}

// giveUp ends the calls for the entities in later, which a service has refused in all calls of this
// page. The argument got is the effect of the group's calls so far. The page ends before the first
// of these entities that has to wait. If none has to wait, the page continues.
func (p *Page) giveUp(brake *pace.Brake, later []*hand, got called) called {
	if refuses := brake.GiveUp(); p.Impatient && later[0].place == 0 {
		later = later[1:]
	} else if !refuses && !p.Alone && len(later) == 1 { // the service may accept the next entity
		later[0].r.failure.Attempts = p.Attempts - 1
		later = nil
	}
	if len(later) == 0 {
		return got
	}
	return got.ends(later[0], refusal(later, "a service refuses most calls"))
}

// refusal is the error of a page if a service has refused calls for these entities for now.
func refusal(later []*hand, summary string) error {
	return fault.Refusal{Summary: summary, Cause: later[0].r.failure.Err, Later: true, After: waits(later)}
}

// waits returns how long a service that has refused calls for these entities asks to wait.
func waits(later []*hand) (after time.Duration) {
	for _, h := range later {
		after = max(after, fault.After(h.r.failure.Err))
	}
	return after
}

// endOf describes the end of a call for the brake (pace.Brake). It also returns the entities that a
// service has refused for now. The argument whole is the error of the whole call, or nil.
func endOf(hands []*hand, whole error) (e pace.End, later []*hand) {
	n := pace.Calls{All: len(hands)}
	for _, h := range hands {
		f := h.r.failure
		if f == nil {
			continue
		}
		if n.Failed++; f.Permanent {
			continue
		}
		if n.Busy++; fault.IsLater(f.Err) {
			later = append(later, h)
		}
	}
	e = pace.End{Failed: n.Failed == n.All, Busy: n.Busy == n.All || len(later) > 0, Later: len(later) > 0}
	if whole == nil && n.All > 1 {
		e.Entities = n
	}
	return e, later
}

// resume resets the results of these entities, so that the function can be called for them again.
func (p *Page) resume(hands []*hand) {
	for _, h := range hands {
		h.r, _ = p.look(h.r.at, h.r.read)
	}
}

// ends makes the page end before an entity. If this is the page's first entity, the whole page
// fails with the given refusal, so that its range is postponed.
func (c called) ends(before *hand, refusal error) called {
	if c.end = before; before.place == 0 {
		c.err = refusal
	}
	return c
}

// A ran is the outcome of one call of the function, apart from its results for entities.
type ran struct {
	abandoned bool  // whether the call timed out and may still run
	whole     error // the error of the whole call; nil: none
	// refused says why the call has no effect: the function has announced calls of a service that
	// it may not make.
	refused error
}

// run calls the function once for the entities in hands, and stores the results in them.
func (p *Page) run(runner *function.Runner, o *Results, g *group, hands []*hand) (got ran) {
	calls := p.announcing(runner, hands[0].place)
	job := func(h *hand) function.Job {
		return function.Job{Ref: p.Job.Ref(), Range: p.Range, Masks: p.Job.Masks, Others: h.view, Calls: calls}
	}
	batch := make([]function.Subject, len(hands))
	for i, h := range hands {
		h.view = &view{get: p.Others, outcome: o, place: h.place, notes: g.notes}
		batch[i] = function.Subject{Job: job(h), Key: h.r.at.Key, Stored: h.r.read.Entity}
	}
	var answers []function.Answer
	var err error
	if !runner.Call(func(ctx context.Context) { answers, err = p.callFor(ctx, batch) }) {
		return ran{abandoned: true}
	}
	if n := calls.Waits(); n > 0 {
		p.Paces.CallMeter(p.Job.Ref()).Ran(n)
	}
	if refused, fails := Refusal(calls, len(hands), p.Impatient && hands[0].place == 0); fails {
		err = refused
	} else {
		got.refused = refused
	}
	got.whole = err
	for i, h := range hands {
		a := function.Answer{Err: err}
		if err == nil {
			a = answers[i]
		}
		p.keep(h, a.Effect, a.Err)
	}
	if n := g.narrows; n != nil {
		n.note(hands, err)
	}
	return got
}

// callFor calls the function for a batch of entities. If the function takes only one entity, the
// batch has one.
func (p *Page) callFor(ctx context.Context, batch []function.Subject) ([]function.Answer, error) {
	if p.BatchSize > 0 {
		return p.Batch(ctx, batch)
	}
	s := batch[0]
	e, err := p.Call(ctx, s.Job, s.Key, s.Stored)
	return []function.Answer{{Effect: e}}, err
}

// left handles a call that did not return. The parameter left says why: the call timed out, or it
// ended its goroutine. The method tells the brake (pace.Brake), and returns the error with which
// the call's entities fail.
func (p *Page) left(g *group, left error) error {
	e := pace.End{Failed: true}
	if errors.Is(left, function.ErrTimeout) {
		e.Took, e.Busy = time.Duration(p.Job.Timeout), true
	}
	p.Paces.Brake(p.Job.Ref()).Done(time.Now(), *g.pass, e)
	return p.abandoned(g, left)
}

// abandoned handles a call that did not return, for the reason in the parameter left. It makes
// further reads of this call fail, and returns the error with which the call's entities fail.
func (p *Page) abandoned(g *group, left error) error {
	for _, h := range g.hands {
		if h.view != nil {
			h.view.close()
		}
	}
	if errors.Is(left, function.ErrTimeout) {
		return TooSlowError{time.Duration(p.Job.Timeout)}
	}
	return left
}

// A BatchError says that a page must be retried with smaller batches, because a call for several
// entities failed. It is unknown which of the entities is the cause. The call took too long, ended
// its goroutine, or needs more calls of a service than the rate allows.
type BatchError struct {
	Entities int
	Cause    error
}

func (e BatchError) Error() string { return fmt.Sprintf("a batch of %d: %v", e.Entities, e.Cause) }

// A narrowing is the search for the entities that make a batch fail. The function runs on smaller
// and smaller parts of the batch.
type narrowing struct {
	begun    time.Time
	alone    int  // number of entities on which the function has failed alone
	accepted bool // whether the function has succeeded on a part of the entities
}

// note adds the outcome of one call of the function to the search. The argument whole is the error
// of the whole call; nil if there is none.
func (n *narrowing) note(hands []*hand, whole error) {
	switch {
	case whole == nil:
		n.accepted = true
	case len(hands) == 1:
		n.alone++
	}
}

// hopeless reports whether the function is at fault, and not some entities of the batch. This is so
// if it has failed on more than 10 entities alone. If it has succeeded on a part of the batch,
// these must also be more than 5% of a page, whose number of entities is the argument.
func (n *narrowing) hopeless(page int) bool {
	return pace.TooMany(n.alone, n.alone) && (!n.accepted || pace.TooMany(n.alone, page))
}

// narrow runs the function on each half of a batch that has failed as a whole, and then on the
// halves of a half that fails. The parameter call runs it on one part, and got is the effect of the
// calls so far. If the function is at fault, narrow stops, and the other entities fail with the
// batch's error. If the page's time is over, the page ends before the next half.
func (p *Page) narrow(g *group, failed []*hand, got called, call func(part *group) called) called {
	n := cmp.Or(g.narrows, &narrowing{begun: time.Now()})
	half := (len(failed) + 1) / 2
	for _, part := range [][]*hand{failed[:half], failed[half:]} {
		if n.hopeless(max(len(p.At), int(p.Job.PageSize))) {
			return got
		}
		over := time.Since(n.begun) >= longer(time.Duration(p.Job.PageTime)) || p.Ends()
		if part[0].place > 0 && over {
			got.end = part[0]
			return got
		}
		p.resume(part)
		of := call(&group{hands: part, notes: g.notes, pass: g.pass, narrows: n})
		of.waited += got.waited
		if got = of; got.abandoned || got.err != nil || got.end != nil {
			return got
		}
	}
	return got
}

// await waits until the job's rate and its brake (pace.Brake) allow a call for the entity at place,
// its index in the page. It stores the brake's permission in g.pass. The argument before is how
// long the page has already waited for this group. await returns how long it has waited now. If the
// wait would be too long for the page, ok is false.
func (p *Page) await(
	ctx context.Context, brake *pace.Brake, g *group, place int, before time.Duration,
) (ok bool, waited time.Duration, err error) {
	waited, err = pause(ctx, time.Until(p.Begin.Add(time.Duration(place)*p.Spacing)))
	*g.pass = pace.Pass{}
	for err == nil {
		wait, begins := brake.Ask(time.Now(), g.pass)
		if begins {
			return true, waited, nil
		}
		if before+waited+wait > p.Pause || p.Ends() {
			if brake.Insist(g.pass) {
				return true, waited, nil
			}
			break
		}
		wait, err = pause(ctx, wait)
		waited += wait
	}
	brake.Leave(*g.pass)
	return false, waited, err
}

// keep stores the outcome of a call in the entity's result: the effect e, or the error err.
func (p *Page) keep(h *hand, e *function.Effect, err error) {
	r := &h.r
	r.ran, r.saw = true, h.view.close()
	if err == nil {
		err = p.keepsPlace(r.at.Key, r.read.Entity, e)
	}
	if err != nil {
		r.failure = p.fails(r.at, r.read, err).failure
		return
	}
	if p.Mode == function.Update {
		r.incomplete = e.Incomplete()
	}
	if r.effect = e; len(e.Collected) > 0 {
		r.bytes = keyspace.EntitySize(r.read.Entity)
	}
}
