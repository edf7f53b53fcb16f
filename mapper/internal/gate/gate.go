package gate

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// A Gate lets any number of tasks into this process at once, or one that is to be by itself. It
// is first come, first served, so neither starves. Whatever runs functions of users, or much of
// anything, passes it: pages, finalizers, sweeps and clean-ups.
type Gate struct {
	places *semaphore.Weighted
	Strays atomic.Int64 // functions that took too long, were left behind, and have not returned

	draining context.Context
	drain    context.CancelFunc
	mu       sync.Mutex
	admitted int           // deliveries
	empty    chan struct{} // is closed when it is draining, and the last of these has ended
}

// New returns a gate that nothing has passed.
func New() *Gate {
	g := &Gate{places: semaphore.NewWeighted(math.MaxInt64), empty: make(chan struct{})}
	g.draining, g.drain = context.WithCancel(context.Background())
	return g
}

// A Place is what a task has inside the gate. It calls Leave when it has ended.
type Place struct {
	Leave     func()
	Exclusive bool // nothing else is inside
	Waited    bool // it had to wait
	Alone     bool // if the process dies, it is of this task
}

// Enter waits until a task may begin. Once the process is draining, none may.
func (g *Gate) Enter(ctx context.Context, exclusive bool) (Place, error) {
	n := int64(1)
	if exclusive {
		n = math.MaxInt64
	}
	p := Place{Exclusive: exclusive}
	if g.IsDraining() {
		return Place{}, ErrDraining
	}
	if !g.places.TryAcquire(n) {
		p.Waited = true
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(g.draining, cancel)()
		if err := g.places.Acquire(ctx, n); err != nil {
			if g.IsDraining() {
				err = ErrDraining
			}
			return Place{}, err
		}
	}
	p.Alone = exclusive && g.Strays.Load() == 0
	p.Leave = sync.OnceFunc(func() { g.places.Release(n) })
	return p, nil
}
