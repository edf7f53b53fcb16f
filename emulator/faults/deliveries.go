package faults

import (
	"time"

	"github.com/scattermap/scattermap/emulator/internal/inject"
)

func ofKind(kind Kind) func(*activeRule) bool {
	return func(r *activeRule) bool { return r.Kind == kind }
}

// Pick returns the index of the task to deliver next among n waiting tasks: 0, or a random index if
// the fault DeliverShuffled happens. If only one task waits, this fault does not happen.
func (s source) Pick(n int) int {
	picked := 0
	if n < 2 {
		return picked
	}
	s.each(ofKind(DeliverShuffled), func(r *activeRule, _ time.Duration) { picked = r.rng.IntN(n) })
	return picked
}

// Hold returns how long the fault DeliverLate delays a due task. 0 means that the fault does not
// happen.
func (s source) Hold() time.Duration {
	var longest time.Duration
	s.each(ofKind(DeliverLate), func(_ *activeRule, d time.Duration) { longest = max(longest, d) })
	return longest
}

// Delivery returns the faults that happen to one delivery: DeliverTwice, DeliverTogether, and at
// most one of CrashReceiver and LoseReply.
func (s source) Delivery() inject.Delivery {
	var p inject.Delivery
	about := func(r *activeRule) bool {
		switch r.Kind {
		case DeliverTwice:
			return !p.Again
		case DeliverTogether:
			return !p.Twin
		case CrashReceiver, LoseReply:
			return !p.Cut && !p.Lost
		}
		return false
	}
	s.each(about, func(r *activeRule, d time.Duration) {
		switch r.Kind {
		case DeliverTwice:
			p.Again, p.AgainAfter = true, d
		case DeliverTogether:
			p.Twin, p.TwinAfter = true, d
		case CrashReceiver:
			p.Cut, p.CutAfter = true, d
		case LoseReply:
			p.Lost = true
		}
	})
	return p
}
