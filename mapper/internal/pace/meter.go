package pace

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Meter distributes a job's rate among the pages of one process, or among the calls of its
// function. Comments on a Meter say page for both. All processes of a job share one clock, which is
// a record of the database. To keep the number of transactions low, the process reserves time on it
// for several pages at once. Several goroutines may use a Meter.
type Meter struct {
	turn    chan struct{} // has room for the one page that reserves
	waiting atomic.Int64
	known   atomic.Pointer[Queue]

	rate string // the limit of the reservation
	free []part // the parts of the reservation that no page has, the first one first

	reserved time.Time // when the process last reserved; zero: not yet
	granted  int64     // pages since then

	mu   sync.Mutex
	each float64 // how often recent runs of the function have waited for calls; 0: none has
}

// NewMeter returns a meter that has reserved nothing of the rate yet.
func NewMeter() *Meter {
	m := &Meter{turn: make(chan struct{}, 1)}
	m.known.Store(new(Queue))
	return m
}

// Ran notes how often a run of the function has waited for its calls.
func (m *Meter) Ran(waits int64) {
	const weight = 0.1
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.each == 0 {
		m.each = float64(waits)
	}
	m.each += weight * (float64(waits) - m.each)
}

// Begins returns how long a run may wait for its first calls, if it has some time to wait for all
// of them.
func (m *Meter) Begins(all time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(float64(all) / max(1, m.each))
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
		return n, upTo(MaxTakes, Need{Calls: float64(n)}.seconds(r.at(0)))
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
		m.rate, m.free, m.granted = r.Rate, nil, 0
		m.known.Store(new(Queue))
	}
	now := r.Now()
	m.lapse(now)
	q := m.Queue()
	g.rate = r.Rate
	for i := range m.free {
		q.Wait = max(0, m.free[i].begin.Sub(now))
		if g.N, g.Cost = r.Cost(q); g.N == 0 || g.Cost <= m.free[i].long() {
			return m.grant(g, q, &m.free[i]), nil
		}
	}
	left := m.left()
	var asked time.Duration
	expected := m.expected(now)
	begin, q, err := reserve(ctx, func(q Queue) (time.Duration, int64) {
		if g.N, g.Cost = r.Cost(q); g.N == 0 {
			return 0, 0
		}
		pages := max(1, min(max(m.waiting.Load(), expected), int64(Credit/max(1, g.Cost))))
		asked = max(0, g.Cost*time.Duration(pages)-left)
		return asked, pages
	})
	if err != nil {
		return Grant{}, err
	}
	if g.N > 0 {
		m.free = []part{{begin.Add(-left), begin.Add(asked)}}
		m.reserved, m.granted = now, 0
		return m.grant(g, q, &m.free[0]), nil
	}
	return m.grant(g, q, nil), nil
}

// grant grants a page its entities, from a part of the reservation.
func (m *Meter) grant(g Grant, q Queue, from *part) Grant {
	if m.known.Store(&q); g.N > 0 {
		m.granted++
		g.At = from.begin
		from.begin = from.begin.Add(g.Cost)
	}
	return g
}

// expected returns how many pages the process is expected to have soon: as many as it has had
// lately. That is at most twice as many as since the last reservation, because a reservation that
// is not used in time is lost.
func (m *Meter) expected(now time.Time) int64 {
	const soon = Credit / 2
	return int64(float64(m.granted) * min(2, soon.Seconds()/max(1e-6, now.Sub(m.reserved).Seconds())))
}

// lapse drops the parts of the reservation whose time is over.
func (m *Meter) lapse(now time.Time) {
	for i := range m.free {
		if from := now.Add(-Credit); m.free[i].begin.Before(from) {
			m.free[i].begin = from
		}
	}
	m.free = slices.DeleteFunc(m.free, func(p part) bool { return p.long() <= 0 })
}

// left returns how much of the reservation is left in parts that are too short for the next page.
// It counts in the next reservation, up to [Credit]: other pages hold the time in between.
func (m *Meter) left() (all time.Duration) {
	for _, p := range m.free {
		all += p.long()
	}
	return min(all, Credit)
}

// Settle corrects the reservation after a page has cost less or more than it was granted.
func (m *Meter) Settle(g Grant, cost time.Duration) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	back := part{g.At.Add(cost), g.At.Add(g.Cost)}
	switch i := m.after(back.begin); {
	case m.rate != g.rate:
	case back.long() < 0:
		if len(m.free) > 0 {
			m.free[0].begin = m.free[0].begin.Add(-back.long())
		}
	case i < len(m.free) && m.free[i].begin.Equal(back.end):
		m.free[i].begin = back.begin
	default:
		m.free = slices.Insert(m.free, i, back)
	}
}

// after returns the index of the first part that starts at a time or later.
func (m *Meter) after(at time.Time) int {
	i := slices.IndexFunc(m.free, func(p part) bool { return !p.begin.Before(at) })
	if i < 0 {
		return len(m.free)
	}
	return i
}

// A part is a time in which a process has the whole rate.
type part struct{ begin, end time.Time }

func (p part) long() time.Duration { return p.end.Sub(p.begin) }
