package page

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

var errNoCall = errors.New("no call for now")

// TestRefusedCalls makes the job's rate refuse a call of a service. The page must end before the
// entity that has announced it, even if the function ignores the error. This must not count as a
// failed attempt.
func TestRefusedCalls(t *testing.T) {
	for _, c := range []struct {
		name          string
		atOnce, batch int
		refuse        int64 // the ID of the entity whose call is refused
		swallows      bool  // whether the function ignores the error
		reached       int   // number of entities reached; -1: the page as a whole must wait
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
					if c2.id%2 == 0 { // some entities announce two calls, and others none
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
				p.Calls = func(ctx context.Context, n int, before int64, first bool) error {
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
				if n := p.Announced.Load(); n != int64(calls) || calls < 2*c.reached+c.reached/2 {
					t.Errorf("%d calls, and %d announced", n, calls)
				}
			})
		})
	}
}

type idKey struct{}

// TestCallsWait makes calls wait for longer than the function may take. The wait must not count as
// the function's time. A function that takes too long apart from the wait must fail.
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
			p.Calls = func(context.Context, int, int64, bool) error { time.Sleep(10 * time.Minute); return nil }
			o, err := p.Run(t.Context())
			if err != nil || o.Reached != 3 || len(o.Failures) != 1 || o.Failures[0].At.Key.ID != 2 ||
				!errors.As(o.Failures[0].Err, new(TooSlowError)) {
				t.Errorf("%d at once: %+v, %v", atOnce, o, err)
			}
			time.Sleep(time.Hour) // until the abandoned call has returned
		})
	}
}

// TestOwnContextOfCalls gives a call a deadline that is earlier than the end of its wait. This must
// be an error of the function.
func TestOwnContextOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := over(kindOf(1, 2), function.Visit, func(c *call) error {
			ctx, cancel := context.WithTimeout(c, time.Second)
			defer cancel()
			return c.AwaitCalls(ctx, 1)
		}, 1, 2)
		p.Calls = func(ctx context.Context, _ int, _ int64, _ bool) error { <-ctx.Done(); return ctx.Err() }
		if o, err := p.Run(t.Context()); err != nil || len(o.Failures) != 2 || p.Announced.Load() != 0 {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// TestCallsAgain makes the rate refuse a call when the function runs again on an entity that other
// clients have changed. The page must end before this entity.
func TestCallsAgain(t *testing.T) {
	for _, c := range []struct {
		refuse int64
		atOnce int
		batch  int
		want   int // number of entities reached; -1: the page as a whole must wait
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
			p.Calls = func(ctx context.Context, _ int, _ int64, _ bool) error {
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

// TestCallsAfterRefused runs several calls of the function at once, which announce calls of a
// service and wait. Once the rate has refused a call of an entity, later entities must make no more
// calls, and stop waiting. Earlier entities must continue.
func TestCallsAfterRefused(t *testing.T) {
	const refused, calls = 20, 30
	// for each refused entity, the number of its calls before
	refusals := map[any]int64{int64(refused): 10, int64(refused + 1): 5}
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("again %v", again)
			k := kindOf(idsTo(60)...)
			made, ended := make(map[int64]int), false
			var mu sync.Mutex
			p := over(k, function.Update, func(c *call) error {
				if c.n++; c.id > 40 { // these start to call only after the refusal
					time.Sleep(8 * time.Second)
				}
				for range calls {
					if err := c.AwaitCalls(context.WithValue(c, idKey{}, c.id), 1); err != nil {
						return nil // ignores the error
					}
					mu.Lock()
					if made[c.id]++; ended && c.id >= refused {
						t.Errorf("%d makes a call after the refusal", c.id)
					}
					mu.Unlock()
				}
				return nil
			}, idsTo(60)...)
			p.AtOnce = 60
			limited := !again
			p.Calls = func(ctx context.Context, _ int, before int64, _ bool) error {
				if !limited {
					return nil
				}
				id, wait := ctx.Value(idKey{}), time.Second
				last, refuses := refusals[id]
				if refuses {
					wait -= time.Millisecond
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(wait):
				}
				if mu.Lock(); refuses && before == last {
					defer mu.Unlock()
					ended = id == int64(refused)
					return errNoCall
				}
				mu.Unlock()
				return nil
			}
			o, err := p.Run(t.Context())
			if again && err == nil {
				limited = true
				clear(made)
				var moved []Moved
				for _, g := range o.Guards() {
					k.put(g.Key.ID, 100)
					moved = append(moved, Moved{g, k.stamp(g.Key.ID)})
				}
				err = p.Again(t.Context(), o, moved, func(Moved) error { return nil })
			}
			synctest.Wait()
			if err != nil || o.Reached != refused-1 {
				t.Fatalf("%+v, %v", o, err)
			}
			checkCalls(t, made, 1, refused-1, calls, calls)
			checkCalls(t, made, refused, refused, 0, 10)
			checkCalls(t, made, refused+1, 40, 0, 5)
			checkCalls(t, made, 41, 60, 0, 0)
		})
	}
}

// checkCalls checks that each entity from first to last has made between least and most calls.
func checkCalls(t *testing.T, made map[int64]int, first, last int64, least, most int) {
	t.Helper()
	for id := first; id <= last; id++ {
		if n := made[id]; n < least || n > most {
			t.Errorf("%d has made %d calls, want %d to %d", id, n, least, most)
		}
	}
}

// TestCallsInVain makes the rate refuse calls of a function that has already made some. A batch
// must be retried with fewer entities. A single entity must wait, until its range has waited too
// long. A function that needs too many calls must not run again.
func TestCallsInVain(t *testing.T) {
	tooMany := fault.Permanent(errNoCall)
	wait := fault.Refusal{Summary: "wait", Cause: errNoCall, Later: true, Own: true}
	for _, c := range []struct {
		name      string
		batch     int
		made      int64 // number of calls before the refused one
		refusal   error
		place     int64 // place of the first entity in the refused call
		impatient bool
		want      string // the results or the error of the page
	}{
		{"waits", 0, 0, wait, 0, true, "wait"},
		{"in vain", 0, 3, wait, 0, false, "wait"},
		{"in vain for long", 0, 3, wait, 0, true, "1 reached, failed 1"},
		{"in vain, later in the page", 0, 3, wait, 2, true, "2 reached, failed 0"},
		{"too many", 0, 0, tooMany, 0, false, "6 reached, failed 1 for ever"},
		{"too many, later in the page", 0, 3, tooMany, 2, false, "6 reached, failed 1 for ever"},
		{"a batch waits", 3, 0, wait, 0, true, "wait"},
		{"a batch in vain", 3, 2, wait, 0, false, "a batch of 3: wait"},
		{"a batch in vain for long", 3, 2, wait, 0, true, "a batch of 3: wait"},
		{"a batch with too many", 3, 0, tooMany, 0, false, "a batch of 3: no call for now"},
		{"a batch with too many, later in the page", 3, 0, tooMany, 3, false, "3 reached, failed 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := over(kindOf(idsTo(6)...), function.Update, func(a *call) error {
					c2 := context.WithValue(a, idKey{}, a.id)
					for range 5 {
						if err := a.AwaitCalls(c2, 1); err != nil {
							return nil // ignores the error
						}
					}
					a.n++
					return nil
				}, idsTo(6)...)
				p.BatchSize, p.Impatient = c.batch, c.impatient
				p.Calls = func(ctx context.Context, _ int, before int64, _ bool) error {
					if ctx.Value(idKey{}) == c.place+1 && before == c.made {
						return c.refusal
					}
					return nil
				}
				o, err := p.Run(t.Context())
				got := fmt.Sprint(err)
				if err == nil {
					got = fmt.Sprintf("%d reached, failed %d", o.Reached, len(o.Failures))
					if len(o.Failures) > 0 && o.Failures[0].Permanent {
						got += " for ever"
					}
				}
				if got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		})
	}
}

// TestRefusal checks what happens to a call of the function that may not make the calls it has
// announced. If the service refuses them, it may accept them later, so the call must have no
// effect.
func TestRefusal(t *testing.T) {
	service, own := fault.Refusal{Cause: errors.New("503")}, fault.Refusal{Cause: errors.New("rate"), Own: true}
	tooMany := fault.Permanent(errors.New("too many calls"))
	for _, c := range []struct {
		name      string
		made      int
		refusal   error
		n         int // number of entities
		impatient bool
		batch     bool // whether the page is retried with fewer entities
		fails     bool
	}{
		{"a service refuses", 1, service, 3, true, false, false},
		{"the job's rate refuses the first", 0, own, 3, true, false, false},
		{"the job's rate refuses later ones", 1, own, 3, false, true, false},
		{"of a single entity", 1, own, 1, false, false, false},
		{"of a single entity, and it has waited for long", 1, own, 1, true, false, true},
		{"too many", 0, tooMany, 3, false, true, false},
		{"too many of a single entity", 0, tooMany, 1, false, false, true},
	} {
		calls := 0
		var a *function.Announced
		_ = function.Calls(t.Context(), time.Minute, new(atomic.Int64), func(r *function.Runner) {
			a = function.Announcing(r, func(context.Context, int, int64) error {
				if calls++; calls > c.made {
					return c.refusal
				}
				return nil
			}, new(atomic.Int64))
			for range c.made + 1 {
				_ = a.Await(t.Context(), 1)
			}
		})
		err, fails := Refusal(a, c.n, c.impatient)
		if errors.As(err, new(BatchError)) != c.batch || !c.batch && !errors.Is(err, c.refusal) || fails != c.fails {
			t.Errorf("%s: %v, fails %v", c.name, err, fails)
		}
	}
}

// TestCallers makes the calls of the entity at place 1 be refused, while the entities at place 3
// wait. Announced calls of later entities must then be refused for the same reason. Calls of
// earlier entities must not be refused.
func TestCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(callers)
		waits := make(chan error)
		go func() {
			waits <- c.await(t.Context(), 3, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		synctest.Wait()
		err := c.await(t.Context(), 1, func(context.Context) error { return errNoCall })
		if !errors.Is(err, errNoCall) {
			t.Error(err)
		}
		if err := <-waits; !errors.Is(err, errNoCall) {
			t.Errorf("a later entity: %v", err)
		}
		for place, want := range []error{nil, nil, errNoCall, errNoCall} {
			if err := c.await(t.Context(), place, func(context.Context) error { return nil }); !errors.Is(err, want) {
				t.Errorf("at place %d: %v, want %v", place, err, want)
			}
		}
	})
}

// TestCallMeter checks which runs of the function count in the meter's statistics of runs that wait
// for calls.
func TestCallMeter(t *testing.T) {
	for _, way := range []runWay{{1, 0}, {3, 0}, {1, 3}} {
		synctest.Test(t, func(t *testing.T) {
			calls := 2
			p := over(kindOf(1, 2, 3), function.Visit, func(c *call) (err error) {
				for range calls {
					err = errors.Join(err, c.AwaitCalls(c, 1))
				}
				return err
			}, 1, 2, 3)
			p.AtOnce, p.BatchSize = way.atOnce, way.batch
			p.Calls = func(context.Context, int, int64, bool) error { return nil }
			meter := p.Paces.CallMeter(p.Job.Ref())
			if _, err := p.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			first := meter.Begins(time.Hour)
			if want := time.Hour / time.Duration(2*max(1, way.batch)); first != want {
				t.Errorf("%+v: after runs with two calls, the next one may wait %v, want %v", way, first, want)
			}
			calls = 0
			if _, err := p.Run(t.Context()); err != nil || meter.Begins(time.Hour) != first {
				t.Errorf("%+v: after runs without calls, it may wait %v: %v", way, meter.Begins(time.Hour), err)
			}
		})
	}
}

// TestCallsWithoutRate checks that announced calls are counted even if the job's rate does not
// limit them.
func TestCallsWithoutRate(t *testing.T) {
	p := over(kindOf(1, 2), function.Visit, func(c *call) error { return c.AwaitCalls(c, 3) }, 1, 2)
	o, err := p.Run(t.Context())
	if err != nil || o.Processed != 2 || p.Announced.Load() != 6 {
		t.Errorf("%+v, %v, %d calls", o, err, p.Announced.Load())
	}
}
