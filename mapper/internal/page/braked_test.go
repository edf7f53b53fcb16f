package page

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// braked slows down a page's job, because a service has refused calls. If later is set, the service
// has asked to wait, and the job may make one call a second. Other pages already wait for others
// calls.
func braked(p *Page, later bool, others int) *pace.Brake {
	brake := p.Paces.Brake(p.Job.Ref())
	for range 12 {
		var pass pace.Pass
		brake.Ask(time.Now(), &pass)
		time.Sleep(10 * time.Millisecond)
		brake.Done(time.Now(), pass, pace.End{Took: 10 * time.Millisecond, Failed: true, Busy: true, Later: later})
	}
	for range others {
		brake.Ask(time.Now(), new(pace.Pass))
	}
	return brake
}

// TestBraked checks how long a page waits while the brake (pace.Brake) slows down its job, because
// a service refuses calls. After that, the page must call anyway. If the service has asked to wait,
// it must end before the entity instead.
func TestBraked(t *testing.T) {
	for _, c := range []struct {
		name   string
		later  bool
		rest   time.Duration // time without a call before the page
		others int
		pause  time.Duration
		ends   bool
		took   time.Duration // approximate time until the first call, or until the page ends without a call
		want   string        // the results; empty: the page is postponed
	}{
		{name: "it ends before the next one", later: true, rest: 10 * time.Second, want: "1 reached, 1 done"},
		{name: "it waits its turn", later: true, others: 2, pause: time.Minute, took: 3 * time.Second,
			want: "3 reached, 3 done"},
		{name: "it waits as long as it may", later: true, others: 5, pause: time.Second, took: time.Second},
		{name: "it may not wait", later: true, others: 5},
		{name: "its process drains", later: true, others: 5, pause: time.Minute, ends: true},
		{name: "it may call anyway", others: 200, want: "3 reached, 3 done"},
		{name: "it waits, and may call then", others: 200, pause: time.Second, took: time.Second,
			want: "3 reached, 3 done"},
		{name: "its process drains, and it may call", others: 200, pause: time.Minute, ends: true,
			want: "1 reached, 1 done"},
		{name: "its process drains, and its turn has come", later: true, rest: 10 * time.Second, ends: true,
			want: "1 reached, 1 done"},
	} {
		for _, atOnce := range []int{1, 2} {
			synctest.Test(t, func(t *testing.T) {
				var begun time.Time
				var took time.Duration
				var first sync.Once
				p := over(kindOf(1, 2, 3), function.Visit, func(*call) error {
					first.Do(func() { took = time.Since(begun) })
					return nil
				}, 1, 2, 3)
				p.AtOnce, p.Pause, p.Job.PageTime = atOnce, c.pause, int64(time.Hour)
				p.Ends = func() bool { return c.ends }
				braked(p, c.later, c.others)
				time.Sleep(c.rest)
				begun = time.Now()
				o, err := p.Run(t.Context())
				first.Do(func() { took = time.Since(begun) })
				if c.want == "" {
					if refusal := new(fault.Refusal); !errors.As(err, refusal) || !refusal.Later {
						t.Errorf("%s, %d at once: %v", c.name, atOnce, err)
					}
				} else if err != nil || said(o) != c.want {
					t.Errorf("%s, %d at once: %v, %v, want %s", c.name, atOnce, err, o, c.want)
				}
				if off := (took - c.took).Abs(); off > 500*time.Millisecond {
					t.Errorf("%s, %d at once: after %v, want %v", c.name, atOnce, took, c.took)
				}
			})
		}
	}
}

// TestBrakeLeft checks that a page which stops waiting for its turn leaves the turn to others.
func TestBrakeLeft(t *testing.T) {
	for _, atOnce := range []int{1, 2} {
		var took [2]time.Duration
		for i := range took { // first without a page, then with one
			synctest.Test(t, func(t *testing.T) {
				p := over(kindOf(1), function.Visit, func(*call) error { return nil }, 1)
				p.AtOnce = atOnce
				brake := braked(p, true, 2)
				if i > 0 {
					if o, err := p.Run(t.Context()); err == nil {
						t.Fatalf("%+v", o)
					}
				}
				begun, pass := time.Now(), new(pace.Pass)
				for {
					wait, begins := brake.Ask(time.Now(), pass)
					if begins {
						break
					}
					time.Sleep(wait)
				}
				took[i] = time.Since(begun)
			})
		}
		if took[0] < 2*time.Second || took[1] > took[0]+500*time.Millisecond {
			t.Errorf("%d at once: the next call waits %v instead of %v", atOnce, took[1], took[0])
		}
	}
}

// TestCallsUnderWay checks how many calls a page starts while the brake slows down its job. The
// service's calls take 10 s, and the job may make about one a second, so about 12 may be under way.
// Calls that wait for the job's own rate must not count.
func TestCallsUnderWay(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			work := func(*call) error { time.Sleep(10 * time.Second); return nil }
			p := over(kindOf(idsTo(50)...), function.Visit, func(c *call) error { return work(c) }, 1, 2, 3)
			p.AtOnce, p.Pause, p.Job.PageTime = 40, 10*time.Minute, int64(time.Hour)
			if o, err := p.Run(t.Context()); err != nil || o.Reached != 3 {
				t.Fatalf("%+v, %v", o, err)
			}
			time.Sleep(2 * time.Second)
			braked(p, true, 0)
			begun, early := time.Now(), new(atomic.Int64)
			work = func(c *call) error {
				if time.Since(begun) < 45*time.Second {
					early.Add(1)
				}
				if waits {
					return c.AwaitCalls(c, 1)
				}
				time.Sleep(50 * time.Second)
				return nil
			}
			p.Calls = func(context.Context, int, int64, bool) error { time.Sleep(50 * time.Second); return nil }
			p.At = over(kindOf(), function.Visit, nil, idsTo(40)...).At
			o, err := p.Run(t.Context())
			if n := early.Load(); err != nil || o.Reached != 40 || waits != (n == 40) || !waits && (n < 8 || n > 16) {
				t.Errorf("they wait %v: %s, %v, %d calls have started in 45 s", waits, said(o), err, n)
			}
		})
	}
}

// TestAgainInTurn makes a service refuse a call for a moment, while other pages wait for their
// calls. The next call must wait for its turn.
func TestAgainInTurn(t *testing.T) {
	for _, atOnce := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var calls []time.Time
			p := over(kindOf(1), function.Visit, nil, 1)
			brake := braked(p, true, 0)
			p.Call = func(context.Context, function.Job, *datastore.Key, *pb.Entity) (*function.Effect, error) {
				if calls = append(calls, time.Now()); len(calls) > 1 {
					return &function.Effect{}, nil
				}
				for range 5 {
					brake.Ask(time.Now(), new(pace.Pass))
				}
				return nil, fault.RetryAfter(errBad, time.Millisecond)
			}
			p.AtOnce, p.Pause, p.Job.PageTime = atOnce, time.Minute, int64(time.Hour)
			o, err := p.Run(t.Context())
			if err != nil || len(calls) != 2 || calls[1].Sub(calls[0]) < 4*time.Second {
				t.Errorf("%d at once: %+v, %v, calls at %v", atOnce, o, err, calls)
			}
		})
	}
}

// TestRefusedLeavesTurn checks that a call which the job's own rate refuses leaves its turn to
// others, because it has not called the service.
func TestRefusedLeavesTurn(t *testing.T) {
	for _, atOnce := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			p := over(kindOf(1), function.Visit, func(c *call) error { return c.AwaitCalls(c, 1) }, 1)
			p.Calls = func(context.Context, int, int64, bool) error { return errNoCall }
			p.AtOnce = atOnce
			brake := braked(p, true, 0)
			time.Sleep(10 * time.Second)
			if o, err := p.Run(t.Context()); !errors.Is(err, errNoCall) {
				t.Fatalf("%+v, %v", o, err)
			}
			if wait, begins := brake.Ask(time.Now(), new(pace.Pass)); !begins {
				t.Errorf("%d at once: the next call waits for %v", atOnce, wait)
			}
		})
	}
}
