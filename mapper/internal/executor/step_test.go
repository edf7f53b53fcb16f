package executor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/mapper/internal/wire"
	"github.com/scattermap/scattermap/tasks"
)

// An applying is a case of TestApply: a change of a range's record, while calls fail or another
// delivery changes it.
type applying struct {
	name   string
	other  func(r *record.Range) // another delivery's change
	gone   bool                  // whether the record is deleted
	put    error                 // the error of the step's put
	method string                // the method whose calls go through calls
	calls  func(n int, call func() (any, error)) (any, error)
	late   time.Duration // the delivery is cancelled after this time; 0: never
	s      standing
	wrong  string // a part of the error
	refuse bool   // whether the error is a refusal of the commit by the database
	tries  int    // number of calls of put; 0: any number
}

// TestApply changes a range's record while calls fail, or another delivery changes it. It does so
// in one call and in a transaction.
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
		{name: "the step fails, as in a conflict", put: aborted, wrong: "injected", tries: 1},
		{name: "the step fails, as in a refusal", put: status.Error(codes.InvalidArgument, "injected"),
			wrong: "injected", tries: 1},
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
			wrong: "after a commit that has failed: "},
	} {
		for _, version := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) { c.apply(w, x, version) })
			})
		}
	}
}

// apply changes the range's record once. version says whether the database returns versions.
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
	if (version || c.put != nil) && c.tries > 0 && tries != c.tries || tries > 30 {
		w.Errorf("%d tries, want %d", tries, c.tries)
	}
	if !c.gone {
		c.check(w, d, known, s == ours && err == nil)
	}
}

// check checks the stored record, and the record that the delivery has now.
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

// TestChildVersions checks that a delivery which continues with a child knows the version of the
// child's record.
func TestChildVersions(t *testing.T) {
	inWorld(t, 25, function.Update, func(c *testworld.Call) error { c.N += 100; return nil },
		func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"))
			defer d.planner.Close()
			if s, err := d.attempt(w.Context()); s != ours || err != nil {
				w.Fatal(s, err)
			}
			stored := load(w, x, d.job, d.state.follow.Next, tasks.Delivery{}).record
			if stored.Version == 0 || d.state.follow.Next.Version != stored.Version {
				w.Errorf("version %d, want %d", d.state.follow.Next.Version, stored.Version)
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

// TestApplyAmongOthers lets other deliveries change the record before each of ten attempts. The
// next attempt must succeed.
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

// TestApplyLocked changes the range of a single entity on which other clients hold locks. The
// delivery must wait, and read in a transaction.
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
			if ends && (err == nil || r.Refusals != 0 || tries > 3) ||
				!ends && (err != nil || r.Refusals != 1 || tries != 5 || took < 100*time.Millisecond) {
				w.Errorf("ends %v: %v after %v and %d tries, %d changes", ends, err, took, tries, r.Refusals)
			}
		})
	}
}

// TestLocksLater checks that the first attempt for the range of a single entity uses no
// transaction.
func TestLocksLater(t *testing.T) {
	inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
		d := loaded(w, x, w.NewJob("j", "m"))
		var calls atomic.Int64
		w.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			calls.Add(1)
			return call(ctx, req)
		})
		s, err := d.apply(w.Context(), step{locks: true, put: func(*record.Range) ([]*record.Range, error) {
			return nil, nil
		}})
		w.Intercept(nil)
		if s != ours || err != nil || calls.Load() != 1 {
			w.Errorf("%d, %v after %d calls", s, err, calls.Load())
		}
	})
}

// TestHotWaits lets others change the only entity of a range in each attempt. The first retry must
// come at once. Later retries must wait, so that the other clients may finish.
func TestHotWaits(t *testing.T) {
	var w *testworld.World
	var runs []time.Time
	inWorld(t, 5, function.Update, func(a *testworld.Call) error {
		runs = append(runs, time.Now())
		a.N += 100
		_, err := w.Client.Put(context.WithoutCancel(a), testworld.Key(3), &testworld.Thing{N: a.N + 1})
		return err
	}, func(world *testworld.World, x *Executor) {
		w = world
		d := loaded(w, x, w.NewJob("j", "m"), func(r *record.Range) { r.Alone, r.Start = true, at(3)[0] })
		defer d.planner.Close()
		_, err := d.attempt(w.Context())
		d.leave()
		if len(runs) != hotAttempts || !fault.Refused(err) {
			w.Fatalf("%v after %d runs", err, len(runs))
		}
		for i, least := range []time.Duration{0, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond,
			160 * time.Millisecond, 320 * time.Millisecond, time.Second / 2, time.Second / 2} {
			if waited := runs[i+2].Sub(runs[i+1]); waited < least || waited > 2*least {
				w.Errorf("run %d comes %v after the one before, want %v to %v", i+3, waited, least, 2*least)
			}
		}
	})
}

// TestFinal checks which errors end the attempts to commit, and which of these are refusals by the
// database.
func TestFinal(t *testing.T) {
	aborted, invalid := status.Error(codes.Aborted, "injected"), status.Error(codes.InvalidArgument, "injected")
	for _, c := range []struct {
		name   string
		err    error
		ends   bool
		refuse bool
	}{
		{"a conflict", aborted, false, false},
		{"a transaction's conflict", datastore.ErrConcurrentTransaction, false, false},
		{"another one has deleted an entity", status.Error(codes.NotFound, "injected"), false, false},
		{"the commit is refused", invalid, true, true},
		{"the database is away", errInjected, true, false},
		{"a read is refused", ofRead(invalid), true, false},
		{"a read conflicts", ofRead(aborted), false, false},
		{"the step conflicts", finalError{aborted}, true, false},
		{"the step is refused", finalError{invalid}, true, false},
	} {
		err := final(c.err)
		if (err != nil) != c.ends || err != nil && !errors.Is(c.err, err) && !errors.Is(err, c.err) ||
			errors.As(err, new(fault.CommitRefusal)) != c.refuse {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A guarding is a case of TestGuards: a commit that guards the entities 1 and 2.
type guarding struct {
	name  string
	guard func(first, second *page.Guard)
	other func(w *testworld.World, d *delivery) // called before the commit; other clients change something
	again error                                 // the error of running the function again
	locks bool
	s     standing
	wrong error
	// number of entities that the transaction reads, including the range's record; 0: the commit is
	// one call
	reads int
	runs  int // number of times that the function runs again
}

// TestGuards checks which calls a commit with guarded entities makes, and what it does if other
// clients have changed one.
func TestGuards(t *testing.T) {
	put := func(id int64) func(w *testworld.World, _ *delivery) {
		return func(w *testworld.World, _ *delivery) {
			if _, err := w.Client.Put(w.Context(), testworld.Key(id), &testworld.Thing{N: 7}); err != nil {
				w.Fatal(err)
			}
		}
	}
	aborted := status.Error(codes.Aborted, "injected")
	for _, c := range []guarding{
		{name: "that it writes", guard: func(_, _ *page.Guard) {}},
		{name: "that it inserts", guard: func(_, second *page.Guard) {
			second.Key, second.Was = testworld.Key(9), wire.Stamp{Gone: true}
		}},
		{name: "that it does not write", guard: func(_, second *page.Guard) { second.Free = true }, reads: 2},
		{name: "without versions", guard: func(first, _ *page.Guard) { first.Was.Version = 0 }, reads: 3},
		{name: "while others lock them", guard: func(_, _ *page.Guard) {}, locks: true, reads: 6},
		{name: "one has changed", guard: func(_, second *page.Guard) { second.Free = true }, other: put(2), reads: 4,
			runs: 1},
		{name: "one that it writes has changed", guard: func(_, second *page.Guard) { second.Free = true },
			other: put(1), reads: 7, runs: 1},
		{name: "one has changed, and the function fails", guard: func(_, second *page.Guard) { second.Free = true },
			other: put(2), again: aborted, wrong: aborted, runs: 1},
		{name: "one has changed, and the range has another task",
			guard: func(_, second *page.Guard) { second.Free = true }, other: func(w *testworld.World, d *delivery) {
				put(2)(w, d)
				update(w, d.record, func(r *record.Range) { r.Generation++ })
			}, s: superseded},
	} {
		t.Run(c.name, func(t *testing.T) { inWorld(t, 2, function.Update, nil, c.commit) })
	}
}

// commit commits a step that changes the range, and checks the calls.
func (c guarding) commit(w *testworld.World, x *Executor) {
	w.Helper()
	d := loaded(w, x, w.NewJob("j", "m"))
	stamps, err := d.planner.Reader(d.planner.Source.Stored(w.Context()))(at(1, 2))
	if err != nil {
		w.Fatal(err)
	}
	guards := []page.Guard{{Key: testworld.Key(1), Was: stamps[0]}, {Key: testworld.Key(2), Was: stamps[1]}}
	c.guard(&guards[0], &guards[1])
	if c.other != nil {
		c.other(w, d)
	}
	var mu sync.Mutex
	commits, reads, runs := 0, 0, 0
	w.Intercept(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		switch q := req.(type) {
		case *pb.LookupRequest:
			reads += len(q.GetKeys())
		case *pb.CommitRequest:
			if commits++; c.locks && commits == 1 {
				return nil, status.Error(codes.Aborted, "injected")
			}
		}
		return handler(ctx, req)
	})
	s, err := d.apply(w.Context(), step{locks: c.locks,
		with: func() []wire.Mutation {
			m := wire.Mutation{Mutation: datastore.NewUpdate(testworld.Key(1), &testworld.Thing{N: 5})}
			m.Version = guards[0].Was.Version
			return []wire.Mutation{m}
		},
		put:    func(r *record.Range) ([]*record.Range, error) { r.Refusals++; return nil, nil },
		guards: func() []page.Guard { return slices.Clone(guards) },
		again: func(_ context.Context, moved []page.Moved, _ bool) error {
			if runs++; runs > 3 {
				return errBad
			}
			for _, m := range moved {
				guards[m.Key.ID-1].Was = m.Now
			}
			return c.again
		}})
	w.Intercept(nil)
	if s != c.s || !errors.Is(err, c.wrong) || runs != c.runs {
		w.Errorf("%d, %v, after %d runs of the function", s, err, runs)
	}
	if err == nil && s == ours && reads != c.reads {
		w.Errorf("%d reads, and %d commits", reads, commits)
	}
	if r := w.Records(d.job)[d.record.ID]; (r.Refusals == 1) != (err == nil && s == ours) {
		w.Errorf("%d changes of the range", r.Refusals)
	}
}
