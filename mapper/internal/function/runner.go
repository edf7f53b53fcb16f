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

// A Runner calls the user's function several times, one call after the other, in a goroutine of its
// own. If a call takes too long, the goroutine is abandoned and the call has no effect.
type Runner struct {
	// OnWait is called when a call starts to wait for something that does not count as its time,
	// and when that wait ends. It may be nil.
	OnWait func(waits bool)

	ctx context.Context // the context of the calls

	mu     sync.Mutex
	calls  int           // number of calls so far
	begun  time.Time     // start of the current call; zero: no call is under way
	waits  int           // number of waits of the current call that do not count as its time
	since  time.Time     // when the first of these waits has started
	paused time.Duration // total length of such waits that have ended, in the current or last call
	left   bool          // whether the goroutine was abandoned
	strays *atomic.Int64
}

// ErrTimeout says that a call took too long, and that its goroutine was abandoned.
var ErrTimeout = errors.New("the function took too long")

var errGoexit = errors.New("the function ended its goroutine")

// Calls runs f, which calls the user's function through r. Each call may take up to limit. The
// context of the calls ends when Calls returns.
//
// An error is about the last call. After [ErrTimeout], that call may still run. It has no effect
// any more, and the caller must not read variables that f writes. Until its goroutine ends, strays
// counts it.
func Calls(ctx context.Context, limit time.Duration, strays *atomic.Int64, f func(r *Runner)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &Runner{ctx: ctx, strays: strays}
	ended, returned, panicked := make(chan struct{}), false, ""
	go func() {
		defer close(ended) // also runs after runtime.Goexit
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
				panic(panicked) // panic in the delivery's goroutine, which handles it
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

// Call calls fn, and reports whether the caller of Calls still waits for the result. If nobody
// waits any more, the function that uses the Runner must return at once, and must not use shared
// variables.
func (r *Runner) Call(fn func(context.Context)) (awaited bool) {
	r.mu.Lock()
	r.begun, r.waits, r.paused = time.Now(), 0, 0
	r.calls++
	r.mu.Unlock()
	fn(r.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits > 0 { // a goroutine that the function has started still waits
		r.resume()
	}
	r.begun, r.waits = time.Time{}, 0
	return !r.left
}

// Paused returns how long the last call has waited for things that do not count as its time.
func (r *Runner) Paused() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// pause stops the clock of the current call until the returned function is called. If pauses
// overlap, the clock runs again when the last one ends.
func (r *Runner) pause() (resume func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.calls
	if r.begun.IsZero() {
		return func() {}
	}
	if r.waits++; r.waits == 1 {
		r.since = time.Now()
		r.onWait(true)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls != of || r.begun.IsZero() { // that call has returned without waiting
			return
		}
		if r.waits--; r.waits == 0 {
			r.resume()
		}
	}
}

// resume ends the pauses of the current call. The caller must hold mu.
func (r *Runner) resume() {
	r.paused += time.Since(r.since)
	r.onWait(false)
}

func (r *Runner) onWait(waits bool) {
	if r.OnWait != nil {
		r.OnWait(waits)
	}
}

// wait returns how much longer the current call may take. If its time is over, wait marks the
// goroutine as abandoned, and returns true.
func (r *Runner) wait(limit time.Duration) (wait time.Duration, left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun.IsZero() {
		return limit, false
	}
	wait = limit + r.paused - time.Since(r.begun)
	if r.waits > 0 {
		return max(time.Second, wait+time.Since(r.since)), false
	}
	if wait <= 0 {
		r.left = true
		r.strays.Add(1)
	}
	return wait, r.left
}

// returned records that the Runner's goroutine ends.
func (r *Runner) returned() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		r.strays.Add(-1)
	}
}
