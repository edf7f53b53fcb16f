package pace

import (
	"sync"
	"time"
)

// A Dispatch estimates how long a queue takes to deliver a task, from the deliveries to this
// process. The estimate is low: the shortest time of the last minutes. If the queue is full, most
// tasks wait, and only those that find it not full tell how long a dispatch takes.
//
// Several goroutines may use it.
type Dispatch struct {
	from time.Time

	mu          sync.Mutex
	now, before fastest
}

// A fastest is the shortest time of a number of deliveries.
type fastest struct {
	since time.Time
	n     int
	took  time.Duration
}

const (
	// dispatchSpan is how long a time counts at least. It counts for at most twice as long. So a
	// queue that has become slower is noticed.
	dispatchSpan = 10 * time.Minute

	// longestDispatch bounds the estimate: if tasks wait longer, their queue is full, or clocks
	// differ.
	longestDispatch = 3 * time.Second
)

// NewDispatch returns an estimate without deliveries, for a process that can take deliveries from a
// time on. Tasks that were due before do not count, because they may have waited for the process.
func NewDispatch(from time.Time) *Dispatch { return &Dispatch{from: from} }

// Note notes a task's first delivery. due is when the task was created, or its schedule time if
// that is later; zero: unknown.
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

// Takes returns the estimate; 0: unknown.
func (d *Dispatch) Takes() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.before.n > 0 {
		return min(d.before.took, d.now.took)
	}
	return d.now.took
}
