package pace

import "time"

// A Lately has the times of recent calls that ran one after the other. The zero value has no calls.
type Lately struct{ now, before span }

// A span is a series of calls, with their number and their total and longest time.
type span struct {
	n            int
	ran, dearest time.Duration
}

// The least number of calls in a span, and its least length. The mean of fewer calls says little,
// and shorter calls matter little.
const (
	spanCalls = 8
	spanTime  = 200 * time.Millisecond
)

// Add adds a call of the length t.
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
