package emulator

import (
	"time"

	"github.com/scattermap/scattermap/emulator/internal/tasksemu"
)

// taskFaults implements [tasksemu.Faults]: it decides which faults happen to deliveries.
type taskFaults struct{ *Faults }

var _ tasksemu.Faults = taskFaults{}

func ofKind(kind FaultKind) func(*rule) bool {
	return func(r *rule) bool { return r.Kind == kind }
}

// Pick returns the index of the task to deliver next among n waiting tasks: 0, or a random index if
// the fault DeliverShuffled happens. If only one task waits, this fault does not happen.
func (f taskFaults) Pick(n int) int {
	picked := 0
	if n < 2 {
		return picked
	}
	f.each(ofKind(DeliverShuffled), func(r *rule, _ time.Duration) { picked = r.rng.IntN(n) })
	return picked
}

// Hold returns how long the fault DeliverLate delays a due task. 0 means that the fault does not
// happen.
func (f taskFaults) Hold() time.Duration {
	var longest time.Duration
	f.each(ofKind(DeliverLate), func(_ *rule, d time.Duration) { longest = max(longest, d) })
	return longest
}

// Delivery returns the faults that happen to one delivery: DeliverTwice, DeliverTogether, and at
// most one of CrashReceiver and LoseReply.
func (f taskFaults) Delivery() tasksemu.Delivery {
	var p tasksemu.Delivery
	about := func(r *rule) bool {
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
	f.each(about, func(r *rule, d time.Duration) {
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
