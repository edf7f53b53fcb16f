package tasksemu

import (
	"net/http"
	"time"
)

// Production slows a queue down when its handler answers 429 or 503, says its
// documentation, and not by how much. Here such an answer halves the rate, once
// a second however many come, down to a 64th; each 10 seconds without one
// double it again. These numbers are ours.
//
// Production does the same at a high rate of other errors, and starts new,
// idle and resumed queues slowly. Here it does not: tests that depend on a rate
// would depend on a guess.
const (
	throttleOnceIn  = time.Second
	throttleRecover = 10 * time.Second
	throttleLowest  = 6 // halvings
)

// A throttle is how far a queue slows down for its handler's sake.
type throttle struct {
	halvings int
	changed  time.Time // the last halving, or doubling
	until    time.Time // nothing is dispatched before
}

// overloads reports whether an answer slows the whole queue down.
func overloads(httpStatus int) bool {
	return httpStatus == http.StatusTooManyRequests || httpStatus == http.StatusServiceUnavailable
}

// overloaded returns the throttle after an answer that asks to slow down, and
// not to come again for a while.
func (t throttle) overloaded(now time.Time, wait time.Duration) throttle {
	t = t.at(now)
	if t.halvings == 0 || now.Sub(t.changed) >= throttleOnceIn {
		t.halvings = min(t.halvings+1, throttleLowest)
		t.changed = now
	}
	if until := now.Add(wait); until.After(t.until) {
		t.until = until
	}
	return t
}

// at returns the throttle after the time that has passed.
func (t throttle) at(now time.Time) throttle {
	for t.halvings > 0 && now.Sub(t.changed) >= throttleRecover {
		t.halvings--
		t.changed = t.changed.Add(throttleRecover)
	}
	return t
}

// share is the part of the queue's rate that is left.
func (t throttle) share() float64 { return 1 / float64(int(1)<<t.halvings) }

// next is how long the share stays what it is, if nothing else happens. 0 means
// for ever.
func (t throttle) next(now time.Time) time.Duration {
	if t.halvings == 0 {
		return 0
	}
	return t.changed.Add(throttleRecover).Sub(now)
}
