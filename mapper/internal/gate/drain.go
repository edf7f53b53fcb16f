package gate

import (
	"context"
	"errors"
)

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
