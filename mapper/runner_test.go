package mapper

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRunCalls has calls return, take too long, end their goroutine, and what is around them
// panic.
func TestRunCalls(t *testing.T) {
	t.Parallel()
	takes := func(d time.Duration) func(context.Context) { return func(context.Context) { time.Sleep(d) } }
	for name, test := range map[string]struct {
		f    func(r *runner)
		want error
	}{
		"long together": {func(r *runner) {
			for range 10 {
				r.call(takes(900 * time.Millisecond))
			}
		}, nil},
		"long between": {func(r *runner) { time.Sleep(time.Minute); r.call(takes(time.Millisecond)) }, nil},
		"too long": {func(r *runner) {
			if r.call(takes(500*time.Millisecond)) && r.call(takes(1001*time.Millisecond)) {
				panic("nobody waits for it")
			}
		}, errTimeout},
		"goexit": {func(r *runner) { r.call(func(context.Context) { runtime.Goexit() }) }, errGoexit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := runCalls(t.Context(), time.Second, new(atomic.Int64), test.f); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				time.Sleep(time.Minute) // until what was left behind has ended
			})
		})
	}
	t.Run("panic", func(t *testing.T) {
		defer func() {
			if p, _ := recover().(string); !strings.HasPrefix(p, "a mistake") || !strings.Contains(p, "runner_test.go") {
				t.Errorf("panic %q", p)
			}
		}()
		_ = runCalls(t.Context(), time.Second, new(atomic.Int64), func(*runner) { panic("a mistake") })
	})
}
