package pace

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestReserve(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		until, begin time.Duration // relative to now
		ahead        float64       // of ten pages that were ahead 10 s ago
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

// A shared is the clock that processes share.
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

// TestMeter checks that the pages of three processes together keep to one rate.
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
					g, err := meters[i%3].Take(t.Context(), Request{Limit: limit, Rate: "200", N: 500,
						Most: 20 * time.Second, Now: time.Now}, c.reserve)
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
			g, err := m.Take(t.Context(), Request{Limit: Limit{EntitiesPerSecond: 10}, Rate: rate, N: n,
				Most: 20 * time.Second, Now: time.Now}, c.reserve)
			if err != nil || g.N != n || !g.Of(rate) || g.Of("other") {
				t.Fatalf("%+v, %v", g, err)
			}
			return g
		}
		first := ask("10", 10)
		m.Settle(first, 300*time.Millisecond) // it has done three of ten entities
		if second := ask("10", 7); !second.At.Equal(first.At.Add(300*time.Millisecond)) || c.calls != 1 {
			t.Errorf("the second page begins %v after the first, after %d calls", second.At.Sub(first.At), c.calls)
		}
		if third := ask("another", 5); !third.Of("another") || c.calls != 2 {
			t.Errorf("a rate that has changed: %+v, %d calls", third, c.calls)
		}
		m.Settle(first, 0) // the rate of this grant has changed
		if ask("another", 5); c.calls != 3 {
			t.Errorf("%d calls", c.calls)
		}
		failed := errors.New("failed")
		if _, err := m.Take(t.Context(), Request{Limit: Limit{EntitiesPerSecond: 10}, Rate: "10", N: 5, Now: time.Now},
			func(context.Context, Ask) (begin time.Time, q Queue, err error) { return begin, q, failed }); !errors.Is(
			err, failed) {
			t.Error(err)
		}
	})
}
