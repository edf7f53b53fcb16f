package bench

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
)

// A random shape is drawn from a seed: a kind, the function's times for its entities, and the
// processes that run the job. Numbers are log-uniform in their ranges unless stated otherwise.
type random struct {
	says []string // a description for readers

	n       int // entities of the kind
	key     func(i int) *datastore.Key
	index   func(*datastore.Key) int // of a key's entity
	matches []bool                   // nil: all match

	costs  []time.Duration // of matching entities
	change []phase         // changes of the function's time during the job
	shifts []shift         // in order of time
	cold   time.Duration   // from a process's start to its first delivery
	jitter bool            // calls vary by half of their time, and one in a hundred takes ten times as long
}

// A phase is a time from which on the function takes a number of times as long.
type phase struct {
	from   time.Duration
	factor float64
}

// with returns the latencies for a shape: the usual ones get jitter if the shape has it.
func (l latencies) with(r random) latencies {
	if r.jitter && l.name == "usual" {
		l.vary, l.slow = jitter, true
	}
	return l
}

func (r random) String() string { return strings.Join(r.says, "; ") }

// matching returns how many entities the job is over.
func (r random) matching() int {
	if r.matches == nil {
		return r.n
	}
	n := 0
	for _, m := range r.matches {
		if m {
			n++
		}
	}
	return n
}

// With leastCost a million entities have an ideal of some three seconds on 100 workers. Shorter
// jobs are mostly their start.
const (
	leastCost = 100 * time.Microsecond
	mostCost  = 20 * time.Millisecond
)

// factor returns how many times as long the function takes at a time after the start.
func (r random) factor(since time.Duration) float64 {
	f := 1.0
	for _, p := range r.change {
		if p.from <= since {
			f = p.factor
		}
	}
	return f
}

// ideal returns the shortest possible time of the job. Only the function's calls take time, and one
// query and one commit for each full page. Each worker that is there is busy until the end, and the
// job starts after one dispatch. The ideal is at least the time of the slowest entity, at the
// function's usual speed.
//
// Where the function's time changes, each moment is assumed to have the same shares of function
// calls and of pages' calls. A worker that comes late counts from its process's first delivery. The
// first process is up one cold start after the first dispatch. Other processes start after that
// dispatch at the earliest.
func (r random) ideal(l latencies, workers int) time.Duration {
	var sum, dearest time.Duration
	for _, c := range r.costs {
		sum, dearest = sum+c, max(dearest, c)
	}
	batches := (*pageSize + batch - 1) / batch
	page := time.Duration(batches)*perQuery + time.Duration(*pageSize)*perEntity + perCommit
	function := sum.Seconds()
	calls := float64(r.matching()) * l.mean(page).Seconds() / float64(*pageSize)

	// Nothing changes between two of these times.
	first := l.mean(l.way)
	_, begins := r.starter()
	times := []time.Duration{0, begins, begins + r.cold}
	for _, p := range r.change {
		times = append(times, p.from)
	}
	for _, s := range r.shifts {
		times = append(times, s.at, s.at+r.cold)
	}
	slices.Sort(times)
	times = slices.Compact(times)
	done := 0.0
	for i, t := range times {
		there := 0.0
		for p := range fleetSize {
			if r.handles(p, t) {
				there += float64(workers) / fleetSize
			}
		}
		rate := there / (r.factor(t)*function + calls) // the share of the job done in a second
		if i+1 < len(times) {
			if more := rate * (times[i+1] - t).Seconds(); done+more < 1 {
				done += more
				continue
			}
		}
		took := t + time.Duration((1-done)/rate*float64(time.Second))
		return max(took, dearest) + first
	}
	panic("the last time has no end")
}

// starter returns the process that handles the first delivery, and when it does. It is the first
// process that is there at the start and does not go before it is up. If the process of the first
// delivery goes, the next process gets the delivery, and starts at that time.
func (r random) starter() (process int, at time.Duration) {
	for p := range fleetSize {
		if !there(r.shifts, p, 0) {
			continue
		}
		if at += r.cold; there(r.shifts, p, at) {
			return p, at
		}
	}
	panic("all processes go before they are up")
}

// handles reports whether a process handles deliveries at a time after the first dispatch.
func (r random) handles(process int, at time.Duration) bool {
	if !there(r.shifts, process, at) {
		return false
	}
	came := time.Duration(0)
	for _, s := range r.shifts {
		if s.process == process && s.up && s.at <= at {
			came = s.at
		}
	}
	starter, begins := r.starter()
	if process == starter && came == 0 {
		return at >= begins
	}
	return at >= max(came, begins)+r.cold // it has no reason to start earlier
}

// function returns a function that takes an entity's time, for a job that started at a time, and
// notes the visit.
func (r random) function(visited []atomic.Int32, begun time.Time) func(*datastore.Key) {
	return func(k *datastore.Key) {
		i := r.index(k)
		visited[i].Add(1)
		time.Sleep(time.Duration(r.factor(time.Since(begun)) * float64(r.costs[i])))
	}
}
