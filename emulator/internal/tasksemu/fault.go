package tasksemu

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
)

// Faults decides which faults deliveries have. A queue calls its methods with the queue's lock
// held, so they must not call the server.
type Faults interface {
	// Pick returns the index of the task to deliver next, among n waiting tasks (n > 0). 0 is the
	// task that is due first; the others are in no order.
	Pick(n int) int
	// Hold returns how long a due task is held back, or 0.
	Hold() time.Duration
	// Delivery returns the faults of one delivery.
	Delivery() Delivery
}

// A Delivery has the faults of one delivery. The zero value has none.
type Delivery struct {
	// Twin delivers the same attempt a second time while the first runs, at the time TwinAfter
	// after its start. Again delivers it a second time after the first was answered. The second
	// answer is ignored.
	Twin, Again           bool
	TwinAfter, AgainAfter time.Duration
	// Lost drops the answer of the handler.
	Lost bool
	// Cut ends the request at the time CutAfter after its start. If the answer has arrived by then,
	// it is dropped.
	Cut      bool
	CutAfter time.Duration
}

// send makes one attempt, with its faults.
func (s *Server) send(ctx context.Context, e *era, d *delivery) outcome {
	if s.opts.Faults == nil {
		return s.attempt(ctx, d)
	}
	fault := s.opts.Faults.Delivery()
	if fault.Twin {
		e.working.Go(func() { s.repeat(ctx, d, fault.TwinAfter) })
	}
	result := s.cutOff(ctx, d, fault)
	if fault.Again {
		e.working.Go(func() { s.repeat(ctx, d, fault.AgainAfter) })
	}
	return result
}

// repeat carries out a delivery a second time, when the time after has passed.
func (s *Server) repeat(ctx context.Context, d *delivery, after time.Duration) {
	if sleep(ctx, after) {
		s.attempt(ctx, d)
	}
}

// cutOff carries out a delivery whose answer is lost if the fault ends it before.
func (s *Server) cutOff(ctx context.Context, d *delivery, fault Delivery) outcome {
	cut := ctx
	if fault.Cut {
		var cancel context.CancelFunc
		cut, cancel = context.WithTimeout(ctx, fault.CutAfter)
		defer cancel()
	}
	result := s.attempt(cut, d)
	if fault.Cut || fault.Lost {
		return outcome{code: code.Code_UNAVAILABLE}
	}
	return result
}

// sleep waits for the time d. It returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
