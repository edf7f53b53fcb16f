package executor

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// has reports whether a page has got its slot, without which a page of a background job may not
// start.
func has(slot chan struct{}) bool {
	select {
	case <-slot:
		return true
	default:
		return false
	}
}

// TestSlots lets pages ask for the only slot of a process. They must get it one after the other, in
// the order in which they ask.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, key := new(background), testworld.Key(1)
		time.Sleep(10 * time.Second) // until the pause at the start of each minute is over
		first, second, third, fourth := b.ask(key), b.ask(key), b.ask(key), b.ask(key)
		want := func(what string, slots ...bool) {
			t.Helper()
			for i, slot := range []chan struct{}{first, second, third, fourth} {
				if has(slot) != slots[i] {
					t.Errorf("%s: page %d has a slot: %v", what, i+1, has(slot))
				}
			}
		}
		want("of one slot", true, false, false, false)
		if b.wanted != 4 {
			t.Errorf("%d pages want slots", b.wanted)
		}
		b.quit(third)
		// the third page has left, and the channel of its slot is still closed
		want("after the third has left", true, false, true, false)
		b.rest(time.Second)
		want("after the first", true, true, true, false)
		b.insist(fourth)
		want("after the fourth has insisted", true, true, true, true)
		b.insist(fourth)
		if b.taken != 2 {
			t.Errorf("%d slots are taken, by two pages", b.taken)
		}
		fifth := b.ask(key)
		b.rest(time.Second)
		if has(fifth) {
			t.Error("a page starts while another one has the only slot")
		}
		b.quit(fourth)
		if !has(fifth) || b.taken != 1 {
			t.Errorf("a page waits for a free slot; %d are taken", b.taken)
		}
		b.quit(fifth)
		if b.taken != 0 || len(b.waiting) != 0 {
			t.Errorf("%d slots are taken, %d pages wait", b.taken, len(b.waiting))
		}
	})
}

// TestSlotsPause asks for a slot for a page at the start of a minute, when pages of background jobs
// must wait.
func TestSlotsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(background)
		slot := b.ask(testworld.Key(1))
		if has(slot) {
			t.Error("a page starts in the pause")
		}
		time.Sleep(5 * time.Second)
		b.quit(b.ask(testworld.Key(2)))
		if !has(slot) {
			t.Error("a page waits after the pause")
		}
	})
}

// TestSlotsRest checks how long a page's slot rests after the page, if the limit is less than one
// page at a time.
func TestSlotsRest(t *testing.T) {
	for _, c := range []struct{ took, rests time.Duration }{
		{time.Second, 3 * time.Second}, {time.Minute, longestRest},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := overloaded()
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 10*time.Second)))
			slot := b.ask(testworld.Key(1))
			b.rest(c.took)
			begun, next := time.Now(), b.ask(testworld.Key(2))
			<-next
			if rested := time.Since(begun); !has(slot) || rested != c.rests {
				t.Errorf("after a page of %v the slot rests for %v", c.took, rested)
			}
		})
	}
}

// overloaded returns the slots of a process after pages have made the database slow.
func overloaded() *background {
	b := new(background)
	for sent := time.Now().Truncate(time.Minute); ; sent = sent.Add(100 * time.Millisecond) {
		took := time.Millisecond
		if !b.pace.Pauses(sent) {
			took = time.Second
		}
		if b.pace.Note(sent, took, 1); b.pace.Limit() == 0.25 {
			return b
		}
	}
}

// TestProbes checks which answers of the database the probes count, and which keys they look up.
func TestProbes(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		hangs  bool
		counts bool
	}{
		{name: "answered", counts: true},
		{name: "too many calls", err: status.Error(codes.ResourceExhausted, "injected"), counts: true},
		{name: "unavailable", err: status.Error(codes.Unavailable, "injected"), counts: true},
		{name: "not answered", hangs: true, counts: true},
		{name: "not allowed", err: status.Error(codes.PermissionDenied, "injected")},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
				var mu sync.Mutex
				probes := 0
				b := x.background
				time.Sleep(10 * time.Second)
				on(w, "Lookup", func(n int, call func() (any, error)) (any, error) {
					mu.Lock()
					probes++
					mu.Unlock()
					if c.hangs {
						time.Sleep(time.Minute)
					}
					if c.err != nil {
						return nil, c.err
					}
					return call()
				})
				b.wanted = 3
				b.enter(x.client)
				b.enter(x.client)
				b.leave()
				time.Sleep(8 * time.Second)
				b.mu.Lock()
				noted, wanted := b.pace != (pace.Background{}), b.wanted
				b.mu.Unlock()
				if noted != c.counts || (wanted == 0) != c.counts {
					w.Errorf("noted %v, %d slots are wanted", noted, wanted)
				}
				b.leave()
				time.Sleep(2 * time.Minute)
				mu.Lock()
				before := probes
				mu.Unlock()
				time.Sleep(10 * time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if before == 0 || probes != before {
					w.Errorf("%d probes, and %d after the last delivery", before, probes-before)
				}
			})
		})
	}
}

// TestProbeKey checks that a probe's key is near the last page, and that no entity can have it.
func TestProbeKey(t *testing.T) {
	root := datastore.NameKey("Parent", "p", nil)
	root.Namespace = "n"
	child := datastore.IDKey("K", 1, datastore.IDKey("Middle", 2, root))
	child.Namespace, child.Parent.Namespace = "n", "n"
	for _, c := range []struct {
		near *datastore.Key
		want string
	}{
		{nil, "/ScattermapProbe,probe"}, {testworld.Key(3), "/K,3/ScattermapProbe,probe"},
		{child, "/Parent,p/ScattermapProbe,probe"},
	} {
		key := (&background{near: c.near}).probeKey()
		if key.String() != c.want || c.near != nil && key.Namespace != c.near.Namespace {
			t.Errorf("%v in %q, want %s", key, key.Namespace, c.want)
		}
	}
}

// A giving is a case of TestGiveWay: the wait of a page for its slot.
type giving struct {
	name   string
	change func(d *delivery)
	during func(w *testworld.World, d *delivery, cancel func())
	s      standing
	wrong  error
	waits  time.Duration // the least wait, which may be up to a second longer
}

// TestGiveWay lets a page of a background job wait for its slot, and checks when and how the wait
// ends.
func TestGiveWay(t *testing.T) {
	for _, c := range []giving{
		{name: "another job", change: func(d *delivery) { d.job.Background = false }},
		{name: "nothing to do", change: func(d *delivery) { d.record.ID = "" }},
		{name: "alone in the process", change: func(d *delivery) { d.place.Exclusive = true }},
		{name: "a free slot", during: func(w *testworld.World, d *delivery, _ func()) {
			time.Sleep(20 * time.Second)
			d.x.background.rest(0)
		}, waits: 20 * time.Second},
		{name: "it is cancelled", during: func(_ *testworld.World, _ *delivery, cancel func()) { cancel() },
			wrong: context.Canceled},
		{name: "the process drains", during: func(w *testworld.World, d *delivery, _ func()) {
			_, _ = d.x.Gate.Drain(w.Context())
		}, wrong: gate.ErrDraining},
		{name: "the job is paused", during: func(w *testworld.World, d *delivery, _ func()) {
			time.Sleep(10 * time.Second)
			if err := w.Jobs.Pause(w.Context(), d.job.Ref()); err != nil {
				w.Error(err)
			}
		}, s: stopped, waits: 10 * time.Second},
		{name: "the database fails", during: func(w *testworld.World, _ *delivery, _ func()) {
			refuse(w, "Lookup", errInjected)
		}, wrong: errInjected},
		{name: "another task is alone, and the job is paused", during: func(w *testworld.World, d *delivery, _ func()) {
			time.Sleep(time.Second)
			place, err := d.x.Gate.Enter(w.Context(), true)
			d.x.background.rest(0)
			time.Sleep(10 * time.Second)
			if err := errors.Join(err, w.Jobs.Pause(w.Context(), d.job.Ref())); err != nil {
				w.Error(err)
			}
			place.Leave()
		}, s: stopped, waits: 11 * time.Second},
		{name: "another task is alone, and the database fails", during: func(w *testworld.World, d *delivery,
			_ func()) {
			time.Sleep(100 * time.Millisecond)
			place, err := d.x.Gate.Enter(w.Context(), true)
			d.x.background.rest(0)
			time.Sleep(10 * time.Second)
			refuse(w, "Lookup", errInjected)
			if place.Leave(); err != nil {
				w.Error(err)
			}
		}, wrong: errInjected, waits: 10 * time.Second},
		{name: "the queue's deadline is near", waits: 535 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) { inWorld(t, 0, function.Update, nil, c.wait) })
	}
}

// wait lets the page wait, and checks how the wait ends.
func (c giving) wait(w *testworld.World, x *Executor) {
	w.Helper()
	j := w.NewJob("j", "m")
	j.Background = true
	d := loaded(w, x, j)
	time.Sleep(10 * time.Second)
	d.begunAt = time.Now()
	_ = x.background.ask(testworld.Key(9)) // another page takes the only slot
	p := planner.Plan{At: at(1)}
	place, err := x.Gate.Enter(w.Context(), false)
	if err != nil {
		w.Fatal(err)
	}
	if d.place = place; c.change != nil {
		c.change(d)
	}
	if d.record.ID == "" {
		p.At = nil
	}
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	var all sync.WaitGroup
	if c.during != nil {
		all.Go(func() { c.during(w, d, cancel) })
	}
	asked := time.Now()
	done, s, err := d.giveWay(ctx, p)
	waited := time.Since(asked)
	all.Wait()
	w.Intercept(nil)
	c.check(w, d, s, err, waited)
	d.leave()
	if done(); c.name != "a free slot" && !strings.HasPrefix(c.name, "another task") {
		x.background.rest(0)
	}
	synctest.Wait()
	if x.background.taken != 0 || len(x.background.waiting) != 0 {
		w.Errorf("%d slots are taken, %d pages wait", x.background.taken, len(x.background.waiting))
	}
	if left, err := x.Gate.Enter(w.Context(), true); err == nil {
		left.Leave()
	} else if !errors.Is(err, gate.ErrDraining) {
		w.Error(err)
	}
}

func (c giving) check(w *testworld.World, d *delivery, s standing, err error, waited time.Duration) {
	w.Helper()
	if s != c.s || !errors.Is(err, c.wrong) && status.Code(err) != status.Code(c.wrong) ||
		waited < c.waits || waited > c.waits+2*time.Second {
		w.Errorf("after %v: %d, %v", waited, s, err)
	}
	starts := err == nil && s == ours
	if starts != (c.s == ours && c.wrong == nil) || starts && d.place.Leave == nil {
		w.Errorf("it starts: %v; it is inside: %v", starts, d.place.Leave != nil)
	}
	if starts && c.waits > 0 && d.page.yielded != waited {
		w.Errorf("it has yielded for %v, and waited for %v", d.page.yielded, waited)
	}
}

// TestBeside checks that the background jobs of both queues of a process share the limit of slots.
func TestBeside(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		if other := x.Beside(w.Jobs); other.background != x.background || other == x {
			w.Error("each queue has slots of its own")
		}
	})
}

// TestBackgroundJob runs a background job while the database becomes slow.
func TestBackgroundJob(t *testing.T) {
	inWorld(t, 50, function.Update, func(c *testworld.Call) error {
		c.N += 100
		time.Sleep(10 * time.Millisecond)
		return nil
	}, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Background = true
		w.Begin(j)
		time.Sleep(50 * time.Second)
		if got := said(w, "j"); got != "succeeded, 50 processed by 5 pages" {
			w.Error(got)
		}
		yielded := time.Duration(0)
		for _, r := range w.Records(j) {
			yielded += r.Yielded
		}
		synctest.Wait()
		if yielded < 3*time.Second || x.background.deliveries != 0 {
			w.Errorf("its pages have waited for %v; %d deliveries", yielded, x.background.deliveries)
		}
	})
}

// TestProbesEnd ends the last delivery of a background job during a probe. The cancelled probe must
// not count as a slow answer. After some minutes, the process must forget its limit.
func TestProbesEnd(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		b := overloaded()
		before := b.pace
		on(w, "Lookup", func(_ int, call func() (any, error)) (any, error) {
			time.Sleep(3 * time.Second)
			return call()
		})
		b.enter(x.client)
		time.Sleep(time.Second)
		b.leave()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if b.pace != before {
			w.Error("a probe counts that nobody waits for")
		}
		time.Sleep(10 * time.Minute)
		b.enter(x.client)
		b.leave()
		synctest.Wait()
		if b.pace.Limit() != 1 {
			w.Errorf("after minutes, pages start with a limit of %v", b.pace.Limit())
		}
		time.Sleep(5 * time.Second)
	})
}

// TestSlotReturned checks that a page of a background job returns its slot.
func TestSlotReturned(t *testing.T) {
	inWorld(t, 5, function.Update, func(*testworld.Call) error { return nil }, func(w *testworld.World, x *Executor) {
		time.Sleep(10 * time.Second) // until the pause at the start of each minute is over
		j := w.NewJob("j", "m")
		j.Background = true
		d := loaded(w, x, j)
		defer d.planner.Close()
		s, err := d.attempt(w.Context())
		d.leave()
		time.Sleep(2 * longestRest)
		synctest.Wait()
		if s != ours || err != nil || x.background.taken != 0 {
			w.Errorf("%d, %v; %d slots are taken", s, err, x.background.taken)
		}
	})
}
