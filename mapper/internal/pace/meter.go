package pace

import (
	"context"
	"sync/atomic"
	"time"
)

// A Meter hands a job's rate out to the pages of one process. The process reserves for all pages
// that wait, in one call, on the clock that all processes share. A Meter is for several goroutines.
type Meter struct {
	turn    chan struct{} // has room for the page that reserves
	waiting atomic.Int64
	known   atomic.Pointer[Queue]

	rate       string    // the limit that was reserved
	begin, end time.Time // what was reserved and no page has yet
}

// NewMeter returns a meter without a reservation.
func NewMeter() *Meter {
	m := &Meter{turn: make(chan struct{}, 1)}
	m.known.Store(new(Queue))
	return m
}

// A Queue is what a page has before it.
type Queue struct {
	Wait  time.Duration
	Pages float64
}

// Queue returns what the last page had before it.
func (m *Meter) Queue() Queue { return *m.known.Load() }

// A Grant is when a page may begin, and with how many entities.
type Grant struct {
	At   time.Time
	N    int
	Cost time.Duration
	rate string
}

// Spacing returns how long after each other the page's entities begin.
func (g Grant) Spacing() time.Duration { return g.Cost / time.Duration(max(1, g.N)) }

// Of reports whether the grant is of a limit: a page whose limit has changed needs another one.
func (g Grant) Of(rate string) bool { return g.N > 0 && g.rate == rate }

// A Request is a page that waits for the rate.
type Request struct {
	Limit Limit
	Rate  string        // the limit as it is stored
	N     int           // entities
	Each  float64       // writes for each
	Since time.Duration // the ramp began
	Most  time.Duration // that the page shall wait
	Now   func() time.Time
}

// cost returns how many entities a page may have after a queue, and what they cost.
func (r Request) cost(q Queue) (int, time.Duration) {
	n := r.Limit.Page(r.N, r.Each, r.Since, q, r.Most)
	return n, r.Limit.Cost(float64(n), float64(n)*r.Each, r.Since)
}

// A Reserve reserves on the clock that all processes share. It returns when what it has reserved
// begins, and what is before it.
type Reserve func(ctx context.Context, cost time.Duration, pages int64) (begin time.Time, ahead float64, err error)

// Take grants a page when it may begin, and how many of its entities it may have. Where the process
// has too little of the rate it reserves what the waiting pages cost.
func (m *Meter) Take(ctx context.Context, r Request, reserve Reserve) (g Grant, err error) {
	m.waiting.Add(1)
	defer m.waiting.Add(-1)
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return g, ctx.Err()
	}
	if m.rate != r.Rate {
		m.rate, m.begin, m.end = r.Rate, time.Time{}, time.Time{}
		m.known.Store(new(Queue))
	}
	now := r.Now()
	m.lapse(now)
	q := m.Queue()
	q.Wait = max(0, m.begin.Sub(now))
	g.rate = r.Rate
	g.N, g.Cost = r.cost(q)
	if left := m.end.Sub(m.begin); left < g.Cost {
		pages := max(1, min(m.waiting.Load(), int64(Credit/g.Cost)))
		asked := g.Cost*time.Duration(pages) - left
		begin, ahead, err := reserve(ctx, asked, pages)
		if err != nil {
			return Grant{}, err
		}
		m.begin, m.end = begin.Add(-left), begin.Add(asked)
		q = Queue{max(0, m.begin.Sub(r.Now())), ahead}
		if n, cost := r.cost(q); n < g.N {
			g.N, g.Cost = n, cost
		}
	}
	m.known.Store(&q)
	g.At = m.begin
	m.begin = m.begin.Add(g.Cost)
	return g, nil
}

// lapse forgets what was reserved and is over.
func (m *Meter) lapse(now time.Time) {
	if from := now.Add(-Credit); m.begin.Before(from) {
		m.begin = from
	}
	if m.end.Before(m.begin) {
		m.end = m.begin
	}
}

// Settle gives back what a page has cost less than it was granted, or takes what it has cost more.
func (m *Meter) Settle(g Grant, cost time.Duration) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	if m.rate == g.rate {
		m.begin = m.begin.Add(cost - g.Cost)
	}
}
