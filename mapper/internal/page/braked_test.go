package page

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
