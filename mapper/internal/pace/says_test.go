package pace

import (
	"testing"
	"time"
)

func TestSays(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		since time.Duration
		want  string
	}{
		{Limit{}, 0, ""},
		{Limit{EntitiesPerSecond: 0.5}, 0, "it keeps to its rate of 0.5 entities a second"},
		{Limit{WritesPerSecond: 10}, 0, "it keeps to its rate of 10 writes a second"},
		{Limit{EntitiesPerSecond: 3, WritesPerSecond: 10}, 0,
			"it keeps to its rate of 3 entities and 10 writes a second"},
		{Limit{CallsPerSecond: 5}, 0, "it keeps to its rate of 5 calls a second"},
		{Limit{EntitiesPerSecond: 3, WritesPerSecond: 10, CallsPerSecond: 5}, 0,
			"it keeps to its rate of 3 entities, 10 writes and 5 calls a second"},
		{Limit{Ramp: true, CallsPerSecond: 5}, 0,
			"it is on its ramp, at 500 entities and writes a second, and keeps to its rate of 5 calls a second"},
		{Limit{Ramp: true}, 0, "it is on its ramp, at 500 entities and writes a second"},
		{Limit{Ramp: true}, 5 * time.Minute, "it is on its ramp, at 750 entities and writes a second"},
		{Limit{Ramp: true, EntitiesPerSecond: 100}, 0, "it keeps to its rate of 100 entities a second"},
		{Limit{Ramp: true, WritesPerSecond: 500}, 0, "it keeps to its rate of 500 writes a second"},
		{Limit{Ramp: true, WritesPerSecond: 501}, 0, "it is on its ramp, at 500 entities and writes a second"},
		{Limit{Ramp: true, EntitiesPerSecond: 600}, 0, "it is on its ramp, at 500 entities and writes a second"},
		{Limit{Ramp: true, EntitiesPerSecond: 600}, time.Hour, "it keeps to its rate of 600 entities a second"},
	} {
		if got := c.limit.Says(c.since); got != c.want {
			t.Errorf("%+v after %v says %q, want %q", c.limit, c.since, got, c.want)
		}
	}
}

// TestBecomes checks the text for the job's history when its rate is changed.
func TestBecomes(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		want  string
	}{
		{Limit{}, "its rate is not limited any more"},
		{Limit{Ramp: true}, "its rate is set to a ramp"},
		{Limit{WritesPerSecond: 0.5}, "its rate is set to 0.5 writes a second"},
		{Limit{3, 10, 5, true},
			"its rate is set to 3 entities a second, 10 writes a second, 5 calls a second, a ramp"},
	} {
		if got := c.limit.Becomes(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.limit, got, c.want)
		}
	}
}

// TestNear checks when a job counts as limited by its rate, and which speed the rate allows.
func TestNear(t *testing.T) {
	for _, c := range []struct {
		limit    Limit
		entities float64
		each     Need
		near     bool
		most     float64
	}{
		{Limit{}, 1e6, Need{1, 1, 1}, false, 0},
		{Limit{EntitiesPerSecond: 100}, 70, Need{1, 1, 1}, true, 100},
		{Limit{EntitiesPerSecond: 100}, 69, Need{1, 5, 5}, false, 100},
		{Limit{WritesPerSecond: 100}, 36, Need{1, 2, 0}, true, 50},
		{Limit{CallsPerSecond: 100}, 200, Need{1, 1, 0.125}, false, 800},
		{Limit{CallsPerSecond: 100}, 700, Need{1, 1, 0.125}, true, 800},
		{Limit{CallsPerSecond: 100}, 1e6, Need{1, 1, 0}, false, 0},
	} {
		if near, most := c.limit.Near(c.entities, c.each, 0), c.limit.Entities(c.each, 0); near != c.near ||
			most != c.most {
			t.Errorf("%+v at %v/s, %+v each: near %v, most %v", c.limit, c.entities, c.each, near, most)
		}
	}
}
