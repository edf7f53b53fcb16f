package mapper

import (
	"context"
	"math"

	"golang.org/x/sync/semaphore"
)

// A gate lets any number of pages into this process at once, or one that is to be
// by itself. It is first come, first served, so neither starves.
type gate struct{ places *semaphore.Weighted }

func newGate() gate { return gate{semaphore.NewWeighted(math.MaxInt64)} }

// enter waits until a page may begin, and reports whether it had to. The page calls
// leave when it has ended.
func (g gate) enter(ctx context.Context, solo bool) (leave func(), waited bool, err error) {
	places := int64(1)
	if solo {
		places = math.MaxInt64
	}
	if !g.places.TryAcquire(places) {
		waited = true
		if err := g.places.Acquire(ctx, places); err != nil {
			return nil, waited, err
		}
	}
	return func() { g.places.Release(places) }, waited, nil
}
