package faults_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/scattermap/scattermap/emulator/faults"
)

// TestLatencies checks the quantiles of each distribution over 10,000 draws.
func TestLatencies(t *testing.T) {
	for _, c := range []struct {
		latency     faults.Latency
		median, p99 time.Duration
	}{
		{faults.Constant(time.Second), time.Second, time.Second},
		{faults.Uniform{Min: time.Second, Max: 3 * time.Second}, 2 * time.Second, 2980 * time.Millisecond},
		{faults.Uniform{Min: time.Second}, time.Second, time.Second},
		{faults.Exponential{Mean: time.Second}, 693 * time.Millisecond, 4605 * time.Millisecond},
		{faults.LogNormal{Median: 20 * time.Millisecond, P99: 200 * time.Millisecond}, 20 * time.Millisecond,
			200 * time.Millisecond},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		drawn := make([]time.Duration, 10000)
		for i := range drawn {
			drawn[i] = c.latency.Draw(rng)
		}
		slices.Sort(drawn)
		near := func(got, want time.Duration) bool { return max(got-want, want-got) <= want/8 }
		if median, p99 := drawn[5000], drawn[9900]; !near(median, c.median) || !near(p99, c.p99) || drawn[0] < 0 {
			t.Errorf("%T%+v: median %v, 99th percentile %v; want about %v and %v", c.latency, c.latency, median, p99,
				c.median, c.p99)
		}
	}
}
