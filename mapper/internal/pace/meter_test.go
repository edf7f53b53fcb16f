package pace

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestReserve(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		until, begin time.Duration // counted from now
		ahead        float64       // how many of the ten pages that were ahead 10 s ago still are
	}{
		{10 * time.Second, 10 * time.Second, 5},
		{0, 0, 0},
		{-Credit / 2, -Credit / 2, 0},
		{-time.Hour, -Credit, 0},
	} {
		clock := Clock{Until: now.Add(c.until), At: now.Add(-10 * time.Second), Ahead: 10}
		begin, q := clock.Reserve(now, func(Queue) (time.Duration, int64) { return 3 * time.Second, 2 })
		if got := begin.Sub(now); got != c.begin || q != (Queue{max(0, c.begin), c.ahead}) {
			t.Errorf("reserved until %v: from %v, want from %v: %+v", c.until, got, c.begin, q)
		}
		if want := (Clock{Until: begin.Add(3 * time.Second), At: now, Ahead: c.ahead + 2}); clock != want {
			t.Errorf("reserved until %v: the clock is %+v, want %+v", c.until, clock, want)
		}
	}
}

// A shared is the clock that the processes of a test share.
type shared struct {
	mu    sync.Mutex
	clock Clock
	calls int
}

func (s *shared) reserve(_ context.Context, ask Ask) (time.Time, Queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	begin, q := s.clock.Reserve(time.Now(), ask)
	return begin, q, nil
}

// TestMeter checks that the pages of three processes together keep to the job's rate.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := Limit{EntitiesPerSecond: 200}
		c := &shared{clock: Clock{Until: time.Now()}}
		meters := []*Meter{NewMeter(), NewMeter(), NewMeter()}
		begun, entities, pages := time.Now(), 0, 0
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range 30 {
			group.Go(func() {
				for time.Since(begun) < time.Minute {
					g, err := meters[i%3].Take(t.Context(), Request{Rate: "200", Now: time.Now,
						Cost: limit.PageCost(500, 0, 0, 20*time.Second)}, c.reserve)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					pages++
					mu.Unlock()
					time.Sleep(time.Until(g.At))
					if time.Since(begun) < time.Minute {
						mu.Lock()
						entities += g.N
						mu.Unlock()
					}
				}
			})
		}
		group.Wait()
		if want := 60 * 200; entities < want*97/100 || entities > want*103/100 {
			t.Errorf("%d entities in a minute, want %d", entities, want)
		}
		if c.calls > pages {
			t.Errorf("%d reservations for %d pages", c.calls, pages)
		}
	})
}

func TestMeterSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m := &shared{clock: Clock{Until: time.Now()}}, NewMeter()
		ask := func(rate string, n int) Grant {
			t.Helper()
			g, err := m.Take(t.Context(), Request{Rate: rate, Now: time.Now,
				Cost: Limit{EntitiesPerSecond: 10}.PageCost(n, 0, 0, 20*time.Second)}, c.reserve)
			if err != nil || g.N != n || !g.Of(rate) || g.Of("other") {
				t.Fatalf("%+v, %v", g, err)
			}
			return g
		}
		first := ask("10", 10)
		m.Settle(first, 300*time.Millisecond) // the page has processed only three of ten entities
		if second := ask("10", 7); !second.At.Equal(first.At.Add(300*time.Millisecond)) || c.calls != 1 {
			t.Errorf("the second page starts %v after the first, after %d calls", second.At.Sub(first.At), c.calls)
		}
		if third := ask("another", 5); !third.Of("another") || c.calls != 2 {
			t.Errorf("a rate that has changed: %+v, %d calls", third, c.calls)
		}
		m.Settle(first, 0) // the job's rate has changed since this grant, so nothing may change
		if ask("another", 5); c.calls != 3 {
			t.Errorf("%d calls", c.calls)
		}
		failed := errors.New("failed")
		if _, err := m.Take(t.Context(), Request{Rate: "10", Now: time.Now,
			Cost: Limit{EntitiesPerSecond: 10}.PageCost(5, 0, 0, 0)},
			func(context.Context, Ask) (begin time.Time, q Queue, err error) { return begin, q, failed }); !errors.Is(
			err, failed) {
			t.Error(err)
		}
	})
}

// TestMeterOfCalls simulates processes whose goroutines announce calls of a service. In each
// second, there must be at most as many calls as the job's rate allows in two seconds. If enough
// calls are announced, their rate must reach the job's rate. One transaction must reserve time for
// several calls.
func TestMeterOfCalls(t *testing.T) {
	for _, c := range []struct {
		processes, goroutines int
		rate                  float64
		n                     int           // number of calls that are announced together
		between               time.Duration // the time between a goroutine's calls
		least                 float64       // the least share of the job's rate that must be reached
		each                  float64       // the largest number of transactions for a call
	}{
		{1, 1, 100, 1, 0, 0.99, 0.05},
		{1, 20, 100, 1, 10 * time.Millisecond, 0.99, 0.1},
		{5, 4, 100, 1, 150 * time.Millisecond, 0.95, 0.5},
		{5, 100, 1000, 1, 300 * time.Millisecond, 0.95, 0.1},
		{5, 1, 2, 1, time.Second, 0.95, 1},
		{5, 4, 100, 7, 300 * time.Millisecond, 0.95, 1},
		{5, 4, 1000, 1, time.Second, 0.019, 1}, // too few calls to reach the rate
	} {
		synctest.Test(t, func(t *testing.T) {
			limit, took := Limit{CallsPerSecond: c.rate}, time.Minute
			clock := &shared{clock: Clock{Until: time.Now()}}
			begun := time.Now()
			var mu sync.Mutex
			var calls []time.Duration
			var group sync.WaitGroup
			for range c.processes {
				m := NewMeter()
				for range c.goroutines {
					group.Go(func() {
						for time.Since(begun) < took {
							g, err := m.Take(t.Context(), Request{Rate: "r", Now: time.Now,
								Cost: limit.CallCost(c.n, time.Minute)},
								func(ctx context.Context, ask Ask) (time.Time, Queue, error) {
									time.Sleep(20 * time.Millisecond)
									return clock.reserve(ctx, ask)
								})
							if err != nil || g.N != c.n {
								t.Errorf("%+v, %v", g, err)
								return
							}
							time.Sleep(time.Until(g.At))
							mu.Lock()
							for range g.N {
								calls = append(calls, time.Since(begun))
							}
							mu.Unlock()
							time.Sleep(c.between)
						}
					})
				}
			}
			group.Wait()
			n, first := 0, 0
			for i, at := range calls {
				for calls[first] < at-time.Second {
					first++
				}
				if most := 2*c.rate + float64(c.n); float64(i-first+1) > most {
					t.Fatalf("%+v: %d calls in the second before %v, want %v at most", c, i-first+1, at, most)
				}
				if at < took {
					n++
				}
			}
			if all := c.rate * took.Seconds(); float64(n) < c.least*all || float64(n) > 1.01*all+c.rate {
				t.Errorf("%+v: %d calls, want %.0f", c, n, all)
			}
			if most := c.each * float64(len(calls)); float64(clock.calls) > most {
				t.Errorf("%+v: %d transactions for %d calls", c, clock.calls, len(calls))
			}
		})
	}
}

// TestMeterRefuses requests calls that would have to wait too long. They must not reserve time.
func TestMeterRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &shared{clock: Clock{Until: time.Now().Add(time.Minute)}}
		until, m := clock.clock.Until, NewMeter()
		ask := func(most time.Duration) Grant {
			g, err := m.Take(t.Context(), Request{Rate: "r", Now: time.Now,
				Cost: Limit{CallsPerSecond: 2}.CallCost(1, most)}, clock.reserve)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		if g := ask(20 * time.Second); g.N != 0 || !clock.clock.Until.Equal(until) || clock.clock.Ahead != 0 ||
			!m.reserved.IsZero() {
			t.Errorf("%+v, and the clock is reserved until %v, for %v pages", g, clock.clock.Until, clock.clock.Ahead)
		}
		if g := ask(2 * time.Minute); g.N != 1 || !g.At.Equal(until) {
			t.Errorf("%+v, want a call at %v", g, until)
		}
	})
}

// TestMeterSettlesBetween checks a process that gives back time for calls after another process has
// reserved the time that follows. The first process may then use at most one second of the other's
// time.
func TestMeterSettlesBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &shared{clock: Clock{Until: time.Now()}}
		from, a, b := time.Now(), NewMeter(), NewMeter()
		take := func(m *Meter, n int, want time.Duration) Grant {
			t.Helper()
			g, err := m.Take(t.Context(), Request{Rate: "r", Now: time.Now,
				Cost: Limit{CallsPerSecond: 1}.CallCost(n, time.Hour)}, c.reserve)
			if at := g.At.Sub(from); err != nil || at != want {
				t.Fatalf("%v, %v, want %v", at, err, want)
			}
			return g
		}
		var mine []Grant
		for i := range time.Duration(4) {
			mine = append(mine, take(a, 5, 10*i*time.Second))
			take(b, 5, (10*i+5)*time.Second)
		}
		a.Settle(mine[2], 0)
		a.Settle(mine[1], 2*time.Second)
		a.Settle(mine[0], 0)
		take(a, 5, 0)
		take(a, 5, 20*time.Second)
		take(a, 2, 12*time.Second)
		take(a, 5, 39*time.Second) // the rest of the second is too short for the calls
		time.Sleep(30 * time.Second)
		a.Settle(mine[3], time.Second)
		take(a, 1, 31*time.Second)
		take(a, 4, 44*time.Second-time.Second)
	})
}

// TestMeterTogether checks that one reservation is for all pages that wait, and no larger than
// Credit if each needs more.
func TestMeterTogether(t *testing.T) {
	for rate, want := range map[float64]int{100: 1, 1: 3} {
		synctest.Test(t, func(t *testing.T) {
			c, m := &shared{clock: Clock{Until: time.Now()}}, NewMeter()
			var group sync.WaitGroup
			for range 3 {
				group.Go(func() {
					if _, err := m.Take(t.Context(), Request{Rate: "r", Now: time.Now,
						Cost: Limit{CallsPerSecond: rate}.CallCost(1, time.Minute)},
						func(ctx context.Context, ask Ask) (time.Time, Queue, error) {
							time.Sleep(time.Second) // meanwhile all wait
							return c.reserve(ctx, ask)
						}); err != nil {
						t.Error(err)
					}
				})
			}
			if group.Wait(); c.calls != want {
				t.Errorf("at %v calls a second: %d reservations for three calls, want %d", rate, c.calls, want)
			}
		})
	}
}

// TestMeterParts checks which reserved time is used, and what the cost of a page is told about it.
func TestMeterParts(t *testing.T) {
	at := time.Unix(1000, 0)
	span := func(from, to time.Duration) part { return part{at.Add(from), at.Add(to)} }
	const s = time.Second
	for _, c := range []struct {
		name string
		free []part
		cost time.Duration
		wait time.Duration // what the cost is told
		at   time.Duration // when the page starts
		left []part
	}{
		{"time that has just begun", []part{span(0, 2*s)}, s, 0, 0, []part{span(s, 2*s)}},
		{"time in the future", []part{span(3*s, 5*s)}, s, 3 * s, 3 * s, []part{span(4*s, 5*s)}},
		{"time of a second ago", []part{span(-s, s)}, s, 0, -s, []part{span(0, s)}},
		{"time of long ago", []part{span(-9*s, -2*s), span(-9*s, s)}, s, 0, -s, []part{span(0, s)}},
		{"only that", []part{span(-9*s, -s), span(3*s, 5*s)}, s, 3 * s, 3 * s, []part{span(4*s, 5*s)}},
		{"too little time", []part{span(0, s/2), span(3*s, 5*s)}, s, 3 * s, 3 * s,
			[]part{span(0, s/2), span(4*s, 5*s)}},
		{"just enough", []part{span(0, s)}, s, 0, 0, []part{span(s, s)}},
	} {
		m := NewMeter()
		if m.Queue() != (Queue{}) {
			t.Errorf("a new meter has reserved %+v", m.Queue())
		}
		m.rate, m.free = "r", c.free
		var wait time.Duration
		g, err := m.Take(t.Context(), Request{Rate: "r", Now: func() time.Time { return at },
			Cost: func(q Queue) (int, time.Duration) { wait = q.Wait; return 1, c.cost }}, nil)
		if got := g.At.Sub(at); err != nil || got != c.at || wait != c.wait || !slices.Equal(m.free, c.left) {
			t.Errorf("%s: starts at %v, is told to wait %v; then %v, %v", c.name, got, wait, m.free, err)
		}
	}
}

// TestSettle checks what becomes of reserved time if a page of two seconds took more or less.
func TestSettle(t *testing.T) {
	at := time.Unix(1000, 0)
	span := func(from, to time.Duration) part { return part{at.Add(from), at.Add(to)} }
	const s = time.Second
	for _, c := range []struct {
		name       string
		free, want []part
		took       time.Duration
	}{
		{"half of it is left, and nothing else", nil, []part{span(s, 2*s)}, s},
		{"it ends where the next begins", []part{span(2*s, 3*s)}, []part{span(s, 3*s)}, s},
		{"it comes before the next", []part{span(5*s, 6*s)}, []part{span(s, 2*s), span(5*s, 6*s)}, s},
		{"it comes after all", []part{span(-s, 0)}, []part{span(-s, 0), span(s, 2*s)}, s},
		{"it took longer: the next page starts later", []part{span(2*s, 5*s), span(7*s, 8*s)},
			[]part{span(3*s, 5*s), span(7*s, 8*s)}, 3 * s},
		{"it took longer, and nothing is reserved", nil, nil, 3 * s},
		{"it took as long as it should", []part{span(2*s, 5*s)}, []part{span(2*s, 5*s)}, 2 * s},
	} {
		m := NewMeter()
		m.rate, m.free = "r", c.free
		m.Settle(Grant{At: at, N: 1, Cost: 2 * s, rate: "r"}, c.took)
		if !slices.Equal(m.free, c.want) {
			t.Errorf("%s: %v, want %v", c.name, m.free, c.want)
		}
	}
	if (Grant{rate: "r"}).Of("r") {
		t.Error("a grant of nothing is enough for a page")
	}
}

// TestMeterBegins checks how long a run of the function may wait for its first call. It must be
// able to wait as long before each further call that it is expected to make.
func TestMeterBegins(t *testing.T) {
	first := NewMeter()
	if first.Ran(10); first.Begins(100*time.Second) != 10*time.Second {
		t.Errorf("after one run with ten waits, a new one may wait for %v", first.Begins(100*time.Second))
	}
	m := NewMeter()
	for _, c := range []struct {
		waits     int64 // number of waits in 30 runs
		from, end float64
	}{{1, 100, 100}, {20, 5, 6}, {2, 30, 50}} {
		for range 30 {
			m.Ran(c.waits)
		}
		if got := m.Begins(100 * time.Second).Seconds(); got < c.from || got > c.end {
			t.Errorf("after runs with %d waits, a new one may wait for %v s, want %v to %v", c.waits, got, c.from,
				c.end)
		}
	}
}

// TestCallCost checks that calls cost as much time as they need at the job's rate, whether they are
// announced together or one by one.
func TestCallCost(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 2 * time.Second, 30: time.Minute, 7200: 4 * time.Hour} {
		if got, cost := (Limit{CallsPerSecond: 0.5}).CallCost(n, 0)(Queue{}); got != n || cost != want {
			t.Errorf("%d calls cost %v, want %v", got, cost, want)
		}
	}
}
