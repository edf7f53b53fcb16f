package bench

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
)

// A random is a shape: a random job that is drawn from a seed. It has the keys of the kind, how
// long the function takes for each entity, and when processes start and end. Numbers are drawn
// log-uniformly from their ranges unless stated otherwise.
type random struct {
	says []string // a description for readers

	n       int // number of entities of the kind
	key     func(i int) *datastore.Key
	index   func(*datastore.Key) int // the index of the entity with a key
	matches []bool                   // whether the filter matches each entity; nil: all match

	costs  []time.Duration // how long the function takes for each matching entity
	change []phase         // changes of the function's time during the job
	shifts []shift         // starts and ends of processes, in the order of time
	cold   time.Duration   // the time from a process's start to its first delivery
	jitter bool            // whether calls vary by half of their time, and one in a hundred takes ten times as long
}

// A phase says that from a time on, the function takes a number of times as long as usual.
type phase struct {
	from   time.Duration
	factor float64
}

// with returns the latencies for a shape. If the shape has jitter, it replaces the latencies
// "usual" by ones with jitter.
func (l latencies) with(r random) latencies {
	if r.jitter && l.name == "usual" {
		l.vary, l.slow = jitter, true
	}
	return l
}

func (r random) String() string { return strings.Join(r.says, "; ") }

// matching returns the number of entities that the job processes.
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

// Bounds of the function's mean time. With leastCost, the ideal time of a job of a million entities
// with 100 workers is about three seconds. The time of a shorter job is mostly its start.
const (
	leastCost = 100 * time.Microsecond
	mostCost  = 20 * time.Millisecond
)

// factor returns how many times as long the function takes as usual, at a time after the job's
// start.
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
// query and one commit for each full page. All existing workers are busy until the end, and the job
// starts after one dispatch. The ideal is at least the time of the slowest entity, at the
// function's usual speed.
//
// If the function's speed changes during the job, the work at each moment is assumed to have the
// same proportion of function calls to queries and commits. A worker counts from its process's
// first delivery. The first process handles deliveries one cold start after the first dispatch.
// Other processes start after that dispatch at the earliest.
func (r random) ideal(l latencies, workers int) time.Duration {
	var sum, dearest time.Duration
	for _, c := range r.costs {
		sum, dearest = sum+c, max(dearest, c)
	}
	batches := (*pageSize + batch - 1) / batch
	page := time.Duration(batches)*perQuery + time.Duration(*pageSize)*perEntity + perCommit
	function := sum.Seconds()
	calls := float64(r.matching()) * l.mean(page).Seconds() / float64(*pageSize)

	// Between two of these times, nothing changes.
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
		rate := there / (r.factor(t)*function + calls) // the share of the job that is done in a second
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
// process that exists at the start and does not end before its cold start is over. If a process
// ends before that, the next process gets the delivery, and starts at that time.
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

// handles reports whether a process handles deliveries at a time, counted from the first dispatch.
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
	return at >= max(came, begins)+r.cold // a process does not start before the first delivery needs it
}

// function returns the job's function, which waits for as long as an entity takes, and counts the
// calls for each entity. The second argument is the time when the job started.
func (r random) function(visited []atomic.Int32, begun time.Time) func(*datastore.Key) {
	return func(k *datastore.Key) {
		i := r.index(k)
		visited[i].Add(1)
		time.Sleep(time.Duration(r.factor(time.Since(begun)) * float64(r.costs[i])))
	}
}
