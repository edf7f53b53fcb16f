package bench

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
)

// A random shape is a kind, what a function takes for its entities, and who runs it, drawn from a
// seed. Numbers are log-uniform in their ranges where nothing else is said.
type random struct {
	says []string // what it is made of, for readers

	n       int // entities of the kind
	key     func(i int) *datastore.Key
	index   func(*datastore.Key) int // of a key
	matches []bool                   // nil: all

	costs  []time.Duration // for those that match
	change []phase         // of what the function takes, over the time of the job
	shifts []shift         // in the order of their times
	cold   time.Duration   // until a process handles its first delivery
	jitter bool            // calls take from half to three halves of their time, and one in a hundred ten times
}

// A phase is from when on the function takes how many times as long.
type phase struct {
	from   time.Duration
	factor float64
}

// with returns the latencies of a shape: those that are usual may have jitter.
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

// A million entities of leastCost have an ideal of some three seconds on 100 workers. What takes
// less is mostly the start of a job.
const (
	leastCost = 100 * time.Microsecond
	mostCost  = 20 * time.Millisecond
)

// factor returns how many times as long the function takes, so long after the start.
func (r random) factor(since time.Duration) float64 {
	f := 1.0
	for _, p := range r.change {
		if p.from <= since {
			f = p.factor
		}
	}
	return f
}

// ideal returns how long the job would take if all that is done were the function's calls and, for
// each full page, one query and one commit; if every worker that is there were busy until the end;
// and if it began after one dispatch. It is at least what the dearest entity takes, where nothing
// is slower than usual.
//
// Where the function's time changes each moment is taken to have as large a part of the calls as of
// the pages' own calls. A worker that is late counts from when its process handles a delivery: the
// first process is up a cold start behind the first dispatch, and others have nothing to start for
// before that.
func (r random) ideal(l latencies, workers int) time.Duration {
	var sum, dearest time.Duration
	for _, c := range r.costs {
		sum, dearest = sum+c, max(dearest, c)
	}
	batches := (*pageSize + batch - 1) / batch
	page := time.Duration(batches)*perQuery + time.Duration(*pageSize)*perEntity + perCommit
	function := sum.Seconds()
	calls := float64(r.matching()) * l.mean(page).Seconds() / float64(*pageSize)

	// Between two of these times nothing changes.
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
		rate := there / (r.factor(t)*function + calls) // of the job, a second
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

// starter returns which process handles the first delivery, and when: the first one that is there
// at the start and has not gone when it is up. A delivery that finds that its process has gone
// comes to the next one, and has that start.
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

// handles reports whether a process handles deliveries so long after the first dispatch.
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
	return at >= max(came, begins)+r.cold // there is nothing to start for before that
}

// function returns what takes the time of an entity, of a job that began at a time, and notes that
// it was visited.
func (r random) function(visited []atomic.Int32, begun time.Time) func(*datastore.Key) {
	return func(k *datastore.Key) {
		i := r.index(k)
		visited[i].Add(1)
		time.Sleep(time.Duration(r.factor(time.Since(begun)) * float64(r.costs[i])))
	}
}
