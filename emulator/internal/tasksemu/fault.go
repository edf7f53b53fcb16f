package tasksemu

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"

	"github.com/scattermap/scattermap/emulator/internal/inject"
)

// send delivers a task once, or more often if its faults demand it. It returns the outcome of the
// first delivery. The further deliveries belong to the era e, so a reset of the server ends them.
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

// repeat carries out a delivery again when the duration after has passed, and ignores the outcome.
func (s *Server) repeat(ctx context.Context, d *delivery, after time.Duration) {
	if sleep(ctx, after) {
		s.attempt(ctx, d)
	}
}

// cutOff carries out a delivery, and ends it early if the fault says so. With the faults Cut and
// Lost, the outcome is that there was no answer.
func (s *Server) cutOff(ctx context.Context, d *delivery, fault inject.Delivery) outcome {
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
