package function

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/scattermap/scattermap/mapper/internal/fault"
)

// An Await is a function that waits until a run of the mapper's function may make n calls of a
// service. The job's rate limits these calls. The argument before is the number of calls that the
// run has announced earlier. After an error, the run must not make the calls.
type Await func(ctx context.Context, n int, before int64) error

// An Announced records the calls of services that one run of the mapper's function announces before
// it makes them.
type Announced struct {
	runner *Runner
	await  Await // waits until calls may be made; nil: calls are not limited
	count  *atomic.Int64

	mu       sync.Mutex
	n, waits int64
	refused  error
}

// Announcing returns an Announced for a run of the mapper's function by the runner. Waiting in
// await does not count as time of the run. The number of allowed calls is added to count.
func Announcing(runner *Runner, await Await, count *atomic.Int64) *Announced {
	return &Announced{runner: runner, await: await, count: count}
}

// Await announces n calls of a service, and waits until they may be made. After a refusal, it
// refuses all later calls of the run. If ctx has ended, the error is no refusal, because the
// function itself may have ended it.
func (a *Announced) Await(ctx context.Context, n int) error {
	a.mu.Lock()
	before, err := a.n, a.refused
	if err == nil {
		a.n += int64(n)
	}
	a.mu.Unlock()
	if err != nil || n == 0 {
		return err
	}
	if a.await != nil {
		defer a.runner.pause()()
		err = a.await(ctx, n, before)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.waits++
		a.count.Add(int64(n))
		return nil
	}
	if a.n -= int64(n); ctx.Err() == nil && a.refused == nil {
		a.refused = err
	}
	return err
}

// Made returns the number of announced calls that were not refused, and the error of the first
// refusal. A run with a refusal has no effect.
func (a *Announced) Made() (n int64, refused error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n, a.refused
}

// Waits returns how many times the run has successfully waited for calls.
func (a *Announced) Waits() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waits
}

var errNoCalls = fault.Permanent(errors.New("AwaitCalls: the number of calls is negative"))

// AwaitCalls announces n calls of a service, and waits until the job's rate allows them.
func (a *Attempt) AwaitCalls(ctx context.Context, n int) (err error) {
	a.do(func() error {
		if n < 0 {
			err = errNoCalls
		}
		return err
	})
	if err != nil || a.calls == nil {
		return err
	}
	return a.calls.Await(ctx, n)
}
