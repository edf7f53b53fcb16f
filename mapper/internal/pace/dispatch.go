package pace

import (
	"sync"
	"time"
)

// A Dispatch estimates how long a queue takes to deliver a task, from the deliveries to this
// process. The estimate is the shortest time that was measured in the last minutes. In a full queue
// most tasks wait, so only the fastest deliveries show how long a delivery itself takes.
//
// A Dispatch may be used by several goroutines.
type Dispatch struct {
	from time.Time

	mu          sync.Mutex
	now, before fastest
}

// A fastest is the shortest time of a delivery in a span of time.
type fastest struct {
	since time.Time
	n     int
	took  time.Duration
}

const (
	// dispatchSpan is the time for which a measured time is used, at least. It is used for at most
	// twice as long, so that the estimate can rise.
	dispatchSpan = 10 * time.Minute

	// longestDispatch is the upper bound of the estimate. If tasks wait longer, their queue is
	// full, or clocks differ.
	longestDispatch = 3 * time.Second
)

// NewDispatch returns a Dispatch for a process that accepts deliveries since the time from. Tasks
// that were due earlier do not count, because they may have waited for the start of the process.
func NewDispatch(from time.Time) *Dispatch { return &Dispatch{from: from} }

// Note records the first delivery of a task, which has arrived at the time came. The task was due
// when it was created, or at its schedule time if that is later. If due is unknown, it is zero, and
// the delivery does not count.
func (d *Dispatch) Note(due, came time.Time) {
	if due.Before(d.from) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if came.Sub(d.now.since) > dispatchSpan {
		d.before, d.now = d.now, fastest{since: came}
	}
	if took := min(max(0, came.Sub(due)), longestDispatch); d.now.n == 0 || took < d.now.took {
		d.now.took = took
	}
	d.now.n++
}

// Takes returns the estimated time from the moment when a task is due to its delivery; 0: unknown.
func (d *Dispatch) Takes() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.before.n > 0 {
		return min(d.before.took, d.now.took)
	}
	return d.now.took
}
