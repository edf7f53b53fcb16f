package gate

import (
	"context"
	"errors"
)

// ErrDraining says that the process takes up nothing more.
var ErrDraining = errors.New("this process is about to end, and leaves its tasks to others")

// Admit lets a delivery into the process, unless that is draining. The delivery calls leave when it
// has ended.
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

// Drain has deliveries end as soon as they can, and no more be admitted. It waits until all are
// out, or returns how many are not when ctx is done.
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

// Draining is done once deliveries have to end as soon as they can.
func (g *Gate) Draining() context.Context { return g.draining }

// IsDraining reports whether deliveries have to end as soon as they can.
func (g *Gate) IsDraining() bool { return g.draining.Err() != nil }
