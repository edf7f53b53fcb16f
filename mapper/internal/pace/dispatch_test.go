package pace

import (
	"testing"
	"time"
)

// TestDispatch checks the estimated time of a delivery after some deliveries.
func TestDispatch(t *testing.T) {
	const ms = time.Millisecond
	up := time.Unix(1000, 0)
	type delivery struct{ due, took time.Duration } // due counts from the process's start
	of := func(took ...time.Duration) (all []delivery) {
		for i, t := range took {
			all = append(all, delivery{time.Duration(i) * ms, t})
		}
		return all
	}
	for _, test := range []struct {
		name       string
		deliveries []delivery
		want       time.Duration
	}{
		{"there were none", nil, 0},
		{"one", of(70 * ms), 70 * ms},
		{"most have waited in a full queue", of(time.Minute, time.Hour, 90*ms, time.Minute), 90 * ms},
		{"all have waited", of(time.Minute, time.Hour), longestDispatch},
		{"one was due when the process started", of(900 * ms), 900 * ms},
		{"one was due before that", []delivery{{-1, 900 * ms}}, 0},
		{"one has no time", []delivery{{-1000 * time.Second, 900 * ms}}, 0},
		{"only one was due after the start", []delivery{{-ms, 0}, {ms, 900 * ms}}, 900 * ms},
		{"the queue's clock is ahead", of(-time.Second), 0},
		{"the shortest was minutes ago", []delivery{{0, 50 * ms}, {dispatchSpan - ms, 900 * ms}}, 50 * ms},
		{"the shortest still counts", []delivery{{0, 50 * ms}, {dispatchSpan + ms, 900 * ms}}, 50 * ms},
		{"the queue has become slower", []delivery{{0, 50 * ms}, {dispatchSpan + ms, 900 * ms},
			{3 * dispatchSpan, 900 * ms}}, 900 * ms},
		{"the queue has become faster", []delivery{{0, 900 * ms}, {dispatchSpan + ms, 50 * ms}}, 50 * ms},
	} {
		d := NewDispatch(up)
		for _, one := range test.deliveries {
			due := up.Add(one.due)
			d.Note(due, due.Add(one.took))
		}
		if got := d.Takes(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
