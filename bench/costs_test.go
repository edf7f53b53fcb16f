package bench

import (
	"math"
	"math/rand/v2"
	"time"
)

// base is what the function takes on most entities.
const base = 2 * time.Millisecond

// A cost is how long the function takes on each of n entities, in key order.
type cost struct {
	name string
	of   func(rng *rand.Rand, i, n int) time.Duration
}

var costs = []cost{
	{"uniform", func(*rand.Rand, int, int) time.Duration { return base }},
	{"hot-1%", func(_ *rand.Rand, i, n int) time.Duration {
		if first := n * 63 / 100; i >= first && i < first+n/100 {
			return 100 * base
		}
		return base
	}},
	{"last-10%", func(_ *rand.Rand, i, n int) time.Duration {
		if i >= n-n/10 {
			return 40 * base
		}
		return base
	}},
	{"pareto", func(rng *rand.Rand, _, _ int) time.Duration {
		const alpha, most = 1.2, 1000
		return time.Duration(float64(base) * min(most, math.Pow(1-rng.Float64(), -1/alpha)))
	}},
}
