package pace

import "time"

// Lately observes how long recent calls take that run one after the other. Its zero value has no
// calls.
type Lately struct{ now, before span }

// A span is a series of calls.
type span struct {
	n            int
	ran, dearest time.Duration
}

// These constants are the minimum of a span's calls and of its length. The mean of fewer calls
// says little, and shorter calls matter little.
const (
	spanCalls = 8
	spanTime  = 200 * time.Millisecond
)

// Add notes a call.
func (l *Lately) Add(t time.Duration) {
	if l.now.n >= spanCalls && l.now.ran >= spanTime {
		l.before, l.now = l.now, span{}
	}
	l.now.n, l.now.ran, l.now.dearest = l.now.n+1, l.now.ran+t, max(l.now.dearest, t)
}

// Each returns the mean time of a call over the last two spans. It leaves out the longest call,
// because that says little about the others.
func (l Lately) Each() time.Duration {
	n, ran := l.now.n+l.before.n, l.now.ran+l.before.ran
	if n > 1 {
		n, ran = n-1, ran-max(l.now.dearest, l.before.dearest)
	}
	return ran / time.Duration(max(1, n))
}
