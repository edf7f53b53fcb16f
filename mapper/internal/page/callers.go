package page

import (
	"context"
	"errors"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

// callers are the runs of a page that announce calls of a service. If the job's rate refuses the
// calls of one, the page ends before its entities. Runs on later entities would have no effect, so
// their calls are refused, too, also those that wait. The zero value is ready for use.
type callers struct {
	mu      sync.Mutex
	place   int   // of the first entity whose calls were refused
	refused error // nil: none
	waiting map[*caller]bool
}

// A caller is a run that waits for its calls.
type caller struct {
	place int // of its first entity
	end   context.CancelFunc
}

// await waits for calls of a run.
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

// enter notes that a run waits, unless its calls are refused.
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

// refuses reports whether the page ends before an entity. The caller holds mu.
func (c *callers) refuses(place int) bool { return c.refused != nil && place > c.place }

// announcing returns where a run announces its calls. Its first entity is at place.
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

// Refusal says what becomes of a run over n entities whose calls may not be made. Usually it has no
// effect: the function runs again later, and no attempt counts. But two kinds of runs would be
// refused again: a run that needs too many calls, and a run that has made some of its calls. If
// such a run has several entities, the page is retried with fewer. A single entity fails: at once
// if it needs too many calls, and otherwise only if the range is impatient.
func Refusal(calls *function.Announced, n int, impatient bool) (refused error, fails bool) {
	made, refused := calls.Made()
	r, tooMany := fault.Refusal{}, fault.IsPermanent(refused)
	switch some := made > 0 && errors.As(refused, &r) && r.Own; {
	case !tooMany && !some:
		return refused, false
	case n > 1:
		return BatchError{n, refused}, false
	}
	return refused, tooMany || impatient
}
