package executor

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// A failing makes one call in a world fail.
type failing struct {
	at   int  // number of calls before that one
	lose bool // whether the call takes effect and only its answer is lost

	mu    sync.Mutex
	calls int
	what  string // the method of the failed call; empty: no call has failed
}

func (f *failing) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	f.mu.Lock()
	now := f.calls == f.at
	if f.calls++; now {
		f.what = path.Base(info.FullMethod)
	}
	f.mu.Unlock()
	if !now {
		return handler(ctx, req)
	}
	if f.lose {
		if _, err := handler(ctx, req); err != nil {
			return nil, err
		}
	}
	return nil, status.Error(codes.Internal, "injected")
}

// failed returns the method of the failed call.
func (f *failing) failed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.what
}

// TestEachCallFails runs small jobs many times. Each time, another call of Datastore or Cloud Tasks
// fails: it is refused, or its answer is lost. Each job must end with the same result as without
// the failure. After a refusal, it must end before the first sweep, which would find a lost task.
func TestEachCallFails(t *testing.T) {
	testflag.Sequential(t)
	adds := func(c *testworld.Call) error { c.N += 100; return nil }
	for _, c := range []struct {
		name   string
		n      int64
		fn     func(c *testworld.Call) error
		change func(j *record.Job)
		want   string
	}{
		{name: "for two workers", n: 13, fn: adds, change: func(j *record.Job) { j.Workers, j.PageSize = 2, 4 },
			want: "succeeded, 13 processed"},
		{name: "failures", n: 7, fn: func(c *testworld.Call) error {
			switch c.ID {
			case 3:
				return fault.Permanent(errBad)
			case 5:
				return errBad
			}
			return adds(c)
		}, change: func(j *record.Job) { j.Attempts, j.Limit = 2, 5 },
			want: "succeeded with failures, 5 processed"},
		{name: "more failures than allowed", n: 7, fn: func(c *testworld.Call) error {
			if c.ID < 4 {
				return fault.Permanent(errBad)
			}
			return adds(c)
		}, change: func(j *record.Job) { j.Limit, j.LimitStep = 2, 2 }, want: "paused, 4 processed"},
		{name: "the function is at fault", n: 12, fn: func(*testworld.Call) error { return fault.Permanent(errBad) },
			want: "failed, 0 processed"},
		{name: "with a rate and a budget", n: 13, fn: adds, change: func(j *record.Job) {
			j.Rate, j.Budget = []byte(`{"entities":50,"calls":50}`), []byte(`{"operations":100000}`)
		}, want: "succeeded, 13 processed"},
		{name: "with a budget that ends", n: 23, fn: adds, change: func(j *record.Job) {
			j.Budget = []byte(`{"operations":1090}`)
		}, want: "paused, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, lose := range []bool{false, true} {
				for at := -1; ; at++ {
					f := &failing{at: at, lose: lose}
					inWorld(t, c.n, function.Update, c.fn, func(w *testworld.World, x *Executor) {
						j, begun := w.NewJob("j", "m"), make(chan struct{})
						if c.change != nil {
							c.change(j)
						}
						w.Range = func(ctx context.Context, queued tasks.Delivery) error {
							<-begun
							return x.Deliver(ctx, queued)
						}
						w.Begin(j)
						w.Intercept(f.intercept)
						close(begun)
						if time.Sleep(55 * time.Second); lose {
							time.Sleep(5 * time.Minute)
						}
						w.Intercept(nil)
						got, changed := said(w, "j"), 0
						for id := range c.n {
							if w.N(id+1) == id+101 {
								changed++
							}
						}
						if !strings.HasPrefix(got, c.want) || !strings.Contains(got, fmt.Sprintf(" %d processed",
							changed)) {
							w.Errorf("call %d, %s, lost %v: %s, %d changed; %+v", at, f.failed(), lose, got, changed,
								w.Job("j").Error)
						}
					})
					if at >= 0 && f.failed() == "" || at == 200 {
						t.Logf("%d calls", at)
						break
					}
				}
			}
		})
	}
}
