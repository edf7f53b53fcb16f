package pace

import (
	"context"
	"sync/atomic"
	"time"
)

// A Meter distributes a job's rate among the pages of one process, or among the calls of its
// function. Below, a page may also be a call. All processes share one clock. To keep the number of
// transactions low, the process reserves time on it for several pages at once. Several goroutines
// may use a Meter.
type Meter struct {
	turn    chan struct{} // has room for the one page that reserves
	waiting atomic.Int64
	known   atomic.Pointer[Queue]

	rate       string        // the limit of the reservation
	begin, end time.Time     // the part of the reservation that no page has yet
	spare      time.Duration // given back by pages before that part; counts in the next reservation

	reserved time.Time // when the process last reserved; zero: not yet
	granted  int64     // pages since then
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
	Rate string // the limit as stored
	Cost Cost
	Now  func() time.Time
}

// A Cost returns how many entities, or calls, a page may have after a queue, and for how long they
// use the whole rate. 0 entities: the page does not wait so long.
type Cost func(q Queue) (n int, cost time.Duration)

// PageCost returns the cost of a page of up to n entities, each with that many writes. since is the
// time since the start of the ramp, and most is the longest time that the page shall wait.
func (r Limit) PageCost(n int, each float64, since, most time.Duration) Cost {
	return func(q Queue) (int, time.Duration) {
		n := r.Page(n, each, since, q, most)
		return n, r.Cost(float64(n), float64(n)*each, since)
	}
}

// CallCost returns the cost of n calls, which wait for at most the given time.
func (r Limit) CallCost(n int, most time.Duration) Cost {
	return func(q Queue) (int, time.Duration) {
		if q.Wait > most {
			return 0, 0
		}
		return n, upTo(time.Hour, Need{Calls: float64(n)}.seconds(r.at(0)))
	}
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
		m.rate, m.begin, m.end, m.spare, m.granted = r.Rate, time.Time{}, time.Time{}, 0, 0
		m.known.Store(new(Queue))
	}
	now := r.Now()
	m.lapse(now)
	q := m.Queue()
	q.Wait = max(0, m.begin.Sub(now))
	g.rate = r.Rate
	g.N, g.Cost = r.Cost(q)
	if left := m.end.Sub(m.begin); left < g.Cost {
		left += m.spare
		var asked time.Duration
		expected := m.expected(now)
		begin, ahead, err := reserve(ctx, func(q Queue) (time.Duration, int64) {
			if g.N, g.Cost = r.Cost(q); g.N == 0 {
				asked = 0
				return 0, 0
			}
			pages := max(1, min(max(m.waiting.Load(), expected), int64(Credit/max(1, g.Cost))))
			asked = max(0, g.Cost*time.Duration(pages)-left)
			return asked, pages
		})
		if err != nil {
			return Grant{}, err
		}
		if q = ahead; g.N > 0 {
			m.begin, m.end, m.spare = begin.Add(-left), begin.Add(asked), 0
			m.reserved, m.granted = now, 0
		}
	}
	if m.known.Store(&q); g.N > 0 {
		m.granted++
		g.At = m.begin
		m.begin = m.begin.Add(g.Cost)
	}
	return g, nil
}

// expected returns how many pages the process is expected to have soon: as many as it has had
// lately. That is at most twice as many as since the last reservation, because a reservation that
// is not used in time is lost.
func (m *Meter) expected(now time.Time) int64 {
	const soon = Credit / 2
	return int64(float64(m.granted) * min(2, soon.Seconds()/max(1e-6, now.Sub(m.reserved).Seconds())))
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

// Settle corrects the reservation after a page has cost less or more than it was granted. Only the
// last page gives back its own time. Other pages hold the time after an earlier one, perhaps in
// other processes. So the process may exceed the rate by what that page has given back, up to
// [Credit].
func (m *Meter) Settle(g Grant, cost time.Duration) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	switch back := g.Cost - cost; {
	case m.rate != g.rate:
	case back > 0 && !m.begin.Equal(g.At.Add(g.Cost)):
		m.spare = min(Credit, m.spare+back)
	default:
		m.begin = m.begin.Add(-back)
	}
}
