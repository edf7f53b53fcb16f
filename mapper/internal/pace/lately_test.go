package pace

import (
	"testing"
	"time"
)

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
