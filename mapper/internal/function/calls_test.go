package function

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

var errRefused = errors.New("refused")

// announce runs functions one after the other, with a limit of one second for each. Each announced
// call waits for a minute, which does not count. It returns the number of calls that each run has
// made, its refusal, and the error of all runs.
func announce(t *testing.T, fns ...func(a *Attempt, ctx context.Context)) (made []int64, refused []error, err error) {
	waiting := 0
	err = Calls(t.Context(), time.Second, new(atomic.Int64), func(r *Runner) {
		r.OnWait = func(waits bool) {
			if waits {
				waiting++
			} else {
				waiting--
			}
		}
		for _, fn := range fns {
			announced := Announcing(r, func(ctx context.Context, n int, before int64) error {
				if n > 60 {
					return errRefused
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Duration(n) * time.Minute):
					return nil
				}
			}, new(atomic.Int64))
			a := NewAttempt(record.Ref{ID: "j"}, Visit, self)
			a.Announce(announced)
			if !r.Call(func(ctx context.Context) { fn(a, ctx) }) {
				return
			}
			n, why := announced.Made()
			made, refused = append(made, n), append(refused, why)
		}
	})
	time.Sleep(time.Hour) // until abandoned calls and goroutines have returned
	if synctest.Wait(); err == nil && waiting != 0 {
		t.Errorf("%d runs still wait", waiting)
	}
	return made, refused, err
}

// TestAwaitCalls checks three things: which part of a run's time counts, which calls count as made,
// and which calls are refused.
func TestAwaitCalls(t *testing.T) {
	for _, c := range []struct {
		name    string
		fn      func(a *Attempt, ctx context.Context)
		made    int64
		refused error
		err     error // of the run
	}{
		{"none", func(*Attempt, context.Context) {}, 0, nil, nil},
		{"a wait, between short times", func(a *Attempt, ctx context.Context) {
			for range 3 {
				time.Sleep(300 * time.Millisecond)
				_ = a.AwaitCalls(ctx, 2)
			}
		}, 6, nil, nil},
		{"a wait, and too long a time", func(a *Attempt, ctx context.Context) {
			time.Sleep(900 * time.Millisecond)
			_ = a.AwaitCalls(ctx, 5)
			time.Sleep(101 * time.Millisecond)
		}, 0, nil, ErrTimeout},
		{"side by side", func(a *Attempt, ctx context.Context) {
			var all sync.WaitGroup
			for n := range 10 {
				all.Go(func() { time.Sleep(90 * time.Millisecond); _ = a.AwaitCalls(ctx, n) })
			}
			all.Wait()
			time.Sleep(900 * time.Millisecond)
		}, 45, nil, nil},
		{"in a goroutine that goes on", func(a *Attempt, ctx context.Context) {
			go func() { _ = a.AwaitCalls(ctx, 7) }()
			time.Sleep(10 * time.Millisecond)
		}, 7, nil, nil},
		{"refused, and all after that", func(a *Attempt, ctx context.Context) {
			_ = a.AwaitCalls(ctx, 4)
			for _, n := range []int{61, 1} {
				if err := a.AwaitCalls(ctx, n); !errors.Is(err, errRefused) {
					panic(err)
				}
			}
		}, 4, errRefused, nil},
		{"a context of its own", func(a *Attempt, ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := a.AwaitCalls(ctx, 4); !errors.Is(err, context.DeadlineExceeded) {
				panic(err)
			}
		}, 0, nil, nil},
		{"a negative number", func(a *Attempt, ctx context.Context) {
			if err := a.AwaitCalls(ctx, -1); err == nil || a.Misused() == nil {
				panic(err)
			}
		}, 0, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made, refused, err := announce(t, c.fn, func(a *Attempt, ctx context.Context) {
					time.Sleep(900 * time.Millisecond)
					_ = a.AwaitCalls(ctx, 1)
				})
				if !errors.Is(err, c.err) || c.err != nil {
					if !errors.Is(err, c.err) {
						t.Errorf("%v, want %v", err, c.err)
					}
					return
				}
				if made[0] != c.made || !errors.Is(refused[0], c.refused) || made[1] != 1 || refused[1] != nil {
					t.Errorf("%v calls, %v; want %d, %v", made, refused, c.made, c.refused)
				}
			})
		})
	}
}
