package mapper

import (
	"context"
	"errors"
	"time"
)

// A runner runs functions of users one after the other, and leaves one behind that
// takes too long. Its zero value is ready.
type runner struct {
	calls   chan func(context.Context)
	results chan struct{}
	cancel  context.CancelCauseFunc
	timer   *time.Timer
}

var (
	errTimeout = errors.New("the function took too long")
	errGoexit  = errors.New("the function ended its goroutine")
)

// run runs fn for up to a time. After an error fn may still be running: what it
// does has no effect any more, and nobody must look at it.
func (r *runner) run(ctx context.Context, limit time.Duration, fn func(context.Context)) error {
	if r.calls == nil {
		r.start(ctx)
	}
	r.timer.Reset(limit)
	r.calls <- fn
	select {
	case _, ok := <-r.results:
		r.timer.Stop()
		if !ok {
			r.close()
			return errGoexit
		}
		return nil
	case <-r.timer.C:
		r.close()
		return errTimeout
	}
}

func (r *runner) start(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	calls, results := make(chan func(context.Context)), make(chan struct{}, 1)
	r.calls, r.results, r.cancel, r.timer = calls, results, cancel, time.NewTimer(time.Hour)
	go func() {
		defer close(results) // by Goexit, too
		for fn := range calls {
			fn(ctx)
			results <- struct{}{}
		}
	}()
}

// close lets the goroutine end, and tells a function that still runs. The runner can
// be used again.
func (r *runner) close() {
	if r.calls == nil {
		return
	}
	close(r.calls)
	r.cancel(context.DeadlineExceeded)
	r.timer.Stop()
	r.calls = nil
}
