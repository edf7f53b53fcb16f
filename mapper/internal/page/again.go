package page

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Moved is an entity that another client has changed since it was read, with its new state. It is
// an entity of the page, or another one that the function has read.
type Moved struct {
	Guard
	Now wire.Stamp
}

// Again runs the function again on two groups of entities, and replaces their results. They may be
// failures.
//
//   - entities that other clients have changed
//   - entities for which the function has read or inserted an entity that has changed, by other
//     clients or by the new calls for earlier entities
//
// As in Run, calls may overlap and take batches.
//
// If aside returns an error for an entity, the function does not run again on it. The entity fails
// with this error, and the current attempt does not count. If the job's rate refuses calls of a
// service that the function announces, or the service refuses them for now, the page ends before
// that entity. Again does not report to the brake, which slows calls of services, and does not
// count the time of its runs.
func (p *Page) Again(ctx context.Context, o *Results, moved []Moved, aside func(Moved) error) error {
	out := make(map[int]error)
	// The entities on which the function has to run, by their places in the page.
	now := make(map[int]wire.Stamp)
	for _, m := range moved {
		r := &o.results[m.of]
		o.known.note(m.Key, m.Now)
		if _, twice := now[m.of]; !twice {
			r.moves++
			now[m.of] = r.read
		}
		if m.Key.Equal(r.at.Key) {
			now[m.of] = m.Now
		}
		if err := aside(m); err != nil {
			out[m.of] = err
		}
	}
	todo := slices.Sorted(maps.Keys(now))
	for width := max(1, p.AtOnce) * p.inCall(); len(todo) > 0; {
		hands, cut, err := p.rerunAll(ctx, o, todo[:min(width, len(todo))], now, out)
		if err != nil {
			return err
		}
		if cut < len(o.results) {
			o.results, o.Reached = o.results[:cut], cut
			todo = slices.DeleteFunc(todo, func(place int) bool { return place >= cut })
			hands = slices.DeleteFunc(hands, func(h *hand) bool { return h.place >= cut })
		}
		changed := make(map[string]bool) // keys of entities that this round changes
		for _, h := range hands {
			if h.view != nil && h.view.hasRead(changed) {
				width = max(1, width/2) // the calls of this page have read each other's writes, so fewer overlap
				continue
			}
			at, _ := slices.BinarySearch(todo, h.place)
			for _, name := range append(o.results[h.place].writes(), h.r.writes()...) {
				changed[name] = true
			}
			todo = o.replace(h.place, h.r, slices.Delete(todo, at, at+1), now)
		}
	}
	o.fold()
	return p.complete(ctx, o)
}

// rerunAll runs the function again on the entities at the given places (indexes in the page), and
// returns their new results. If the page must end early, cut is the place before which it ends. The
// map now has, by place, the state of each entity with which the function runs. The map out has, by
// place, the errors of entities that fail instead (see [Page.Again]).
func (p *Page) rerunAll(
	ctx context.Context, o *Results, places []int, now map[int]wire.Stamp, out map[int]error,
) (all []*hand, cut int, err error) {
	cut = len(o.results)
	var hands []*hand // the entities on which the function runs
	for _, i := range places {
		h := &hand{place: i}
		var counts bool
		if why := out[i]; why != nil {
			h.r = p.fails(o.results[i].at, now[i], why)
			h.r.failure.Attempts = p.Attempts - 1
		} else if h.r, counts = p.look(o.results[i].at, now[i]); counts {
			hands = append(hands, h)
		}
		all = append(all, h)
	}
	var calls sync.WaitGroup
	var panicked any
	var mu sync.Mutex
	for some := range slices.Chunk(hands, p.inCall()) { // a chunk has the entities of one call
		if ctx.Err() != nil {
			break
		}
		calls.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					mu.Lock()
					defer mu.Unlock()
					panicked = r
				}
			}()
			got := p.rerun(ctx, o, &group{hands: some, notes: true, pass: new(pace.Pass)})
			mu.Lock()
			defer mu.Unlock()
			if got.end != nil && got.end.place < cut {
				cut, err = got.end.place, got.err
			}
		})
	}
	calls.Wait()
	if panicked != nil {
		panic(panicked) // the delivery's goroutine handles the panic
	}
	return all, cut, cmp.Or(ctx.Err(), err)
}

// rerun runs the function again on the entities of a group. If calls of a service are refused for
// now, the page ends before the first of their entities.
func (p *Page) rerun(ctx context.Context, o *Results, g *group) (got called) {
	left := function.Calls(ctx, time.Duration(p.Job.Timeout), p.Strays, func(runner *function.Runner) {
		var call func(part *group) called
		call = func(part *group) called {
			ran := p.run(runner, o, part, part.hands)
			if ran.abandoned {
				return called{abandoned: true}
			}
			if ran.refused != nil {
				return called{}.ends(part.hands[0], ran.refused)
			}
			if _, later := endOf(part.hands, ran.whole); len(later) > 0 {
				if p.Impatient && later[0].place == 0 {
					later = later[1:]
				}
				if len(later) > 0 {
					return called{}.ends(later[0], refusal(later, "a service refuses a call for now"))
				}
			}
			if ran.whole == nil || len(part.hands) == 1 {
				return called{}
			}
			return p.narrow(part, part.hands, called{}, call)
		}
		if of := call(g); !of.abandoned {
			got = of
		}
	})
	if left != nil {
		err := p.abandoned(g, left)
		for _, h := range g.hands {
			h.r, h.view = p.fails(h.r.at, h.r.read, err), nil
		}
		return called{} // an abandoned call may still write into the group's results
	}
	return got
}
