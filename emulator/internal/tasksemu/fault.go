package tasksemu

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
)

// Faults decide what goes wrong with deliveries. A queue asks with its lock
// held, so they must not call the server.
type Faults interface {
	// Pick returns which of n waiting tasks, at least one, is dispatched next, as
	// an index: 0 is the one that is due first, the others are in no order.
	Pick(n int) int
	// Hold returns for how long a task that is due is held back. 0 is not at all.
	Hold() time.Duration
	// Delivery returns what goes wrong with one delivery.
	Delivery() Delivery
}

// A Delivery is what goes wrong with one delivery. The zero value is nothing.
type Delivery struct {
	// Twin delivers the same attempt once more while the first runs, TwinAfter
	// its begin. Again does so after the first was answered. Nobody looks at the
	// answer to the second.
	Twin, Again           bool
	TwinAfter, AgainAfter time.Duration
	// Lost drops the answer.
	Lost bool
	// Cut cuts the request off CutAfter its begin; if it was answered by then,
	// the answer is dropped.
	Cut      bool
	CutAfter time.Duration
}

// send makes one attempt, with what goes wrong with it.
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

// repeat makes an attempt once more, after a while.
func (s *Server) repeat(ctx context.Context, d *delivery, after time.Duration) {
	if sleep(ctx, after) {
		s.attempt(ctx, d)
	}
}

// cutOff makes an attempt whose answer may not arrive.
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

// sleep reports whether the time has passed before ctx has ended.
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
