package pace

import (
	"context"
	"sync/atomic"
	"time"
)

// A Meter distributes a job's rate among the pages of one process. All processes share one clock.
// To keep the number of calls low, the process reserves time on it for all its waiting pages at
// once. Several goroutines may use a Meter.
type Meter struct {
	turn    chan struct{} // has room for the one page that reserves
	waiting atomic.Int64
	known   atomic.Pointer[Queue]

	rate       string    // the limit of the reservation
	begin, end time.Time // the part of the reservation that no page has yet
}

// NewMeter returns a meter without a reservation.
func NewMeter() *Meter {
	m := &Meter{turn: make(chan struct{}, 1)}
	m.known.Store(new(Queue))
	return m
}

// Queue returns the queue ahead of the last page.
func (m *Meter) Queue() Queue { return *m.known.Load() }

// A Grant says when a page may start, and with how many entities.
type Grant struct {
	At   time.Time
	N    int
	Cost time.Duration
	rate string
}

// Spacing returns the time between the starts of the page's entities.
func (g Grant) Spacing() time.Duration { return g.Cost / time.Duration(max(1, g.N)) }

// Of reports whether the grant is for this limit. If the limit has changed, a page needs a new
// grant.
func (g Grant) Of(rate string) bool { return g.N > 0 && g.rate == rate }

// A Request describes a page that waits for the rate.
type Request struct {
	Limit Limit
	Rate  string        // the limit as stored
	N     int           // number of entities
	Each  float64       // writes for each entity
	Since time.Duration // time since the start of the ramp
	Most  time.Duration // longest time that the page shall wait
	Now   func() time.Time
}

// cost returns how many entities a page may have after a queue, and their cost.
func (r Request) cost(q Queue) (int, time.Duration) {
	n := r.Limit.Page(r.N, r.Each, r.Since, q, r.Most)
	return n, r.Limit.Cost(float64(n), float64(n)*r.Each, r.Since)
}

// A Reserve reserves time on the clock that all processes share, see [Clock.Reserve].
type Reserve func(ctx context.Context, ask Ask) (begin time.Time, q Queue, err error)

// Take grants a page its start and its number of entities. If the process has too little of the
// rate in reserve, Take first reserves enough for all waiting pages.
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
		var asked time.Duration
		begin, ahead, err := reserve(ctx, func(q Queue) (time.Duration, int64) {
			g.N, g.Cost = r.cost(q)
			pages := max(1, min(m.waiting.Load(), int64(Credit/max(1, g.Cost))))
			asked = max(0, g.Cost*time.Duration(pages)-left)
			return asked, pages
		})
		if err != nil {
			return Grant{}, err
		}
		q, m.begin, m.end = ahead, begin.Add(-left), begin.Add(asked)
	}
	m.known.Store(&q)
	g.At = m.begin
	m.begin = m.begin.Add(g.Cost)
	return g, nil
}

// lapse drops the part of the reservation whose time is over.
func (m *Meter) lapse(now time.Time) {
	if from := now.Add(-Credit); m.begin.Before(from) {
		m.begin = from
	}
	if m.end.Before(m.begin) {
		m.end = m.begin
	}
}

// Settle corrects the reservation after a page has cost less or more than it was granted.
func (m *Meter) Settle(g Grant, cost time.Duration) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	if m.rate == g.rate {
		m.begin = m.begin.Add(cost - g.Cost)
	}
}
