package page

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
)

// movedAll changes all entities on which the page's commit depends, as another client would.
func movedAll(k *kind, o *Results) (moved []Moved) {
	for _, g := range o.Guards() {
		k.put(g.Key.ID, 1000)
		moved = append(moved, Moved{g, k.stamp(g.Key.ID)})
	}
	return moved
}

// TestAgainHangs checks that an entity fails if the function hangs when it runs again on it, and
// that the other entities get their new results.
func TestAgainHangs(t *testing.T) {
	for _, way := range []runWay{{1, 0}, {3, 0}, {1, 1}, {3, 1}} {
		synctest.Test(t, func(t *testing.T) {
			k := kindOf(1, 2, 3)
			hangs := false
			p := over(k, function.Update, func(c *call) error {
				if c.n++; hangs && c.id == 2 {
					time.Sleep(time.Hour)
				}
				return nil
			}, 1, 2, 3)
			p.AtOnce, p.BatchSize = way.atOnce, way.batch
			o, err := p.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			hangs = true
			err = p.Again(t.Context(), o, movedAll(k, o), func(Moved) error { return nil })
			if got := said(o); err != nil || got != "3 reached, 2 done; wrote 1 3; failed 2" ||
				!errors.As(o.Failures[0].Err, new(TooSlowError)) || p.Strays.Load() != 1 {
				t.Errorf("%+v: %s, %v, %d strays", way, got, err, p.Strays.Load())
			}
			time.Sleep(time.Hour)
		})
	}
}

// TestAgainLater lets a service refuse the function's calls for an entity, when the function runs
// again on it. This is no attempt: the page ends before the entity. If it is the page's first
// entity, the page fails, and its range is postponed, unless it has already waited for an hour.
func TestAgainLater(t *testing.T) {
	for _, way := range []runWay{{1, 0}, {3, 0}, {1, 1}, {3, 1}, {1, 3}} {
		for _, c := range []struct {
			refused   int64
			impatient bool
			want      string
		}{
			{3, false, "2 reached, 2 done; wrote 1 2"},
			{2, true, "1 reached, 1 done; wrote 1"},
			{1, true, "3 reached, 2 done; wrote 2 3; failed 1"},
			{1, false, "refused"},
		} {
			k := kindOf(1, 2, 3)
			refuses := false
			p := over(k, function.Update, func(c2 *call) error {
				if c2.n++; refuses && c2.id == c.refused {
					return fault.RetryAfter(errors.New("503"), time.Second)
				}
				return nil
			}, 1, 2, 3)
			p.AtOnce, p.BatchSize, p.Impatient = way.atOnce, way.batch, c.impatient
			o, err := p.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			refuses = true
			err = p.Again(t.Context(), o, movedAll(k, o), func(Moved) error { return nil })
			got := said(o)
			if refusal := new(fault.Refusal); errors.As(err, refusal) && refusal.Later && refusal.After == time.Second {
				got, err = "refused", nil
			}
			if err != nil || got != c.want {
				t.Errorf("%+v, %d refused: %s, %v, want %s", way, c.refused, got, err, c.want)
			}
		}
	}
}

// TestAgainFirstRefusal refuses the calls for several entities, in any order. The page's error is the
// first entity's.
func TestAgainFirstRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := kindOf(1, 2, 3)
		refuses := false
		p := over(k, function.Update, func(c *call) error {
			if c.n++; refuses && c.id != 2 {
				time.Sleep(time.Duration(c.id) * time.Second)
				return fault.RetryAfter(errBad, time.Duration(c.id)*time.Minute)
			}
			return nil
		}, 1, 2, 3)
		p.AtOnce = 3
		o, err := p.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refuses = true
		err = p.Again(t.Context(), o, movedAll(k, o), func(Moved) error { return nil })
		if refusal := new(fault.Refusal); !errors.As(err, refusal) || refusal.After != time.Minute {
			t.Errorf("%v", err)
		}
	})
}

// TestAgainDrains lets a batch fail when the function runs again on it, while the process ends. The
// page ends after the entity that was tried alone, as in a first run.
func TestAgainDrains(t *testing.T) {
	k := kindOf(1, 2, 3, 4)
	again, ends := false, false
	p := over(k, function.Update, func(c *call) error {
		if c.n++; again && c.id == 1 {
			ends = true
			return errWhole
		}
		return nil
	}, 1, 2, 3, 4)
	p.BatchSize, p.Ends = 4, func() bool { return ends }
	o, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again = true
	err = p.Again(t.Context(), o, movedAll(k, o), func(Moved) error { return nil })
	if got := said(o); err != nil || got != "1 reached, 0 done; failed 1" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestAgainEnds checks that the function is not called again after the delivery has ended. It also
// checks that a panic in the page's own code ends the page.
func TestAgainEnds(t *testing.T) {
	k := kindOf(idsTo(5)...)
	p := over(k, function.Update, func(c *call) error { c.n++; return nil }, idsTo(5)...)
	p.AtOnce = 1
	o, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	moved, run := movedAll(k, o), p.Call
	ctx, cancel := context.WithCancel(t.Context())
	calls := new(atomic.Int64)
	p.Call = func(c context.Context, j function.Job, key *datastore.Key, e *pb.Entity) (*function.Effect, error) {
		calls.Add(1)
		cancel()
		return run(c, j, key, e)
	}
	p.BatchSize = 0
	for range 2 { // the first call cancels the delivery
		err = p.Again(ctx, o, moved, func(Moved) error { return nil })
		if !errors.Is(err, context.Canceled) || calls.Load() != 1 {
			t.Errorf("%d calls, %v", calls.Load(), err)
		}
	}
	p.AtOnce = 3
	p.Call = func(context.Context, function.Job, *datastore.Key, *pb.Entity) (*function.Effect, error) {
		panic("ouch")
	}
	defer func() {
		if r := recover(); !strings.Contains(fmt.Sprint(r), "ouch") {
			t.Errorf("%v", r)
		}
	}()
	t.Error(p.Again(t.Context(), o, moved, func(Moved) error { return nil }))
}

// TestEndsWhileItWaits cancels a delivery while its page waits for the job's rate, for its brake
// (pace.Brake), or for a service. The page must make no further call.
func TestEndsWhileItWaits(t *testing.T) {
	for name, c := range map[string]struct {
		with  func(p *Page)
		calls int64
		one   bool // whether the page has only one entity
	}{
		"its start, with one entity":   {func(p *Page) { p.Begin = time.Now().Add(time.Minute) }, 0, true},
		"the brake, with one entity":   {func(p *Page) { p.Pause = time.Hour; braked(p, true, 100) }, 0, true},
		"the service, with one entity": {func(p *Page) { p.Pause = time.Hour }, 1, true},
		"the rate":                     {func(p *Page) { p.Spacing = time.Minute }, 1, false},
		"the start":                    {func(p *Page) { p.Begin = time.Now().Add(time.Minute) }, 0, false},
		"the brake":                    {func(p *Page) { p.Pause = time.Hour; braked(p, true, 100) }, 0, false},
		"the service":                  {func(p *Page) { p.Pause = time.Hour }, 1, false},
	} {
		for _, atOnce := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				calls := new(atomic.Int64)
				p := over(kindOf(1, 2, 3), function.Visit, func(c *call) error {
					if calls.Add(1); strings.HasPrefix(name, "the service") {
						return fault.RetryAfter(errBad, time.Minute)
					}
					return nil
				}, 1, 2, 3)
				p.AtOnce, p.Job.PageTime, p.Begin = atOnce, int64(time.Hour), time.Now()
				c.with(p)
				if c.one {
					p.At = p.At[:1]
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				begun := time.Now()
				o, err := p.Run(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 30*time.Second ||
					calls.Load() > c.calls*int64(max(1, atOnce)) || calls.Load() < c.calls {
					t.Errorf("it waits for %s, %d at once: %d calls, %+v, %v, after %v", name, atOnce, calls.Load(), o,
						err, time.Since(begun))
				}
			})
		}
	}
}

// TestStaleAndDraining checks a page whose process drains. The page must end before an entity on
// which the function would have to run again.
func TestStaleAndDraining(t *testing.T) {
	for _, drains := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			began := new(atomic.Int64)
			p := over(kindOf(1, 2, 3, 100), function.Update, func(c *call) error {
				began.Add(1)
				n := c.sees(100)
				time.Sleep(time.Second)
				c.PutStored(keyOf(100), entityOf(100, n+1))
				return nil
			}, 1, 2, 3)
			p.AtOnce, p.Job.PageTime = 3, int64(time.Hour)
			p.Ends = func() bool { return drains && began.Load() >= 3 }
			want := "3 reached, 3 done; wrote others 100 100 100"
			if drains {
				want = "1 reached, 1 done; wrote others 100"
			}
			if o, err := p.Run(t.Context()); err != nil || said(o) != want {
				t.Errorf("draining %v: %v, %v, want %s", drains, said(o), err, want)
			}
		})
	}
}

// TestCompleteAgain checks that new entities get complete keys only once. Only the new entities of
// a repeated call get new keys.
func TestCompleteAgain(t *testing.T) {
	k := kindOf(1, 2, 3)
	p := over(k, function.Update, func(c *call) error {
		c.n++
		if c.id != 1 {
			c.Put(datastore.IncompleteKey("K", nil), &struct{ N int }{1})
		}
		return nil
	}, 1, 2, 3)
	o, err := p.Run(t.Context())
	if got := idsOf(o.Others); err != nil || got != "1001 1002" {
		t.Fatalf("new entities: %s, %v", got, err)
	}
	moved := movedAll(k, o)
	if err := p.Again(t.Context(), o, moved[1:2], func(Moved) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := idsOf(o.Others); got != "1003 1002" {
		t.Errorf("new entities after one has run again: %s", got)
	}
	for i, want := range []string{"", "1003", "1002"} {
		if got := idsOf(o.results[i].incomplete.Keys()); got != want {
			t.Errorf("entity %d puts %q, want %q", i+1, got, want)
		}
	}
}

// TestAgainHangsInHalf makes a batch fail as a whole when the function runs again, and then its
// first half hang. The function must not run on the other half.
func TestAgainHangsInHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := kindOf(1, 2, 3, 4)
		again, late := false, 0
		p := over(k, function.Update, func(c *call) error {
			if c.n++; again && c.id > 2 {
				late++
			}
			return nil
		}, 1, 2, 3, 4)
		p.AtOnce, p.BatchSize, p.Job.Timeout = 1, 4, int64(time.Second)
		batch := p.Batch
		p.Batch = func(ctx context.Context, all []function.Subject) ([]function.Answer, error) {
			switch {
			case again && len(all) == 4:
				return nil, errWhole
			case again && all[0].Key.ID == 1:
				time.Sleep(2 * time.Second)
			}
			return batch(ctx, all)
		}
		o, err := p.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again = true
		err = p.Again(t.Context(), o, movedAll(k, o), func(Moved) error { return nil })
		time.Sleep(2 * time.Hour)
		if synctest.Wait(); err != nil || late > 0 || len(o.Failures) != 4 {
			t.Errorf("%v; it runs on %d entities of the other half; %s", err, late, said(o))
		}
	})
}
