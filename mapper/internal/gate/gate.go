package gate

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// A Gate lets either any number of tasks run in this process, or a single exclusive one. Tasks are
// admitted in the order in which they ask, so neither kind waits forever. Everything that runs
// users' functions or uses many resources must pass the gate: pages, finalizers, sweeps and
// clean-ups.
type Gate struct {
	places *semaphore.Weighted
	// Strays counts the calls of the mapper's function that took too long, were abandoned, and
	// still run.
	Strays atomic.Int64

	draining context.Context
	drain    context.CancelFunc
	mu       sync.Mutex
	waiting  int           // number of exclusive tasks that are waiting
	wanted   chan struct{} // closed while an exclusive task is waiting
	admitted int           // number of deliveries (requests of the queue) that the process is handling
	empty    chan struct{} // closed when the process drains and the last delivery has ended
}

// New returns an empty gate.
func New() *Gate {
	g := &Gate{places: semaphore.NewWeighted(math.MaxInt64), wanted: make(chan struct{}), empty: make(chan struct{})}
	g.draining, g.drain = context.WithCancel(context.Background())
	return g
}

// A Place says how [Gate.Enter] has admitted a task. The task must call Leave when it ends.
type Place struct {
	Leave     func()
	Exclusive bool // whether no other task is inside the gate
	Waited    bool // whether the task had to wait
	// Quiet says that nothing else runs in the process, not even an abandoned call of a function.
	// If the process dies now, this task is the cause.
	Quiet bool
}

// Enter waits until a task may start, and returns its place. An exclusive task waits until no other
// task runs. Once the process drains (is about to end), Enter returns ErrDraining.
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
		if exclusive {
			g.want(1)
			defer g.want(-1)
		}
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
	p.Quiet = exclusive && g.Strays.Load() == 0
	p.Leave = sync.OnceFunc(func() { g.places.Release(n) })
	return p, nil
}

// ErrDraining says that the process is about to end and accepts no more tasks.
var ErrDraining = errors.New("this process is about to end, and leaves its tasks to other processes")

// Admit counts a delivery, which is one request of the queue. The delivery must call leave when it
// ends. Once the process drains (is about to end), Admit returns ErrDraining.
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

// Drain tells all deliveries to end soon, and admits no more. It waits until all have ended. If ctx
// ends first, Drain returns how many deliveries are left, and the error of ctx.
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

// Draining returns a context that is done when deliveries have to end soon, because the process
// will end.
func (g *Gate) Draining() context.Context { return g.draining }

// IsDraining reports whether deliveries have to end soon, because the process will end.
func (g *Gate) IsDraining() bool { return g.draining.Err() != nil }

// Wanted returns a channel that is closed while an exclusive task is waiting. Until all running
// tasks have ended, no task can start. So a running task that only waits, for example for its rate
// limit, should end.
func (g *Gate) Wanted() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wanted
}

// want adds n to the number of waiting exclusive tasks: 1 when one starts to wait, -1 when it
// stops.
func (g *Gate) want(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.waiting += n; {
	case n > 0 && g.waiting == 1:
		close(g.wanted)
	case g.waiting == 0:
		g.wanted = make(chan struct{})
	}
}
