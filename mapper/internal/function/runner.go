package function

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// A Runner calls functions of users one after the other, in a goroutine that is left behind if
// one of them takes too long.
type Runner struct {
	ctx context.Context // of the calls

	mu     sync.Mutex
	begun  time.Time // when the call began that is under way; zero: none is
	left   bool      // behind
	strays *atomic.Int64
}

// ErrTimeout says that a call took too long, and was left behind.
var ErrTimeout = errors.New("the function took too long")

var errGoexit = errors.New("the function ended its goroutine")

// Calls has f make calls, each for up to a time. Their context ends when f returns. After an
// error, which is that of the last call, f may still be in it: what that does has no effect any
// more, nobody must look at it, and until it returns it is one of strays.
func Calls(ctx context.Context, limit time.Duration, strays *atomic.Int64, f func(r *Runner)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &Runner{ctx: ctx, strays: strays}
	ended, returned, panicked := make(chan struct{}), false, ""
	go func() {
		defer close(ended) // by Goexit, too
		defer r.returned()
		defer func() {
			if p := recover(); p != nil {
				panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		f(r)
		returned = true
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-ended:
			switch {
			case panicked != "":
				panic(panicked) // where the delivery's panics are dealt with
			case !returned:
				return errGoexit
			}
			return nil
		case <-timer.C:
			wait, left := r.wait(limit)
			if left {
				cancel(context.DeadlineExceeded)
				return ErrTimeout
			}
			timer.Reset(wait)
		}
	}
}

// Call calls a function, and reports whether somebody still waits for it. If not its caller has
// to return at once, and must not look at anything that it shares.
func (r *Runner) Call(fn func(context.Context)) (awaited bool) {
	r.mu.Lock()
	r.begun = time.Now()
	r.mu.Unlock()
	fn(r.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = time.Time{}
	return !r.left
}

// wait returns for how long the call that is under way may still be waited for, and whether
// that is over and the goroutine left behind.
func (r *Runner) wait(limit time.Duration) (wait time.Duration, left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun.IsZero() {
		return limit, false
	}
	if wait = limit - time.Since(r.begun); wait <= 0 {
		r.left = true
		r.strays.Add(1)
	}
	return wait, r.left
}

// returned notes that the goroutine ends.
func (r *Runner) returned() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		r.strays.Add(-1)
	}
}
