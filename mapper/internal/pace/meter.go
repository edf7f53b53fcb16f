package pace

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Meter distributes a job's rate among the pages of one process, or among the calls of its
// function to services. The comments on Meter say page in both cases. All processes with tasks of
// the job reserve their parts of the rate in one record of the database, see [Clock]. A Meter
// reserves time for several pages at once, to save transactions. A Meter may be used by several
// goroutines.
type Meter struct {
	turn    chan struct{} // a lock: it holds a value while a page reserves or takes time
	waiting atomic.Int64
	known   atomic.Pointer[Queue]

	rate string // the rate for which time is reserved, as in the job's record
	free []part // reserved spans of time that no page has taken, in order

	// Ahead is how far another process' clock is ahead of this process' clock. It may be used only
	// during a call of [Reserve].
	Ahead time.Duration

	reserved time.Time // when the process last reserved time; zero: never
	granted  int64     // number of pages that have taken time since then

	mu sync.Mutex
	// each is the mean number of times that a recent run of the function has waited for calls.
	each float64
}

// NewMeter returns a meter that has not reserved any time.
func NewMeter() *Meter {
	m := &Meter{turn: make(chan struct{}, 1)}
	m.known.Store(new(Queue))
	return m
}

// Ran tells the meter how many times a run of the mapper's function, which has ended, has waited
// for the rate of calls.
func (m *Meter) Ran(waits int64) {
	const weight = 0.1
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.each == 0 {
		m.each = float64(waits)
	}
	m.each += weight * (float64(waits) - m.each)
}

// Begins returns how long a run of the function may wait before its first calls. All waits of the
// run together may take the time all. A run probably needs as many waits as recent runs, so its
// first wait may take an equal part of that time.
func (m *Meter) Begins(all time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(float64(all) / max(1, m.each))
}

// Queue returns the reservations that came before the last page which has taken time.
func (m *Meter) Queue() Queue { return *m.known.Load() }

// A Grant says when a page may start, and how many entities it may have.
type Grant struct {
	At   time.Time
	N    int
	Cost time.Duration
	rate string
}

// Spacing returns the time between the starts of two entities of the page, at the rate of the
// grant.
func (g Grant) Spacing() time.Duration { return g.Cost / time.Duration(max(1, g.N)) }

// Of reports whether the grant was made for this rate, in the form of the job's record. Otherwise
// the job's rate has changed, and the page needs another grant.
func (g Grant) Of(rate string) bool { return g.N > 0 && g.rate == rate }

// A Request says which part of a job's rate a page of entities needs.
type Request struct {
	Rate string // the job's rate, in the form of the job's record
	Cost Cost
	Now  func() time.Time
}

// A Cost is a function that decides the size of a page, which comes after the reservations in q. It
// returns how many entities or calls the page may have, and for how long they use the whole rate.
// It returns 0 entities if the page would have to wait too long.
type Cost func(q Queue) (n int, cost time.Duration)

// PageCost returns the [Cost] of a page with up to n entities. The argument each is the number of
// writes for one entity, since is the time since the start of the ramp, and most is the longest
// wait of the page.
func (r Limit) PageCost(n int, each float64, since, most time.Duration) Cost {
	return func(q Queue) (int, time.Duration) {
		n := r.Page(n, each, since, q, most)
		return n, r.Cost(float64(n), float64(n)*each, since)
	}
}

// CallCost returns the [Cost] of n calls. The argument most is the longest time that they may wait.
func (r Limit) CallCost(n int, most time.Duration) Cost {
	return func(q Queue) (int, time.Duration) {
		if q.Wait > most {
			return 0, 0
		}
		return n, upTo(MaxTakes, Need{Calls: float64(n)}.seconds(r.at(0)))
	}
}

// A Reserve is a function that calls [Clock.Reserve] on the clock that all processes share, and
// stores the result.
type Reserve func(ctx context.Context, ask Ask) (begin time.Time, q Queue, err error)

// Take returns when a page may start, and how many entities it may have. If the process has not
// reserved enough time, Take first reserves it for all waiting pages together, by calling reserve.
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
	}
	now := r.Now()
	m.lapse(now)
	q := m.Queue()
	g.rate = r.Rate
	for i := range m.free {
		q.Wait = max(0, m.free[i].begin.Sub(now))
		if g.N, g.Cost = r.Cost(q); g.Cost <= m.free[i].long() { // also if it is refused
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

// grant takes the page's time from a reserved span, and completes the page's grant.
func (m *Meter) grant(g Grant, q Queue, from *part) Grant {
	if m.known.Store(&q); g.N > 0 {
		m.granted++
		g.At = from.begin
		from.begin = from.begin.Add(g.Cost)
	}
	return g
}

// expected returns how many pages of entities this process will probably have soon, so that time
// can be reserved for them. It follows from how many pages have recently taken time. It is at most
// twice the number of pages since the last reservation, because reserved time that is not used is
// lost.
func (m *Meter) expected(now time.Time) int64 {
	const soon = Credit / 2
	return int64(float64(m.granted) * min(2, soon.Seconds()/max(1e-6, now.Sub(m.reserved).Seconds())))
}

// lapse drops reserved time that is more than [Credit] in the past.
func (m *Meter) lapse(now time.Time) {
	for i := range m.free {
		if from := now.Add(-Credit); m.free[i].begin.Before(from) {
			m.free[i].begin = from
		}
	}
	m.free = slices.DeleteFunc(m.free, func(p part) bool { return p.long() <= 0 })
}

// left returns the total length of the reserved spans, if each is too short for the next page of
// entities. The next reservation is made shorter by this length, but by at most [Credit], because
// other processes hold the time in between.
func (m *Meter) left() (all time.Duration) {
	for _, p := range m.free {
		all += p.long()
	}
	return min(all, Credit)
}

// Settle corrects the reservation of a grant after its page of entities. The grant reserves the
// whole rate for the time g.Cost, and the page has really used it for the time cost.
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

// after returns the index of the first reserved span that starts at the given time or later.
func (m *Meter) after(at time.Time) int {
	i := slices.IndexFunc(m.free, func(p part) bool { return !p.begin.Before(at) })
	if i < 0 {
		return len(m.free)
	}
	return i
}

// A part is a span of time in which the process may use the whole rate.
type part struct{ begin, end time.Time }

func (p part) long() time.Duration { return p.end.Sub(p.begin) }
