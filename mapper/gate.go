package mapper

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// A gate lets any number of tasks into this process at once, or one that is to be by itself. It
// is first come, first served, so neither starves. Whatever runs functions of users, or much of
// anything, passes it: pages, finalizers, sweeps and clean-ups.
type gate struct {
	places *semaphore.Weighted
	strays atomic.Int64 // functions that took too long, were left behind, and have not returned
}

func newGate() *gate { return &gate{places: semaphore.NewWeighted(math.MaxInt64)} }

// A place is what a task has inside the gate. It calls leave when it has ended.
type place struct {
	leave  func()
	solo   bool // nothing else is inside
	waited bool // it had to wait
	alone  bool // if the process dies, it is of this task
}

// enter waits until a task may begin.
func (g *gate) enter(ctx context.Context, solo bool) (place, error) {
	n := int64(1)
	if solo {
		n = math.MaxInt64
	}
	p := place{solo: solo}
	if !g.places.TryAcquire(n) {
		p.waited = true
		if err := g.places.Acquire(ctx, n); err != nil {
			return place{}, err
		}
	}
	p.alone = solo && g.strays.Load() == 0
	p.leave = sync.OnceFunc(func() { g.places.Release(n) })
	return p, nil
}
