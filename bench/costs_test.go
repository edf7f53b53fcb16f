package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// base is how long the function takes for most entities.
const base = 2 * time.Millisecond

// A cost is a distribution of work: how long the function takes for the i-th of n entities, in key
// order.
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

// otherCosts are distributions that run only if -costs names them. In each, most of the work is in
// a place that nobody can know before that work is done.
var otherCosts = []cost{
	lastTenth(2), lastTenth(3), lastTenth(5), lastTenth(10),
	{"cheap", func(_ *rand.Rand, i, n int) time.Duration {
		if i >= n/2 && i < n/2+n/10 {
			return 4 * base
		}
		return base / 200
	}},
	{"ramp", func(_ *rand.Rand, i, n int) time.Duration {
		return time.Duration(float64(2*base) * float64(i) / float64(n))
	}},
	{"steps", func(_ *rand.Rand, i, n int) time.Duration {
		return base * time.Duration([]int{1, 3, 1, 8, 2, 1, 1, 5}[i*8/n]) / 2
	}},
}

// lastTenth is a distribution in which the function takes a number of times as long for the last
// tenth of the entities.
func lastTenth(times int) cost {
	return cost{fmt.Sprintf("last-x%d", times), func(_ *rand.Rand, i, n int) time.Duration {
		if i >= n-n/10 {
			return time.Duration(times) * base
		}
		return base
	}}
}

// chosenCosts returns the distributions that the flag -costs names.
func chosenCosts(t *testing.T) []cost {
	if *costsFlag == "" {
		return costs
	}
	return chosen(t, *costsFlag, slices.Concat(costs, otherCosts))
}
