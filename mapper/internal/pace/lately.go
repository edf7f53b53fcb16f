package pace

import "time"

// A Lately holds how long recent calls took, which ran one after the other. The zero value holds
// none.
type Lately struct{ now, before span }

// A span holds the times of a series of calls: their number, their total time, and the longest
// time.
type span struct {
	n            int
	ran, dearest time.Duration
}

// A span ends when it has at least spanCalls calls and a total of spanTime. The mean of fewer calls
// is not reliable, and shorter times do not matter.
const (
	spanCalls = 8
	spanTime  = 200 * time.Millisecond
)

// Add adds a call that has taken the time t.
func (l *Lately) Add(t time.Duration) {
	if l.now.n >= spanCalls && l.now.ran >= spanTime {
		l.before, l.now = l.now, span{}
	}
	l.now.n, l.now.ran, l.now.dearest = l.now.n+1, l.now.ran+t, max(l.now.dearest, t)
}

// Each returns the mean time of the calls in the last two spans, without the longest call, which
// may be an exception.
func (l Lately) Each() time.Duration {
	n, ran := l.now.n+l.before.n, l.now.ran+l.before.ran
	if n > 1 {
		n, ran = n-1, ran-max(l.now.dearest, l.before.dearest)
	}
	return ran / time.Duration(max(1, n))
}
