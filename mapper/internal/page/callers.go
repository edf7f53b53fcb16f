package page

import (
	"context"
	"errors"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

// callers has the calls of a page's function that wait because they have announced calls of a
// service. If the job's rate refuses the calls for an entity, the page ends before this entity.
// Then calls of the function for later entities have no effect, so the calls of a service that they
// announce are refused, too. The zero value is ready for use.
type callers struct {
	mu      sync.Mutex
	place   int   // index in the page of the first entity whose announced calls were refused
	refused error // why they were refused; nil: none were
	waiting map[*caller]bool
}

// A caller is a call of the function that waits until it may make the calls of a service that it
// has announced.
type caller struct {
	place int // index in the page of the call's first entity
	end   context.CancelFunc
}

// await calls wait, which returns when the job's rate allows the calls that the entity at place
// announces. If the page ends before this entity meanwhile, await ends the context of wait. It
// returns an error if the calls are refused.
func (c *callers) await(ctx context.Context, place int, wait func(context.Context) error) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &caller{place, cancel}
	if err := c.enter(w); err != nil {
		return err
	}
	err := wait(within)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, w)
	switch {
	case err == nil, ctx.Err() != nil, fault.IsPermanent(err):
	case c.refuses(place):
		err = c.refused
	default:
		c.place, c.refused = place, err
		for w := range c.waiting {
			if w.place > place {
				w.end()
			}
		}
	}
	return err
}

// enter records that a call of the function waits. It returns an error if its announced calls are
// already refused.
func (c *callers) enter(w *caller) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses(w.place) {
		return c.refused
	}
	if c.waiting == nil {
		c.waiting = make(map[*caller]bool)
	}
	c.waiting[w] = true
	return nil
}

// refuses reports whether calls that are announced for the entity at place are refused, because the
// page ends before it. The caller holds mu.
func (c *callers) refuses(place int) bool { return c.refused != nil && place > c.place }

// announcing returns the object to which a call of the function announces calls of a service. The
// argument place is the index in the page of the call's first entity.
func (p *Page) announcing(runner *function.Runner, place int) *function.Announced {
	if p.Calls == nil {
		return function.Announcing(runner, nil, p.Announced)
	}
	return function.Announcing(runner, func(ctx context.Context, n int, before int64) error {
		return p.calls.await(ctx, place, func(ctx context.Context) error {
			return p.Calls(ctx, n, before, place == 0)
		})
	}, p.Announced)
}

// Refusal decides what happens to a call of the function over n entities if it may not make the
// calls of a service that it has announced. Usually the call has no effect: the function runs again
// later, and no attempt has failed. The result refused is the reason, and fails says that the
// attempt has failed.
//
// Two kinds of calls would be refused again: a call that announces too many calls of a service, and
// a call that has already made some of them. If such a call has several entities, refused is a
// [BatchError], and the page is retried with smaller batches. If it has a single entity, this
// entity may fail. It fails at once if it announces too many calls. Otherwise it fails only if the
// range has waited too long, as impatient says.
func Refusal(calls *function.Announced, n int, impatient bool) (refused error, fails bool) {
	made, refused := calls.Made()
	r, tooMany := fault.Refusal{}, fault.IsPermanent(refused)
	_ = errors.As(refused, &r) // zero if there is none
	switch some := made > 0 && r.Own; {
	case !tooMany && !some:
		return refused, false
	case n > 1:
		return BatchError{n, refused}, false
	}
	return refused, tooMany || impatient
}
