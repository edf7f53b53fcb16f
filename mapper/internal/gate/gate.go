package gate

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// A Gate lets any number of tasks into this process at once, or one exclusive task. It is first
// come, first served, so neither kind starves. Everything that runs users' functions, or uses many
// resources, must pass it: pages, finalizers, sweeps and clean-ups.
type Gate struct {
	places *semaphore.Weighted
	Strays atomic.Int64 // calls that took too long, were abandoned, and have not returned

	draining context.Context
	drain    context.CancelFunc
	mu       sync.Mutex
	admitted int           // deliveries
	empty    chan struct{} // closed when the gate is draining, and the last delivery has ended
}

// New returns an empty gate.
func New() *Gate {
	g := &Gate{places: semaphore.NewWeighted(math.MaxInt64), empty: make(chan struct{})}
	g.draining, g.drain = context.WithCancel(context.Background())
	return g
}

// A Place is a task's place inside the gate. The task must call Leave when it ends.
type Place struct {
	Leave     func()
	Exclusive bool // nothing else is inside
	Waited    bool // it had to wait
	Alone     bool // if the process dies, this task is the cause
}

// Enter waits until a task may start. While the process is draining it returns ErrDraining.
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

// ErrDraining says that the process accepts no more deliveries.
var ErrDraining = errors.New("this process is about to end, and leaves its tasks to other processes")

// Admit lets a delivery into the process, unless the process is draining. The delivery must call
// leave when it ends.
func (g *Gate) Admit() (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.IsDraining() {
		return nil, ErrDraining
	}
	g.admitted++
	return g.leave, nil
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.admitted--; g.admitted == 0 && g.IsDraining() {
		close(g.empty)
	}
}

// Drain tells deliveries to end soon, and admits no more. It waits until all have ended. If ctx
// ends first, it returns the number of the remaining deliveries.
func (g *Gate) Drain(ctx context.Context) (left int, err error) {
	g.mu.Lock()
	if !g.IsDraining() {
		g.drain()
		if g.admitted == 0 {
			close(g.empty)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.empty:
		return 0, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.admitted == 0 {
		return 0, nil
	}
	return g.admitted, ctx.Err()
}

// Draining returns a context that is done once deliveries should end soon.
func (g *Gate) Draining() context.Context { return g.draining }

// IsDraining reports whether deliveries should end soon.
func (g *Gate) IsDraining() bool { return g.draining.Err() != nil }
