package pace

import "time"

// Lately is what calls have taken that were made one after the other, of late. Its zero value has
// none.
type Lately struct{ now, before span }

// A span is some calls.
type span struct {
	n            int
	ran, dearest time.Duration
}

// A span has so many calls, and takes so long, before the next one begins: of fewer calls the mean
// says little, and what takes less matters little.
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

// Each returns what a call takes on average, of the last two spans: without the dearest one, which
// says little of the others.
func (l Lately) Each() time.Duration {
	n, ran := l.now.n+l.before.n, l.now.ran+l.before.ran
	if n > 1 {
		n, ran = n-1, ran-max(l.now.dearest, l.before.dearest)
	}
	return ran / time.Duration(max(1, n))
}
