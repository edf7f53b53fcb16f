package bench

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator/faults"
)

// A latencies says how long calls and dispatches take, in comparison with the times in
// latency_test.go.
type latencies struct {
	name  string
	scale float64        // a factor of all times
	vary  faults.Latency // varies the time of each call and dispatch; its second stands for the usual time
	slow  bool           // whether one call in a hundred takes ten times as long
	way   time.Duration  // the time from a dispatch to its arrival in a process, before scaling
	free  bool           // whether the function takes no time
}

func (l latencies) id() string { return l.name }

var (
	none   = faults.Constant(time.Second)
	jitter = faults.Uniform{Min: time.Second / 2, Max: 3 * time.Second / 2}
)

// allLatencies are the latencies that TestShapes can be run with. The latencies "production" are
// log-normal, as those in services usually are. They are a guess, and not measured.
var allLatencies = []latencies{
	{name: "usual", scale: 1, vary: none, way: perDispatch},
	{name: "triple", scale: 3, vary: none, way: perDispatch},
	{name: "dispatch", scale: 1, vary: none, way: time.Second},
	{name: "jitter", scale: 1, vary: jitter, slow: true, way: perDispatch},
	{name: "production", scale: 1, vary: faults.LogNormal{Median: time.Second, P99: 5 * time.Second},
		way: 2 * perDispatch},
	{name: "free", scale: 1, vary: none, way: perDispatch, free: true},
}

// A cloud delays calls and dispatches. It does so only while on is set.
type cloud struct {
	latencies
	on atomic.Bool

	mu  sync.Mutex
	rng *rand.Rand
}

func newCloud(l latencies, seed uint64) *cloud {
	return &cloud{latencies: l, rng: rand.New(rand.NewPCG(seed, 2))}
}

func (c *cloud) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	c.wait(latency(resp))
	return resp, err
}

// dispatch waits for the time that a delivery needs to reach its process.
func (c *cloud) dispatch() { c.wait(c.way) }

func (c *cloud) wait(usual time.Duration) {
	if !c.on.Load() {
		return
	}
	c.mu.Lock()
	factor := c.scale * c.vary.Draw(c.rng).Seconds()
	if c.slow && c.rng.IntN(100) == 0 {
		factor *= 10
	}
	c.mu.Unlock()
	time.Sleep(time.Duration(factor * float64(usual)))
}

// mean returns the mean time of a call or dispatch whose usual time is the argument.
func (l latencies) mean(usual time.Duration) time.Duration {
	factor := l.scale
	if v, ok := l.vary.(faults.LogNormal); ok {
		// 2.3263 is the distance from the median to the 99th percentile, in standard deviations
		sigma := math.Log(float64(v.P99)/float64(v.Median)) / 2.3263
		factor *= math.Exp(sigma * sigma / 2)
	}
	if l.slow {
		factor *= 0.99 + 0.01*10
	}
	return time.Duration(factor * float64(usual))
}
