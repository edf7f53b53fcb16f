package function

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestRunCalls checks [Calls] with functions that return, take too long or end their goroutine, and
// with a panic outside of the function.
func TestRunCalls(t *testing.T) {
	t.Parallel()
	takes := func(d time.Duration) func(context.Context) { return func(context.Context) { time.Sleep(d) } }
	for name, test := range map[string]struct {
		f    func(r *Runner)
		want error
	}{
		"long together": {func(r *Runner) {
			for range 10 {
				r.Call(takes(900 * time.Millisecond))
			}
		}, nil},
		"long between": {func(r *Runner) { time.Sleep(time.Minute); r.Call(takes(time.Millisecond)) }, nil},
		"too long": {func(r *Runner) {
			if r.Call(takes(500*time.Millisecond)) && r.Call(takes(1001*time.Millisecond)) {
				panic("nobody waits for it")
			}
		}, ErrTimeout},
		"goexit": {func(r *Runner) { r.Call(func(context.Context) { runtime.Goexit() }) }, errGoexit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := Calls(t.Context(), time.Second, new(atomic.Int64), test.f); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				time.Sleep(time.Minute) // until the abandoned call has returned
			})
		})
	}
	t.Run("panic", func(t *testing.T) {
		defer func() {
			if p, _ := recover().(string); !strings.HasPrefix(p, "a mistake") ||
				!strings.Contains(p, "runner_test.go") {
				t.Errorf("panic %q", p)
			}
		}()
		_ = Calls(t.Context(), time.Second, new(atomic.Int64), func(*Runner) { panic("a mistake") })
	})
}
