package page

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// idsTo returns the IDs from 1 to n.
func idsTo(n int64) (ids []int64) {
	for id := range n {
		ids = append(ids, id+1)
	}
	return ids
}

// whole describes everything in a page's results that does not depend on time.
func whole(o *Results) string {
	var b strings.Builder
	fmt.Fprintln(&b, said(o), o.Counters, o.Written, o.Bytes, o.Writes(), o.Compared)
	for _, r := range o.results {
		fmt.Fprint(&b, r.at.Key.ID, ":")
		if r.failure != nil {
			// only the first line, because a stack has addresses
			text, _, _ := strings.Cut(r.failure.Err.Error(), "\n")
			fmt.Fprint(&b, " ", text)
		}
		if r.effect != nil {
			for _, m := range r.effect.Mutations {
				after, _ := m.After()
				fmt.Fprint(&b, " ", m.Key.ID, m.Inserts, m.Deletes, m.Properties, after.Gone,
					after.Entity.GetProperties()["N"].GetIntegerValue())
			}
			for _, s := range r.effect.Seen {
				fmt.Fprint(&b, " saw ", s.Key.ID, s.OfPage, s.Gone, s.Entity.GetProperties()["N"].GetIntegerValue())
			}
		}
		fmt.Fprintln(&b)
	}
	for _, g := range o.Guards() {
		fmt.Fprintln(&b, g.Key.ID, g.Was.Version, g.Was.Gone, g.Free, g.of)
	}
	return b.String()
}

// mixed returns a function that reads, writes, inserts and deletes other entities, fails, fails its
// whole batch, and panics. The seed determines when.
func mixed(seed uint64) func(c *call) error {
	busy := 1 + int64(seed%7) // number of other entities that the calls use
	return func(c *call) error {
		dice := rand.New(rand.NewPCG(seed, uint64(c.id)))
		other := func() int64 { return 100 + dice.Int64N(busy) }
		sum := c.n
		for range 1 + dice.IntN(3) {
			time.Sleep(time.Duration(dice.IntN(100)) * time.Millisecond)
			switch dice.IntN(9) {
			case 0, 1:
				sum += c.sees(other())
			case 2:
				sum += c.sees(1 + dice.Int64N(20))
			case 3, 4:
				c.Put(keyOf(other()), &struct{ N int64 }{sum})
			case 5:
				c.Insert(keyOf(other()+50), &struct{ N int64 }{sum})
			case 6:
				c.Delete(keyOf(other()))
			case 7:
				if c.n = sum; sum%5 == 0 {
					return fmt.Errorf("%d of %d", sum, c.id)
				}
				if sum%7 == 0 {
					return fmt.Errorf("%w %d", errWhole, c.id)
				}
			case 8:
				if sum%11 == 0 {
					panic(fmt.Sprint(sum))
				}
				c.Count("sum", sum)
			}
		}
		return nil
	}
}

// TestSame compares runs of the function mixed with one call at a time, with overlapping calls, and
// with batches. The results must be the same. If the function runs again on entities, the page must
// not read them again.
func TestSame(t *testing.T) {
	again := 0
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			fn := mixed(seed)
			outcome := func(atOnce, batch int) string {
				k := kindOf(append(idsTo(20), 100, 101, 103)...)
				calls := new(atomic.Int64)
				p := over(k, function.Update, func(c *call) error { calls.Add(1); return fn(c) }, idsTo(20)...)
				p.AtOnce, p.BatchSize, p.Job.PageTime = atOnce, batch, int64(time.Hour)
				readsOnce(p)
				o, err := p.Run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if int(calls.Load()) > o.Reached {
					again++
				}
				if p.Strays.Load() != 0 {
					t.Error("a call was left behind")
				}
				return whole(o)
			}
			want := outcome(1, 0)
			for _, way := range [][2]int{{2, 0}, {5, 0}, {20, 0}, {1, 1}, {1, 3}, {1, 20}, {2, 4}, {5, 7}} {
				if got := outcome(way[0], way[1]); got != want {
					t.Errorf("seed %d, %d at once, batches of %d:\n%s\nwant\n%s", seed, way[0], way[1], got, want)
				}
			}
		})
	}
	if again < 50 {
		t.Errorf("only %d pages had a function run again", again)
	}
}

// readsOnce lets a page read all its entities at once, and makes any further read fail.
func readsOnce(p *Page) {
	p.Paces.Expect(p.Job.Ref(), 100)
	read, reads := p.Read, 0
	p.Read = func(at []*keyspace.Position) ([]wire.Stamp, error) {
		if reads++; reads > 1 {
			return nil, errors.New("the page reads once more")
		}
		return read(at)
	}
}

// TestGone checks a page whose entities were deleted meanwhile, all or every other one. They must
// count for the mean time of an entity, as with one call at a time.
func TestGone(t *testing.T) {
	for _, way := range []runWay{{1, 0}, {3, 0}, {1, 1}, {1, 3}} {
		synctest.Test(t, func(t *testing.T) {
			fn := func(*call) error { time.Sleep(time.Second); return nil }
			page := func(k *kind) *Results {
				p := over(k, function.Update, fn, idsTo(8)...)
				p.AtOnce, p.BatchSize, p.Job.PageTime = way.atOnce, way.batch, int64(time.Hour)
				readsOnce(p)
				o, err := p.Run(t.Context())
				if err != nil || o.Reached != 8 || int(o.Processed) != len(k.n) {
					t.Fatalf("%+v: %s, %v, want that %d are done", way, said(o), err, len(k.n))
				}
				return o
			}
			page(kindOf())
			o := page(kindOf(2, 4, 6, 8))
			if each := o.Each(); way.atOnce+way.batch <= 2 && each != 3*time.Second/7 { // without the slowest
				t.Errorf("%+v: it says %v for each", way, each)
			}
		})
	}
}

// TestAtOnce runs 500 calls of 100 ms each, 50 at the same time. They must take one second, and 2
// ms must count for each entity. The entities must be read as with one call at a time.
func TestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		p := over(kindOf(idsTo(500)...), function.Visit, func(c *call) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(100 * time.Millisecond)
			c.Count("calls", 1)
			return nil
		}, idsTo(500)...)
		p.AtOnce = 50
		p.Paces.Expect(p.Job.Ref(), 100)
		read, reads := p.Read, 0
		p.Read = func(at []*keyspace.Position) ([]wire.Stamp, error) {
			reads++
			return read(at)
		}
		begun := time.Now()
		o, err := p.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != time.Second || o.Ran != took || o.Spent != took || most.Load() != 50 {
			t.Errorf("it took %v, said %v, with %d at once", took, o.Ran, most.Load())
		}
		if each := o.Each(); each < 1900*time.Microsecond || each > 2100*time.Microsecond {
			t.Errorf("it says %v for each", each)
		}
		if n := o.NextPage(500, time.Second, 0); n < 475 || reads != 1 {
			t.Errorf("the next page has %d; %d reads", n, reads)
		}
		if pace := p.Paces.Get(p.Job.Ref()); pace.Entities != 500 || pace.Each() != 2*time.Millisecond {
			t.Errorf("the job's pace: %+v", pace)
		}
	})
}

// TestDear checks that one long call among overlapping ones does not make the others count as slow.
func TestDear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := over(kindOf(idsTo(200)...), function.Visit, func(c *call) error {
			if time.Sleep(10 * time.Millisecond); c.id == 7 {
				time.Sleep(5 * time.Second)
			}
			return nil
		}, idsTo(200)...)
		p.AtOnce = 10
		p.Paces.Expect(p.Job.Ref(), 100)
		o, err := p.Run(t.Context())
		if err != nil || o.Reached != 200 {
			t.Fatalf("%d reached, %v", o.Reached, err)
		}
		if each := o.Each(); each < 900*time.Microsecond || each > 1300*time.Microsecond ||
			o.Ran > 5020*time.Millisecond {
			t.Errorf("it says %v for each, of %v", each, o.Ran)
		}
	})
}

// TestHangs checks that hanging calls fail while other calls have their results.
func TestHangs(t *testing.T) {
	for mode, want := range map[function.Mode]string{
		function.Visit:  "40 reached, 37 done; failed 1, 9, 40",
		function.Update: "40 reached, 37 done; failed 1, 9, 40",
	} {
		synctest.Test(t, func(t *testing.T) {
			p := over(kindOf(idsTo(40)...), mode, func(c *call) error {
				if time.Sleep(time.Second); c.id == 1 || c.id == 9 || c.id == 40 {
					time.Sleep(time.Hour)
				}
				return nil
			}, idsTo(40)...)
			p.AtOnce, p.Job.PageTime = 4, int64(time.Hour)
			o, err := p.Run(t.Context())
			if err != nil || p.Strays.Load() != 3 {
				t.Fatalf("%v, %d strays", err, p.Strays.Load())
			}
			if got := said(o); got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
			if each := o.Each(); each < 200*time.Millisecond || each > 600*time.Millisecond {
				t.Errorf("it says %v for each", each)
			}
			time.Sleep(2 * time.Hour)
			if p.Strays.Load() != 0 {
				t.Error("there are strays still")
			}
		})
	}
}

// TestDrains checks a page whose process drains. No further call may start, and calls under way
// must have their results.
func TestDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		p := over(kindOf(idsTo(100)...), function.Visit, func(c *call) error {
			time.Sleep(time.Second + time.Duration(c.id)*time.Millisecond)
			return nil
		}, idsTo(100)...)
		p.AtOnce, p.Ends = 10, func() bool { return time.Since(begun) > 1500*time.Millisecond }
		o, err := p.Run(t.Context())
		if err != nil || o.Reached != 20 || o.Processed != 20 || time.Since(begun) > 2500*time.Millisecond {
			t.Errorf("%s, %v, after %v", said(o), err, time.Since(begun))
		}
	})
}

// TestEndsBetweenCalls checks a page with a minute between the starts of calls, by the job's rate.
// If its process drains, it must end without a wait. If its time is over after the wait, no further
// call may start.
func TestEndsBetweenCalls(t *testing.T) {
	for _, drains := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			work := func(*call) error { time.Sleep(5 * time.Second); return nil }
			p := over(kindOf(idsTo(3)...), function.Visit, work, idsTo(3)...)
			p.Ends = func() bool { return drains && time.Since(begun) > time.Second }
			p.AtOnce, p.Begin, p.Spacing = 2, begun, time.Minute
			o, err := p.Run(t.Context())
			if took := time.Since(begun); err != nil || o.Reached != 1 || drains && took > 5*time.Second {
				t.Errorf("drains %v: %s, %v, after %v", drains, said(o), err, took)
			}
		})
	}
}

// TestNoCallAfterTheEnd makes a call end the page while an earlier call is still running. It is
// refused by the job's rate, or a batch ends its goroutine. No further call may start, because it
// would have no effect.
func TestNoCallAfterTheEnd(t *testing.T) {
	for _, batch := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			calls, last := new(atomic.Int64), int64(1+2*max(1, batch)) // the second call ends before entity last
			p := over(kindOf(idsTo(20)...), function.Visit, func(c *call) error {
				switch calls.Add(1); {
				case c.id == 1:
					time.Sleep(30 * time.Second)
				case batch > 0 && c.id == last-1:
					runtime.Goexit()
				}
				return c.AwaitCalls(context.WithValue(c, idKey{}, c.id), 1)
			}, idsTo(20)...)
			p.Calls = func(ctx context.Context, _ int, _ int64, _ bool) error {
				if batch == 0 && ctx.Value(idKey{}) == last-1 {
					return errNoCall
				}
				return nil
			}
			p.AtOnce, p.BatchSize, p.Job.PageTime = 2, batch, int64(time.Hour)
			o, err := p.Run(t.Context())
			if want := int(last) - 1; err != nil || int(calls.Load()) != want || o.Reached != want-max(1, batch) {
				t.Errorf("batches of %d: %s, %v, after calls for %d entities, want %d", batch, said(o), err,
					calls.Load(), want)
			}
		})
	}
}

// TestBytesThatWait checks that results which wait for an earlier entity's call use limited memory.
// No further call may start once they fill a commit.
func TestBytesThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := new(atomic.Int64)
		p := over(kindOf(idsTo(9)...), function.Update, func(*call) error { return nil }, idsTo(9)...)
		p.Call = func(_ context.Context, _ function.Job, key *datastore.Key, _ *pb.Entity) (*function.Effect, error) {
			if calls.Add(1); key.ID == 1 {
				time.Sleep(5 * time.Second)
				return &function.Effect{}, nil
			}
			time.Sleep(time.Second)
			return &function.Effect{Bytes: maxBytes / 4}, nil
		}
		p.AtOnce = 2
		o, err := p.Run(t.Context())
		if err != nil || o.Reached != 5 || calls.Load() != 5 {
			t.Errorf("%s, %v, after %d calls", said(o), err, calls.Load())
		}
	})
}

// TestSpaces checks that the job's rate determines the time between calls, even if many may
// overlap.
func TestSpaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, starts := time.Now(), make([]time.Duration, 21)
		p := over(kindOf(idsTo(20)...), function.Visit, func(c *call) error {
			starts[c.id] = time.Since(begun)
			time.Sleep(time.Second)
			return nil
		}, idsTo(20)...)
		p.AtOnce, p.Begin, p.Spacing = 50, begun.Add(time.Second), 100*time.Millisecond
		o, err := p.Run(t.Context())
		if err != nil || o.Reached != 20 || o.Ran != 3900*time.Millisecond {
			t.Fatalf("%s, %v, in %v", said(o), err, o.Ran)
		}
		for id := 1; id <= 20; id++ {
			if want := time.Second + time.Duration(id-1)*p.Spacing; starts[id] != want {
				t.Errorf("%d began after %v, want %v", id, starts[id], want)
			}
		}
	})
}

// TestBrakesTogether checks overlapping calls of a service with a limit of 20 calls a second.
func TestBrakesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens, at := 20.0, time.Now()
		turn := make(chan struct{}, 1)
		p := over(kindOf(idsTo(400)...), function.Visit, func(*call) error {
			turn <- struct{}{}
			tokens = min(20, tokens+20*time.Since(at).Seconds())
			at = time.Now()
			ok := tokens >= 1
			if ok {
				tokens--
			}
			<-turn
			time.Sleep(50 * time.Millisecond)
			if !ok {
				return errBad
			}
			return nil
		}, idsTo(400)...)
		p.AtOnce, p.Pause, p.Job.PageTime = 10, 10*time.Second, int64(time.Hour)
		o, err := p.Run(t.Context())
		if err != nil || o.Reached != 400 || len(o.Failures) > 100 { // without the brake, 340 calls would fail
			t.Fatalf("%d reached, %d failed, %v", o.Reached, len(o.Failures), err)
		}
		if o.Ran > 40*time.Second {
			t.Errorf("it took %v", o.Ran)
		}
	})
}

// TestRefuses checks a service that stops accepting calls. The first two entities that it refuses
// must get ranges of their own, without a failed attempt. The page must end before the third. The
// next page is refused at its first entity.
func TestRefuses(t *testing.T) {
	for from, want := range map[int64]string{
		1: "2 reached, 0 done; failed 1, 2",
		5: "9 reached, 4 done; failed 5, 6, 7, 8, 9", // most calls were accepted up to the seventh entity
	} {
		for _, atOnce := range []int{1, 20} {
			synctest.Test(t, func(t *testing.T) {
				page := func(ids ...int64) *Page {
					p := over(kindOf(idsTo(20)...), function.Visit, func(c *call) error {
						if time.Sleep(time.Second + time.Duration(c.id)*time.Millisecond); c.id >= from {
							return fault.RetryAfter(errBad, time.Hour)
						}
						return nil
					}, ids...)
					p.AtOnce, p.Pause, p.Job.PageTime = atOnce, time.Second, int64(time.Hour)
					return p
				}
				p := page(idsTo(20)...)
				o, err := p.Run(t.Context())
				if err != nil || said(o) != want {
					t.Fatalf("refused from %d on, %d at once: %v, %s, want %s", from, atOnce, err, said(o), want)
				}
				for i, f := range slices.Backward(o.Failures) {
					counts := i < len(o.Failures)-2
					if got := f.Attempts; counts != (got == 1) || !counts != (got == 0) {
						t.Errorf("%v has %d failed attempts", f.At.Key, got)
					}
				}
				next := page(idsTo(20)[o.Reached:]...)
				next.Paces = p.Paces
				var refusal fault.Refusal
				if o, err := next.Run(t.Context()); !errors.As(err, &refusal) || !refusal.Later {
					t.Errorf("the next page: %v, %v", o, err)
				}
			})
		}
	}
}

// TestEndsTogether checks other reasons for the end of a page while calls are under way. The page
// must wait for these calls.
func TestEndsTogether(t *testing.T) {
	page := func(fn func(c *call) error) (p *Page, running *atomic.Int64) {
		running = new(atomic.Int64)
		p = over(kindOf(idsTo(20)...), function.Update, func(c *call) error {
			running.Add(1)
			defer running.Add(-1)
			time.Sleep(time.Duration(c.id) * time.Second)
			return fn(c)
		}, idsTo(20)...)
		p.AtOnce, p.Job.PageTime = 6, int64(time.Hour)
		return p, running
	}
	nothing := func(*call) error { return nil }
	synctest.Test(t, func(t *testing.T) {
		p, running := page(nothing)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		if _, err := p.Run(ctx); !errors.Is(err, context.DeadlineExceeded) || running.Load() != 0 {
			t.Errorf("its delivery has ended: %v, %d calls are under way", err, running.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p, running := page(nothing)
		call, calls := p.Call, new(atomic.Int64)
		p.Call = func(ctx context.Context, j function.Job, key *datastore.Key, e *pb.Entity) (*function.Effect, error) {
			if calls.Add(1); key.ID == 3 {
				panic("ouch")
			}
			return call(ctx, j, key, e)
		}
		defer func() {
			if r := recover(); !strings.Contains(fmt.Sprint(r), "ouch") || running.Load() != 0 || calls.Load() != 6 {
				t.Errorf("%v of a page whose own code panics after %d calls, %d are under way", r, calls.Load(),
					running.Load())
			}
		}()
		_, _ = p.Run(t.Context())
	})
	synctest.Test(t, func(t *testing.T) {
		p, running := page(func(c *call) error {
			c.Put(keyOf(100+c.id), &struct {
				S string `datastore:",noindex"`
			}{strings.Repeat("x", 900_000)})
			return nil
		})
		o, err := p.Run(t.Context())
		if err != nil || o.Reached != 5 || o.Bytes < maxBytes || running.Load() != 0 {
			t.Errorf("%s, %d bytes, %v, %d calls are under way", said(o), o.Bytes, err, running.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) { // each entity's call reads what the call before has written
		p, running := page(func(c *call) error {
			c.Put(keyOf(100), &struct{ N int64 }{c.sees(100) + 1})
			return nil
		})
		p.Job.PageTime = int64(5 * time.Second)
		begun := time.Now()
		o, err := p.Run(t.Context())
		if err != nil || o.Reached == 0 || running.Load() != 0 || time.Since(begun) > 30*time.Second {
			t.Errorf("%s, %v, after %v, %d calls are under way", said(o), err, time.Since(begun), running.Load())
		}
	})
}
