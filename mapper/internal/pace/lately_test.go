package pace

import (
	"testing"
	"time"
)

// TestSpans checks when a span of calls ends, and that the longest call is left out.
func TestSpans(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		n     int
		each  time.Duration
		spans bool // whether the next call is in a new span
	}{{1000, ms / 10, false}, {7, time.Second, false}, {8, 25*ms - 1, false}, {8, 25 * ms, true}} {
		var l Lately
		for range c.n {
			l.Add(c.each)
		}
		l.Add(2 * time.Second)
		want := Lately{now: span{c.n + 1, time.Duration(c.n)*c.each + 2*time.Second, 2 * time.Second}}
		if c.spans {
			want = Lately{span{1, 2 * time.Second, 2 * time.Second}, span{c.n, time.Duration(c.n) * c.each, c.each}}
		}
		if l != want || l.Each() != c.each {
			t.Errorf("%+v: then %+v, %v each", c, l, l.Each())
		}
	}
}

// TestLately checks the mean time while calls become slower and faster.
func TestLately(t *testing.T) {
	const ms = time.Millisecond
	var l Lately
	calls := func(n int, t time.Duration) {
		for range n {
			l.Add(t)
		}
	}
	if l.Each() != 0 {
		t.Errorf("of no calls %v", l.Each())
	}
	calls(1, 5*ms)
	if l.Each() != 5*ms {
		t.Errorf("of one call %v", l.Each())
	}
	calls(1000, ms)
	if l.Each() != ms {
		t.Errorf("of calls that were fast but for one: %v", l.Each())
	}
	calls(16, 20*ms)
	calls(1, 500*ms) // a single long call is left out
	calls(17, 20*ms)
	if l.Each() != 20*ms {
		t.Errorf("of calls that have become slow: %v", l.Each())
	}
	calls(500, ms)
	if l.Each() != ms {
		t.Errorf("of calls that are fast again: %v", l.Each())
	}
}
