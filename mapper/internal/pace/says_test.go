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
		{Limit{Ramp: true}, 0, "it is on its ramp, at 500 entities and writes a second"},
		{Limit{Ramp: true}, 5 * time.Minute, "it is on its ramp, at 750 entities and writes a second"},
		{Limit{Ramp: true, EntitiesPerSecond: 100}, 0, "it keeps to its rate of 100 entities a second"},
		{Limit{Ramp: true, EntitiesPerSecond: 600}, 0, "it is on its ramp, at 500 entities and writes a second"},
		{Limit{Ramp: true, EntitiesPerSecond: 600}, time.Hour, "it keeps to its rate of 600 entities a second"},
	} {
		if got := c.limit.Says(c.since); got != c.want {
			t.Errorf("%+v after %v says %q, want %q", c.limit, c.since, got, c.want)
		}
	}
}
