package executor

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/tasks"
)

// An applying is a change of a range's record while calls fail and other deliveries change it.
type applying struct {
	name   string
	other  func(r *record.Range) // another delivery's change
	gone   bool                  // the record is deleted
	put    error                 // of the step
	method string                // whose calls fail
	calls  func(n int, call func() (any, error)) (any, error)
	late   time.Duration // the delivery ends after that; 0: never
	s      standing
	wrong  string // in the error
	refuse bool   // the error says that the database refuses the commit
	tries  int    // calls of put; 0: any number
}

// TestApply changes a range's record while calls fail and other deliveries change it, in one call
// and in a transaction.
func TestApply(t *testing.T) {
	aborted := status.Error(codes.Aborted, "injected")
	first := func(fails int, err error) func(int, func() (any, error)) (any, error) {
		return func(n int, call func() (any, error)) (any, error) {
			if n <= fails {
				return nil, err
			}
			return call()
		}
	}
	for _, c := range []applying{
		{name: "nothing", tries: 1},
		{name: "another delivery has left a note", other: func(r *record.Range) { r.Attempts = 7 }, tries: 2},
		{name: "another delivery has cut it", other: func(r *record.Range) { r.Cut = true }, s: changed},
		{name: "another delivery has done it", other: func(r *record.Range) { r.Finish(now()) }, s: done},
		{name: "it has another task", other: func(r *record.Range) { r.Generation++ }, s: superseded},
		{name: "it is gone", gone: true, s: superseded},
		{name: "the step fails", put: errBad, wrong: "bad", tries: 1},
		{name: "conflicts for a while", method: "Commit", calls: first(3, aborted), tries: 4},
		{name: "conflicts without end", method: "Commit", calls: first(1000, aborted), wrong: "injected", tries: 5},
		{name: "the delivery ends amid conflicts", method: "Commit", calls: first(1000, aborted), late: 50 *
			time.Millisecond, wrong: "context deadline exceeded"},
		{name: "the commit is refused", method: "Commit", calls: first(1, status.Error(codes.InvalidArgument,
			"injected")),
			wrong: "injected", refuse: true, tries: 1},
		{name: "the database is away", method: "Commit", calls: first(1, errInjected), wrong: "injected", tries: 1},
		{name: "reads fail", method: "Lookup", calls: first(1000, errInjected),
			other: func(r *record.Range) { r.Attempts = 7 },
			wrong: "injected"},
	} {
		for _, version := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) { c.apply(w, x, version) })
			})
		}
	}
}

// apply changes the range's record once. Version says whether the database returns versions.
func (c applying) apply(w *testworld.World, x *Executor, version bool) {
	w.Helper()
	d := loaded(w, x, w.NewJob("j", "m"))
	if !version {
		d.record.Version = 0
	}
	if c.other != nil {
		update(w, d.record, c.other)
	}
	if c.gone {
		if err := w.Client.Delete(w.Context(), d.record.Key()); err != nil {
			w.Fatal(err)
		}
	}
	if c.method != "" {
		on(w, c.method, c.calls)
	}
	ctx, cancel := context.WithTimeout(w.Context(), cmp.Or(c.late, time.Hour))
	defer cancel()
	known, tries := d.record, 0
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		tries++
		r.Refusals++
		return nil, c.put
	})
	w.Intercept(nil)
	if s != c.s || (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) ||
		errors.As(err, new(fault.CommitRefusal)) != c.refuse && c.tries != 5 {
		w.Fatalf("%d, %v", s, err)
	}
	if version && c.tries > 0 && tries != c.tries || tries > 30 {
		w.Errorf("%d tries, want %d", tries, c.tries)
	}
	if !c.gone {
		c.check(w, d, known, s == ours && err == nil)
	}
}

// check checks the stored record, and the one that the delivery has now.
func (c applying) check(w *testworld.World, d *delivery, known *record.Range, ok bool) {
	w.Helper()
	stored := w.Records(d.job)[d.record.ID]
	if (stored.Refusals == 1) != ok || ok && known.Version != 0 && d.record.Version == known.Version ||
		c.name == "another delivery has left a note" && stored.Attempts != 7 {
		w.Errorf("%d changes are stored, %d attempts; version %d after %d", stored.Refusals, stored.Attempts,
			d.record.Version, known.Version)
	}
	if (c.s == done || c.s == changed) && (d.record == known || d.record.State != stored.State) {
		w.Error("it does not take over the record")
	}
}

// TestChildVersions checks that a delivery that goes on with a child knows the version of its
// record.
func TestChildVersions(t *testing.T) {
	inWorld(t, 25, function.Update, func(c *testworld.Call) error { c.N += 100; return nil },
		func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"))
			defer d.planner.Close()
			if s, err := d.attempt(w.Context()); s != ours || err != nil {
				w.Fatal(s, err)
			}
			stored := load(w, x, d.job, d.turn.follow.Next, tasks.Delivery{}).record
			if stored.Version == 0 || d.turn.follow.Next.Version != stored.Version {
				w.Errorf("version %d, want %d", d.turn.follow.Next.Version, stored.Version)
			}
			d.leave()
		})
}

// TestBackOff checks how long a delivery waits after conflicts.
func TestBackOff(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, _ *Executor) {
		for n, most := range []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond,
			5: 320 *
				time.Millisecond, 6: 640 * time.Millisecond, 7: time.Second, 9: time.Second} {
			if most == 0 {
				continue
			}
			begun := time.Now()
			if err := backOff(w.Context(), n); err != nil || time.Since(begun) < most/2 || time.Since(begun) > most {
				w.Errorf("wait %d takes %v: %v", n, time.Since(begun), err)
			}
		}
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if err := backOff(ctx, 5); !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
	})
}

// TestApplyAmongOthers has other deliveries change the record before each of ten tries. That is no
// reason to give up.
func TestApplyAmongOthers(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		d := loaded(w, x, w.NewJob("j", "m"))
		tries := 0
		_, err := d.change(w.Context(), func(r *record.Range) ([]*record.Range, error) {
			if tries++; tries <= 10 {
				update(w, r, func(r *record.Range) { r.Attempts++ })
			}
			r.Refusals++
			return nil, nil
		})
		if r := w.Records(d.job)[d.record.ID]; err != nil || r.Refusals != 1 || r.Attempts != 10 {
			w.Errorf("%v; %d changes, and %d by others, in %d tries", err, r.Refusals, r.Attempts, tries)
		}
	})
}

// TestApplyLocked changes the range of a single entity that other clients hold. The delivery waits,
// and reads in a transaction.
func TestApplyLocked(t *testing.T) {
	for _, ends := range []bool{false, true} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"))
			on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
				if n <= 4 {
					return nil, status.Error(codes.Aborted, "injected")
				}
				return call()
			})
			ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
			if ends {
				ctx, cancel = context.WithTimeout(w.Context(), 20*time.Millisecond)
			}
			defer cancel()
			begun, tries := time.Now(), 0
			_, err := d.apply(ctx, step{locks: true, put: func(r *record.Range) ([]*record.Range, error) {
				tries++
				r.Refusals++
				return nil, nil
			}})
			w.Intercept(nil)
			took, r := time.Since(begun), w.Records(d.job)[d.record.ID]
			if ends && (!errors.Is(err, context.DeadlineExceeded) || r.Refusals != 0 || tries > 3) ||
				!ends && (err != nil || r.Refusals != 1 || tries != 5 || took < 100*time.Millisecond) {
				w.Errorf("ends %v: %v after %v and %d tries, %d changes", ends, err, took, tries, r.Refusals)
			}
		})
	}
}
