// Package inject gives the emulator access to the unexported part of package faults, and names what
// can go wrong with a call or a delivery. Package faults sets [Of], because inject can't import it.
package inject

import "time"

// Of returns the source in a *faults.Faults.
var Of func(faults any) Source

// A Source decides which faults happen to the calls and deliveries of one emulator.
type Source interface {
	Deliveries

	// Attach connects the source to the emulator that is about to start. It returns an error if a
	// rule is invalid, or if another emulator has the source.
	Attach() error

	// Detach undoes Attach if the emulator's start fails.
	Detach()

	// Call returns the faults of one call. The method is its short name, such as Commit.
	Call(method string, req any) Call
}

// A Call has the faults of one call. The zero value has no fault.
type Call struct {
	Lost       error // the error with which the call fails without an effect; nil: the call takes effect
	Abort      bool  // the call is the commit of a transaction, and is aborted
	AnswerLost error // the error that replaces the answer after the call took effect; nil: the answer stays
	Delay      time.Duration
}

// Deliveries decides which faults happen to deliveries. A queue of Cloud Tasks calls its methods
// while it holds its own lock, so they must not call the server.
type Deliveries interface {
	// Pick chooses the task to deliver next, by its index among n waiting tasks (n > 0). Task 0 is
	// due first; the others are in no particular order.
	Pick(n int) int
	// Hold returns how long a due task is delayed. 0 means not at all.
	Hold() time.Duration
	// Delivery returns the faults of one delivery.
	Delivery() Delivery
}

// A Delivery has the faults of one delivery. The zero value has no fault.
type Delivery struct {
	// Twin and Again are faults with which the task is delivered a second time, and the answer to
	// the second delivery has no effect. With Twin, the second delivery starts TwinAfter after the
	// start of the first one. With Again, it starts AgainAfter after the first one has ended.
	Twin, Again           bool
	TwinAfter, AgainAfter time.Duration
	// Lost ignores the handler's answer, as if the connection broke.
	Lost bool
	// Cut ends the request CutAfter after its start. If the handler has answered by then, the
	// answer is ignored.
	Cut      bool
	CutAfter time.Duration
}
