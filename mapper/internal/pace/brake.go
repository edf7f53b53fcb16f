package pace

import (
	"sync"
	"time"
)

// A Brake slows the calls of a job's function in one process while they fail because there are too
// many at once: a service that is called has a limit. It looks at windows of calls. Where more than
// 5% have failed the rate becomes what was accepted, less a tenth; from there it grows, fast up to
// what was accepted when it was cut, and slowly above. Where fewer calls at once fail as often,
// their number is not the cause, and the brake is let go for a while.
//
// The idea is that of congestion control in networks. Its zero value does not brake. It is for
// several goroutines.
type Brake struct {
	mu sync.Mutex
	braking
}

type braking struct {
	rate  float64   // calls a second; 0: as they come
	next  time.Time // when the next one may begin
	begun time.Time // the window

	now, last Calls // in this window, and in the one before

	limit     float64   // what was accepted when the rate was cut; 0: unknown
	cutFrom   float64   // what the rate was when it was first cut
	cutShare  float64   // the share of calls that failed then
	quiet     int       // windows without a failure since the rate reached the limit
	freeUntil time.Time // the brake is let go
}

// Calls are how many calls there were, and how many failed: in any way, and so that another attempt
// may help.
type Calls struct{ All, Failed, Busy int }

const (
	windowCalls  = 20 // of a window, at least, and
	windowTime   = time.Second
	earlyTime    = windowTime / 10 // if too many have failed already
	slowestRate  = 1.0             // calls a second
	fastGrowth   = 1.5             // of the rate from one window to the next
	slowGrowth   = 1.02
	quietWindows = 30 // at slow growth, until the limit is taken to be gone
	freeFor      = 5 * time.Minute
)

// TooMany reports whether so many calls failed that it is the function that is at fault, or the
// world, and not the entities: more than 10, and more than 5%.
func TooMany(failed, calls int) bool { return failed > 10 && failed*20 > calls }

// Wait returns how long the next call waits, at most.
func (b *Brake) Wait(now time.Time, most time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate == 0 {
		return 0
	}
	at := now
	if b.next.After(now) {
		at = b.next
	}
	if at.Sub(now) > most {
		return most
	}
	b.next = at.Add(time.Duration(float64(time.Second) / b.rate))
	return at.Sub(now)
}

// Done notes that a call has ended. Busy says that it failed so that another attempt may help.
func (b *Brake) Done(now time.Time, failed, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.begun.IsZero() {
		b.begun = now
	}
	b.now.All++
	if failed {
		b.now.Failed++
	}
	if busy {
		b.now.Busy++
	}
	took := now.Sub(b.begun)
	if TooMany(b.now.Busy, b.now.All) && took >= earlyTime || b.now.All >= windowCalls && took >= windowTime {
		b.adjust(now, took.Seconds())
		b.begun, b.last, b.now = now, b.now, Calls{}
	}
}

// adjust sets the rate behind a window that took so many seconds.
func (b *braking) adjust(now time.Time, seconds float64) {
	calls, accepted := float64(b.now.All)/seconds, float64(b.now.All-b.now.Busy)/seconds
	share := float64(b.now.Busy) / float64(b.now.All)
	switch {
	case now.Before(b.freeUntil):
	case share > 0.05 && b.rate > 0 && b.rate <= b.cutFrom/2 && share >= 0.8*b.cutShare:
		*b = braking{now: b.now, freeUntil: now.Add(freeFor)}
	case share > 0.05:
		if b.rate == 0 {
			b.cutFrom, b.cutShare = calls, share
		}
		if b.quiet = 0; accepted > 0 {
			b.limit, b.rate = accepted, 0.9*accepted
		} else {
			b.rate = calls / 2
		}
		b.rate = max(slowestRate, b.rate)
	case b.rate == 0:
	case b.rate > 2*calls || b.quiet > quietWindows: // something else limits the calls, or nothing does
		b.rate, b.limit = 0, 0
	case b.limit == 0 || b.rate < 0.95*b.limit:
		if b.rate *= fastGrowth; b.limit > 0 {
			b.rate = min(b.rate, 0.95*b.limit)
		}
	default:
		b.rate *= slowGrowth
		if b.quiet++; b.now.Busy > 0 {
			b.quiet = 0
		}
	}
}

// Lately returns the calls of this window and of the one before.
func (b *Brake) Lately() Calls {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Calls{b.last.All + b.now.All, b.last.Failed + b.now.Failed, b.last.Busy + b.now.Busy}
}
