package tasksemu

import (
	"net/http"
	"time"
)

// Constants of the throttle. If a handler answers 429 or 503, production slows down the whole
// queue. The documentation does not say by how much. Here, such an answer halves the queue's rate,
// at most once a second, and down to 1/64. For each 10 seconds without such an answer, the rate
// doubles again. These numbers are our choice.
//
// Production also slows a queue down after many other errors, and starts new, idle and resumed
// queues slowly. This emulator does not, because tests would then depend on guessed rates.
const (
	throttleOnceIn  = time.Second
	throttleRecover = 10 * time.Second
	throttleLowest  = 6 // the largest number of times that the rate is halved
)

// A throttle is how much a queue's rate is reduced, because its handler was overloaded.
type throttle struct {
	halvings int
	changed  time.Time // when the rate was last halved or doubled
	until    time.Time // until this time, nothing is dispatched
}

// overloads reports whether an answer with this HTTP status slows the whole queue down.
func overloads(httpStatus int) bool {
	return httpStatus == http.StatusTooManyRequests || httpStatus == http.StatusServiceUnavailable
}

// overloaded returns the throttle after an answer that slows the queue down. wait is what the
// answer's header Retry-After demands.
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

// at returns the throttle at the time now. By then, the rate may have recovered.
func (t throttle) at(now time.Time) throttle {
	for t.halvings > 0 && now.Sub(t.changed) >= throttleRecover {
		t.halvings--
		t.changed = t.changed.Add(throttleRecover)
	}
	return t
}

// share returns the factor by which the queue's rate is multiplied: at most 1, and at least 1/64.
func (t throttle) share() float64 { return 1 / float64(int(1)<<t.halvings) }

// next returns how long it takes until the result of the method share changes, if no further
// answers slow the queue down. 0 means that it will not change.
func (t throttle) next(now time.Time) time.Duration {
	if t.halvings == 0 {
		return 0
	}
	return t.changed.Add(throttleRecover).Sub(now)
}
