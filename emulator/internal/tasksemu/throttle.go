package tasksemu

import (
	"net/http"
	"time"
)

// Constants of the throttle. Production slows a queue down when its handler answers 429 or 503. The
// documentation does not say by how much. Here such an answer halves the rate, at most once a
// second, down to a 64th. Each 10 seconds without one double it again. These numbers are a choice.
//
// Production also slows down at a high rate of other errors, and starts new, idle and resumed
// queues slowly. Here it does not: tests that depend on a rate would depend on a guess.
const (
	throttleOnceIn  = time.Second
	throttleRecover = 10 * time.Second
	throttleLowest  = 6 // the largest number of times that the rate is halved
)

// A throttle says how much slower a queue is because its handler was overloaded.
type throttle struct {
	halvings int
	changed  time.Time // time of the last halving or doubling
	until    time.Time // the time before which nothing is dispatched
}

// overloads reports whether an answer with this HTTP status slows the whole queue down.
func overloads(httpStatus int) bool {
	return httpStatus == http.StatusTooManyRequests || httpStatus == http.StatusServiceUnavailable
}

// overloaded returns the throttle after an answer that slows the queue down. The answer asks to
// wait for the time wait.
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

// at returns the throttle at the time now, when the rate may have recovered.
func (t throttle) at(now time.Time) throttle {
	for t.halvings > 0 && now.Sub(t.changed) >= throttleRecover {
		t.halvings--
		t.changed = t.changed.Add(throttleRecover)
	}
	return t
}

// share returns the factor by which the queue's rate is multiplied, at most 1.
func (t throttle) share() float64 { return 1 / float64(int(1)<<t.halvings) }

// next returns how long the share stays the same if there are no further answers; 0: for ever.
func (t throttle) next(now time.Time) time.Duration {
	if t.halvings == 0 {
		return 0
	}
	return t.changed.Add(throttleRecover).Sub(now)
}
