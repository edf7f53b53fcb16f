package gate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
)

// A visit describes a task that enters the gate at a certain time, exclusively or not, and stays
// for a certain time.
type visit struct {
	name      string
	comes     time.Duration
	exclusive bool
	stays     time.Duration
}

// TestEnter lets tasks pass the gate. It checks when each task may start, and what its Place says.
func TestEnter(t *testing.T) {
	for _, c := range []struct {
		name   string
		visits []visit
		strays int64
		want   []string
	}{
		{
			name:   "tasks are beside each other",
			visits: []visit{{"a", 0, false, 3}, {"b", 1, false, 3}, {"c", 2, false, 3}},
			want:   []string{"a at 0", "b at 1", "c at 2"},
		},
		{
			name:   "an exclusive one waits for all before it, and those after it wait for it",
			visits: []visit{{"a", 0, false, 5}, {"x", 1, true, 4}, {"b", 2, false, 1}, {"c", 3, false, 1}},
			want:   []string{"a at 0", "x at 5 exclusive waited quiet", "b at 9 waited", "c at 9 waited"},
		},
		{
			name:   "an exclusive one that finds nothing inside does not wait",
			visits: []visit{{"x", 0, true, 2}, {"a", 3, false, 1}},
			want:   []string{"x at 0 exclusive quiet", "a at 3"},
		},
		{
			name:   "two exclusive ones come one after the other",
			visits: []visit{{"x", 0, true, 4}, {"y", 1, true, 4}},
			want:   []string{"x at 0 exclusive quiet", "y at 4 exclusive waited quiet"},
		},
		{
			name:   "beside a stray no task is the only suspect",
			visits: []visit{{"x", 0, true, 1}}, strays: 1,
			want: []string{"x at 0 exclusive"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New()
				g.Strays.Store(c.strays)
				begun := time.Now()
				entered := make([]string, len(c.visits))
				for i, v := range c.visits {
					go func() {
						time.Sleep(v.comes * time.Second)
						p, err := g.Enter(t.Context(), v.exclusive)
						if err != nil {
							t.Error(err)
							return
						}
						entered[i] = fmt.Sprint(v.name, " at ", time.Since(begun).Seconds()) + saidOf(p)
						time.Sleep(v.stays * time.Second)
						p.Leave()
						p.Leave() // a second call has no effect
					}()
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if !slices.Equal(entered, c.want) {
					t.Errorf("entered: %q, want %q", entered, c.want)
				}
			})
		})
	}
}

// saidOf describes a Place in words.
func saidOf(p Place) (text string) {
	for _, is := range []struct {
		what string
		true bool
	}{{"exclusive", p.Exclusive}, {"waited", p.Waited}, {"quiet", p.Quiet}} {
		if is.true {
			text += " " + is.what
		}
	}
	return text
}

// TestExclusive lets many tasks pass the gate in random order. It checks that no other task runs
// while an exclusive one does, and that every task gets in.
func TestExclusive(t *testing.T) {
	seed := testflag.Seed(t)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		g := New()
		var inside, done atomic.Int64
		const n = 500
		for range n {
			exclusive, comes, stays := rng.IntN(5) == 0, time.Duration(rng.IntN(1000)), time.Duration(rng.IntN(20))
			go func() {
				time.Sleep(comes * time.Millisecond)
				p, err := g.Enter(t.Context(), exclusive)
				if err != nil {
					t.Error(err)
					return
				}
				weight := int64(1)
				if exclusive {
					weight = math.MaxInt32
				}
				for range 2 { // checked when the task starts and when it ends
					if now := inside.Add(weight); exclusive && now != weight || !exclusive && now >= math.MaxInt32 {
						t.Errorf("exclusive %v: inside is %d", exclusive, now)
					}
					time.Sleep(stays * time.Millisecond)
					inside.Add(-weight)
				}
				done.Add(1)
				p.Leave()
			}()
		}
		time.Sleep(time.Hour)
		if done.Load() != n {
			t.Errorf("%d of %d got in", done.Load(), n)
		}
	})
}

// TestEnterEnds checks that a waiting task stops waiting when its context ends, and when the
// process drains.
func TestEnterEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(g *Gate, cancel context.CancelFunc)
		want error
	}{
		{"its request ends", func(_ *Gate, cancel context.CancelFunc) { cancel() }, context.Canceled},
		{"the process drains", func(g *Gate, _ context.CancelFunc) { g.drain() }, ErrDraining},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New()
				first, err := g.Enter(t.Context(), true)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				got := make(chan error, 1)
				go func() {
					_, err := g.Enter(ctx, false)
					got <- err
				}()
				synctest.Wait()
				select {
				case err := <-got:
					t.Fatalf("it did not wait: %v", err)
				default:
				}
				c.end(g, cancel)
				if err := <-got; !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				first.Leave()
				if !g.places.TryAcquire(math.MaxInt64) {
					t.Error("a task that has stopped waiting has a place")
				}
			})
		})
	}
}

// TestDrain drains a process with deliveries that take one second, two seconds, and so on.
func TestDrain(t *testing.T) {
	for _, c := range []struct {
		name       string
		deliveries int
		waits      time.Duration // the timeout of the drain
		left       int
		took       time.Duration
	}{
		{name: "nothing is inside", waits: time.Minute},
		{name: "it waits for the last one", deliveries: 3, waits: time.Minute, took: 3 * time.Second},
		{name: "it does not wait for ever", deliveries: 5, waits: 2500 * time.Millisecond, left: 3,
			took: 2500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New()
				if leave, err := g.Admit(); err == nil { // this delivery ends before the drain
					leave()
				}
				for i := range c.deliveries {
					leave, err := g.Admit()
					if err != nil {
						t.Fatal(err)
					}
					time.AfterFunc(time.Duration(i+1)*time.Second, leave)
				}
				if g.IsDraining() || g.Draining().Err() != nil {
					t.Error("it drains already")
				}
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.waits)
				defer cancel()
				left, err := g.Drain(ctx)
				if took := time.Since(begun); left != c.left || (err != nil) != (c.left > 0) || took != c.took {
					t.Errorf("after %v %d are left, %v; want %d after %v", took, left, err, c.left, c.took)
				}
				if !g.IsDraining() || g.Draining().Err() == nil {
					t.Error("it does not drain")
				}
				if _, err := g.Admit(); !errors.Is(err, ErrDraining) {
					t.Errorf("a delivery is admitted: %v", err)
				}
				if _, err := g.Enter(t.Context(), false); !errors.Is(err, ErrDraining) {
					t.Errorf("a task enters: %v", err)
				}
				time.Sleep(time.Minute)
				// All deliveries have ended, so a second drain must return at once.
				if left, err := g.Drain(t.Context()); left != 0 || err != nil {
					t.Errorf("once more: %d, %v", left, err)
				}
			})
		})
	}
}

// TestWanted checks when the running tasks are told to end because an exclusive one waits.
func TestWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New()
		check := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			got := false
			select {
			case <-g.Wanted():
				got = true
			default:
			}
			if got != want {
				t.Errorf("%s: an exclusive task waits: %v", what, got)
			}
		}
		enter := func(exclusive bool) Place {
			p, err := g.Enter(t.Context(), exclusive)
			if err != nil {
				t.Error(err)
			}
			return p
		}
		x := enter(true)
		check("it is inside", false)
		x.Leave()
		a := enter(false)
		check("a task is inside", false)
		early := g.Wanted()
		for range 2 {
			go func() {
				p := enter(true)
				time.Sleep(time.Second)
				p.Leave()
			}()
		}
		check("two wait", true)
		go enter(false)
		<-early
		a.Leave()
		check("one waits for the other", true)
		time.Sleep(time.Second)
		check("no one waits", false)
		time.Sleep(time.Second)
		check("a task is inside again", false)
	})
}

// TestDrainAtOnce drains a process without deliveries, with a context that has already ended. Drain
// must succeed.
func TestDrainAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 64 { // repeated, because Drain may notice first that ctx has ended, or that no delivery is left
		if left, err := New().Drain(ctx); left != 0 || err != nil {
			t.Fatalf("%d are left, %v", left, err)
		}
	}
}
