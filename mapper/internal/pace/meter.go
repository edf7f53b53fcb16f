package pace

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Meter distributes a job's rate among the pages of one process, or among the calls of its
// function. Comments on a Meter say page for both. All processes of a job reserve their parts of
// the rate in one record of the database. To keep the number of transactions low, a Meter reserves
// time for several pages at once. Several goroutines may use a Meter.
type Meter struct {
	turn    chan struct{} // a channel with room for the one page that reserves
	waiting atomic.Int64
	known   atomic.Pointer[Queue]

	rate string // the job's rate for which the time is reserved, as its record has it
	free []part // reserved times that no page has yet, the first one first

	reserved time.Time // when the process last reserved time; zero: never
	granted  int64     // the number of pages that got time since then

	mu   sync.Mutex
	each float64 // mean number of waits for calls in recent runs of the function; 0: there were none
}

// NewMeter returns a meter that has not reserved any time.
func NewMeter() *Meter {
	m := &Meter{turn: make(chan struct{}, 1)}
	m.known.Store(new(Queue))
	return m
}

// Ran records that a run of the mapper's function has ended, and how often it has waited for the
// rate of calls.
func (m *Meter) Ran(waits int64) {
	const weight = 0.1
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.each == 0 {
		m.each = float64(waits)
	}
	m.each += weight * (float64(waits) - m.each)
}

// Begins returns how long a run of the function may wait for its first calls, if it may wait for
// the time all in total.
func (m *Meter) Begins(all time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(float64(all) / max(1, m.each))
}

// Queue returns the reservations that came before the last page's one.
func (m *Meter) Queue() Queue { return *m.known.Load() }

// A Grant says when a page may start, and with how many entities.
type Grant struct {
	At   time.Time
	N    int
	Cost time.Duration
	rate string
}

// Spacing returns the time between the starts of the page's entities, by the rate.
func (g Grant) Spacing() time.Duration { return g.Cost / time.Duration(max(1, g.N)) }

// Of reports whether the grant is for this limit, given as a text. If the job's limit has changed
// since, the page needs a new grant.
func (g Grant) Of(rate string) bool { return g.N > 0 && g.rate == rate }

// A Request describes a page that waits for the rate.
type Request struct {
	Rate string // the job's rate in the form in which its record has it
	Cost Cost
	Now  func() time.Time
}

// A Cost is a function that returns the size of a page, if the reservations in q come before it. It
// returns how many entities or calls the page may have, and for how long they use the whole rate.
// It returns 0 entities if the page does not wait that long.
type Cost func(q Queue) (n int, cost time.Duration)

// PageCost returns the cost of a page of up to n entities, with each writes for an entity. The ramp
// started since ago, and the page waits for at most most.
func (r Limit) PageCost(n int, each float64, since, most time.Duration) Cost {
	return func(q Queue) (int, time.Duration) {
		n := r.Page(n, each, since, q, most)
		return n, r.Cost(float64(n), float64(n)*each, since)
	}
}

// CallCost returns the cost of n calls. They wait for the rate for at most the time most.
func (r Limit) CallCost(n int, most time.Duration) Cost {
	return func(q Queue) (int, time.Duration) {
		if q.Wait > most {
			return 0, 0
		}
		return n, upTo(MaxTakes, Need{Calls: float64(n)}.seconds(r.at(0)))
	}
}

// A Reserve is a function that reserves time in the record that all processes share: see
// [Clock.Reserve].
type Reserve func(ctx context.Context, ask Ask) (begin time.Time, q Queue, err error)

// Take grants a page its start and its number of entities. If the process has reserved too little
// time, Take first reserves enough for all waiting pages.
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

// grant gives a page its entities from a reserved part, and returns the grant.
func (m *Meter) grant(g Grant, q Queue, from *part) Grant {
	if m.known.Store(&q); g.N > 0 {
		m.granted++
		g.At = from.begin
		from.begin = from.begin.Add(g.Cost)
	}
	return g
}

// expected returns how many pages the process will probably have soon. It is the number that it has
// had lately, but at most twice the number since the last reservation, because reserved time that
// is not used is lost.
func (m *Meter) expected(now time.Time) int64 {
	const soon = Credit / 2
	return int64(float64(m.granted) * min(2, soon.Seconds()/max(1e-6, now.Sub(m.reserved).Seconds())))
}

// lapse drops reserved parts whose time is over.
func (m *Meter) lapse(now time.Time) {
	for i := range m.free {
		if from := now.Add(-Credit); m.free[i].begin.Before(from) {
			m.free[i].begin = from
		}
	}
	m.free = slices.DeleteFunc(m.free, func(p part) bool { return p.long() <= 0 })
}

// left returns the total length of the reserved parts, which are too short for the next page. It
// counts in the next reservation, up to [Credit], because other pages hold the time in between.
func (m *Meter) left() (all time.Duration) {
	for _, p := range m.free {
		all += p.long()
	}
	return min(all, Credit)
}

// Settle corrects the reserved time after a page, whose real cost may be less or more than it was
// granted.
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

// after returns the index of the first reserved span of time that starts at the given time or
// later.
func (m *Meter) after(at time.Time) int {
	i := slices.IndexFunc(m.free, func(p part) bool { return !p.begin.Before(at) })
	if i < 0 {
		return len(m.free)
	}
	return i
}

// A part is a span of time for which the process has reserved the whole rate.
type part struct{ begin, end time.Time }

func (p part) long() time.Duration { return p.end.Sub(p.begin) }
