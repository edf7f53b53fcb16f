package page

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

var errNoCall = errors.New("no call for now")

// TestRefusedCalls has the job's rate refuse a call. The page ends before the entity that has
// announced it, whatever the function makes of the error, and no attempt counts.
func TestRefusedCalls(t *testing.T) {
	for _, c := range []struct {
		name          string
		atOnce, batch int
		refuse        int64 // the entity whose call is refused
		swallows      bool  // the function ignores the error
		reached       int   // -1: the page as a whole has to wait
	}{
		{"one after the other", 1, 0, 5, false, 4},
		{"an error that is ignored", 1, 0, 5, true, 4},
		{"the first", 1, 0, 1, false, -1},
		{"the last", 1, 0, 9, false, 8},
		{"at once", 4, 0, 6, false, 5},
		{"the first at once", 4, 0, 1, true, -1},
		{"a batch", 1, 3, 5, false, 3},
		{"the first batch", 1, 3, 2, false, -1},
		{"batches at once", 2, 2, 8, true, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := over(kindOf(idsTo(9)...), function.Update, func(c2 *call) error {
					if c2.id%2 == 0 { // twice, and others not at all
						if err := c2.AwaitCalls(c2, 1); err != nil && !c.swallows {
							return errors.Join(errWhole, err)
						}
					}
					ctx := context.WithValue(c2, idKey{}, c2.id)
					if err := c2.AwaitCalls(ctx, 2); err != nil && !c.swallows {
						return errors.Join(errWhole, err)
					}
					c2.n++
					return nil
				}, idsTo(9)...)
				var mu sync.Mutex
				calls := 0
				p.Calls = func(ctx context.Context, n int, first bool) error {
					id, _ := ctx.Value(idKey{}).(int64)
					if first && id > int64(max(1, c.batch)) {
						t.Errorf("a call for %d is one of the page's first", id)
					}
					if id == c.refuse {
						return errNoCall
					}
					mu.Lock()
					defer mu.Unlock()
					calls += n
					return nil
				}
				p.AtOnce, p.BatchSize = c.atOnce, c.batch
				o, err := p.Run(t.Context())
				synctest.Wait()
				if n := p.Paces.Brake(p.Job.Ref()).Lately().All; c.atOnce == 1 && n != max(0, c.reached) {
					t.Errorf("the brake has %d runs, and should have no refused one", n)
				}
				if c.reached < 0 {
					if !errors.Is(err, errNoCall) {
						t.Fatalf("%+v, %v", o, err)
					}
					return
				}
				if err != nil || o.Reached != c.reached || len(o.Failures) > 0 || o.Written != int64(c.reached) {
					t.Fatalf("%+v, %v, want %d entities", o, err, c.reached)
				}
				want := int64(2*c.reached + c.reached/2)
				if o.Calls != want || int64(calls) < want {
					t.Errorf("%d calls, and %d announced, want %d", o.Calls, calls, want)
				}
			})
		})
	}
}

type idKey struct{}

// TestCallsWait has calls wait for longer than the function may take. The wait is no part of its
// time, but a function that takes too long besides has failed.
func TestCallsWait(t *testing.T) {
	for _, atOnce := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			p := over(kindOf(1, 2, 3), function.Visit, func(c *call) error {
				both := make(chan error)
				go func() { both <- c.AwaitCalls(c, 1) }()
				if err := errors.Join(c.AwaitCalls(c, 1), <-both); err != nil {
					return err
				}
				if c.id == 2 {
					time.Sleep(90 * time.Second)
				}
				time.Sleep(45 * time.Second)
				return nil
			}, 1, 2, 3)
			p.Job.PageTime = int64(time.Hour)
			p.AtOnce = atOnce
			p.Calls = func(context.Context, int, bool) error { time.Sleep(10 * time.Minute); return nil }
			o, err := p.Run(t.Context())
			if err != nil || o.Reached != 3 || len(o.Failures) != 1 || o.Failures[0].At.Key.ID != 2 ||
				!errors.As(o.Failures[0].Err, new(TooSlowError)) {
				t.Errorf("%d at once: %+v, %v", atOnce, o, err)
			}
			time.Sleep(time.Hour) // until the abandoned call has returned
		})
	}
}

// TestOwnContextOfCalls gives a call less time than it has to wait. That is an error of the
// function.
func TestOwnContextOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := over(kindOf(1, 2), function.Visit, func(c *call) error {
			ctx, cancel := context.WithTimeout(c, time.Second)
			defer cancel()
			return c.AwaitCalls(ctx, 1)
		}, 1, 2)
		p.Calls = func(ctx context.Context, _ int, _ bool) error { <-ctx.Done(); return ctx.Err() }
		if o, err := p.Run(t.Context()); err != nil || len(o.Failures) != 2 || o.Calls != 0 {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// TestCallsAgain has the rate refuse a call when the function runs again, on an entity that others
// have changed. The page ends before it.
func TestCallsAgain(t *testing.T) {
	for _, c := range []struct {
		refuse int64
		atOnce int
		batch  int
		want   int // entities, -1: the page as a whole has to wait
	}{{3, 1, 0, 2}, {3, 4, 0, 2}, {1, 1, 0, -1}, {4, 1, 2, 3}} {
		synctest.Test(t, func(t *testing.T) {
			k := kindOf(1, 2, 3, 4, 5)
			p := over(k, function.Update, func(c *call) error {
				if err := c.AwaitCalls(context.WithValue(c, idKey{}, c.id), 1); err != nil {
					return err
				}
				c.n += 10
				return nil
			}, 1, 2, 3, 4, 5)
			p.AtOnce, p.BatchSize = c.atOnce, c.batch
			again := false
			p.Calls = func(ctx context.Context, _ int, _ bool) error {
				if id := ctx.Value(idKey{}); again && id == c.refuse {
					return errNoCall
				}
				return nil
			}
			o, err := p.Run(t.Context())
			if err != nil || o.Reached != 5 {
				t.Fatalf("%+v, %v", o, err)
			}
			again = true
			var moved []Moved
			for _, g := range o.Guards() {
				if id := g.Key.ID; id == 1 || id >= 3 {
					k.put(id, 100)
					moved = append(moved, Moved{g, k.stamp(id)})
				}
			}
			err = p.Again(t.Context(), o, moved, func(Moved) error { return nil })
			if c.want < 0 {
				if !errors.Is(err, errNoCall) {
					t.Errorf("%+v, %v", o, err)
				}
				return
			}
			if err != nil || o.Reached != c.want || o.Written != int64(c.want) || len(o.Failures) > 0 ||
				len(o.Mutations()) != c.want {
				t.Errorf("%+v: %+v, %v", c, o, err)
			}
		})
	}
}
