package protocol_test

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestPutsAndDeletes runs functions that put and delete entities other than their own.
func TestPutsAndDeletes(t *testing.T) {
	t.Parallel()
	type entry struct{ Account string }
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("move", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Put(datastore.NameKey("Named", a.Key.Name, nil), &entry{a.Key.Name})
			a.Put(datastore.IncompleteKey("Entry", nil), &entry{a.Key.Name})
			switch a.Value.Balance % 3 {
			case 0:
				a.Delete(a.Key)
			case 1:
				a.Value.Balance += 1000
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.handler = repeat(w.engine.Handler())
		keys := names(300)
		w.putAccounts(keys)
		if s := over(w, m, &mapper.StartOptions{PageSize: 40}); s.State != mapper.StateSucceeded || s.Processed != 300 {
			t.Errorf("status %+v", s)
		}
		for i, k := range keys {
			var a account
			err := w.client.Get(t.Context(), k, &a)
			switch {
			case i%3 == 0:
				if !errors.Is(err, datastore.ErrNoSuchEntity) {
					t.Errorf("%v: %v, want it deleted", k, err)
				}
			case err != nil || a.Balance != int64(i)+int64(i%3%2)*1000:
				t.Errorf("%v has %d, %v", k, a.Balance, err)
			}
		}
		for _, kind := range []string{"Named", "Entry"} {
			var entries []entry
			if _, err := w.client.GetAll(t.Context(), datastore.NewQuery(kind), &entries); err != nil {
				t.Fatal(err)
			}
			seen := make(map[string]int)
			for _, e := range entries {
				seen[e.Account]++
			}
			if len(entries) != 300 || len(seen) != 300 {
				t.Errorf("%s: %d entries for %d accounts, want one each for 300", kind, len(entries), len(seen))
			}
		}
	})
}

// TestPageMates runs functions that put or delete other entities of their own page, which has all
// accounts. When it is the turn of such an entity, its function must see the earlier write. A
// function does not do both: Datastore refuses a commit that deletes an entity and then changes it.
// The engine would have to halve such a page.
func TestPageMates(t *testing.T) {
	t.Parallel()
	type effects = func(a *mapper.Entity[account])
	key := func(i int) *datastore.Key { return names(i + 1)[i] }
	for name, c := range map[string]struct {
		of   map[int]effects
		want map[int]int64 // balances that differ from the usual result, which is one more than before
		gone int
	}{
		"put": {
			of: map[int]effects{
				2: func(a *mapper.Entity[account]) { a.Put(key(5), &account{Balance: 5000}) },
				8: func(a *mapper.Entity[account]) { a.Put(key(1), &account{Balance: 1000}) },
			},
			want: map[int]int64{5: 5001, 1: 1000}, gone: -1,
		},
		"delete": {of: map[int]effects{3: func(a *mapper.Entity[account]) { a.Delete(key(6)) }}, gone: 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Update("mates", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				if f := c.of[int(a.Key.Name[len(a.Key.Name)-1]-'0')]; f != nil {
					f(a)
				}
				a.Value.Balance++
				a.Count("seen", 1)
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(10))
			s := over(w, m, &mapper.StartOptions{ExpectedWorkers: 1, PageSize: 10,
				Splitting: mapper.Splitting{First: 1, FanOut: 1}})
			if s.State != mapper.StateSucceeded || s.Counters["seen"] != int64(10-boolToInt(c.gone >= 0)) ||
				s.Pages != 2 {
				t.Errorf("%s: status %+v; want a page that ends before the entity that it has changed, and a second "+
					"page", name, s)
			}
			for i, k := range names(10) {
				var got account
				err := w.client.Get(t.Context(), k, &got)
				want, other := c.want[i]
				if !other {
					want = int64(i) + 1
				}
				if i == c.gone && !errors.Is(err, datastore.ErrNoSuchEntity) || i != c.gone &&
					(err != nil || got.Balance != want) {
					t.Errorf("%s: %v has %d, %v, want %d", name, k, got.Balance, err, want)
				}
			}
		})
	}
}

// TestMisuse checks that a function which does something forbidden fails with an error.
func TestMisuse(t *testing.T) {
	t.Parallel()
	key := datastore.NameKey("Other", "x", nil)
	type E = *mapper.Entity[account]
	updates := map[string]func(E){
		"put of itself":          func(e E) { e.Put(e.Key, &account{}) },
		"put of a nil key":       func(e E) { e.Put(nil, &account{}) },
		"put of a non-struct":    func(e E) { n := 5; e.Put(key, &n) },
		"put of nothing":         func(e E) { e.Put(key, nil) },
		"put of an invalid key":  func(e E) { e.Put(&datastore.Key{Kind: "A", ID: 1, Name: "both"}, &account{}) },
		"delete of a nil key":    func(e E) { e.Delete(nil) },
		"delete of no key":       func(e E) { e.Delete(datastore.IncompleteKey("Other", nil)) },
		"put of a reserved kind": func(e E) { e.Put(datastore.NameKey("__x__", "x", nil), &account{}) },
		"put without a kind":     func(e E) { e.Put(datastore.NameKey("", "x", nil), &account{}) },
		"put of a reserved name": func(e E) { e.Put(datastore.NameKey("Other", "__x__", nil), &account{}) },
		"put of a long name": func(e E) {
			e.Put(datastore.NameKey("Other", strings.Repeat("x", 1501), nil), &account{})
		},
		"put below no parent": func(e E) {
			e.Put(datastore.NameKey("Other", "x", datastore.IncompleteKey("Other", nil)), &account{})
		},
		"put in no namespace": func(e E) {
			e.Put(&datastore.Key{Kind: "Other", Name: "x", Namespace: "a b"}, &account{})
		},
		"delete of bad text":   func(e E) { e.Delete(datastore.NameKey("Other", "\xff", nil)) },
		"counter without name": func(e E) { e.Count("", 1) },
		"invalid text":         func(e E) { e.Value.Owner = "\xff" },
		"long text":            func(e E) { e.Value.Owner = strings.Repeat("x", 1501) },
	}
	visits := map[string]func(E){
		"put in a visit":    func(e E) { e.Put(key, &account{}) },
		"delete in a visit": func(e E) { e.Delete(key) },
	}
	check := func(name string, m *mapper.Mapper[mapper.NoParams]) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, m)
			keys := names(2)
			w.putAccounts(keys)
			if s := over(w, m, nil); s.State != mapper.StateSucceededWithFailures || s.Failures != 2 ||
				len(s.Counters) > 0 {
				t.Errorf("%s: status %+v", name, s)
			}
			w.wantBalances(keys, 0)
		})
	}
	for name, misuse := range updates {
		check(name, mapper.Update("m", func(_ context.Context, e E, _ mapper.NoParams) error {
			e.Value.Balance++
			misuse(e)
			return nil
		}))
	}
	for name, misuse := range visits {
		check(name, mapper.Visit("m", func(_ context.Context, e E, _ mapper.NoParams) error { misuse(e); return nil }))
	}
}

// TestUseAfterReturn checks that it is an error to use an Entity after its function has returned.
func TestUseAfterReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var kept *mapper.Entity[account]
		m := mapper.Update("keep", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
			kept = e
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(1))
		over(w, m, nil)
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		kept.Count("late", 1)
	})
}

// TestVisit checks that a Visit calls its function for every entity, that idempotency keys identify
// repeated calls, and that counters are exact.
func TestVisit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := make(map[string][]string)
		m := mapper.Visit("look", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Value.Balance = -1 // a Visit does not save this
			a.Count("seen", 1)
			mu.Lock()
			defer mu.Unlock()
			calls[a.Key.Name] = append(calls[a.Key.Name], a.IdempotencyKey())
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.handler = repeat(w.engine.Handler())
		keys := names(1000)
		w.putAccounts(keys)
		s := over(w, m, &mapper.StartOptions{ID: "one", PageSize: 100})
		if s.State != mapper.StateSucceeded || s.Processed != 1000 || s.Counters["seen"] != 1000 {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 0)
		distinct := make(map[string]bool)
		for _, k := range keys {
			ids := slices.Compact(slices.Clone(calls[k.Name]))
			if len(ids) != 1 {
				t.Errorf("%v was visited with the keys %v", k, ids)
				continue
			}
			distinct[ids[0]] = true
		}
		if len(distinct) != 1000 {
			t.Errorf("%d different idempotency keys, want 1000", len(distinct))
		}
		first := calls[keys[0].Name][0]
		clear(calls)
		over(w, m, &mapper.StartOptions{ID: "two"})
		if calls[keys[0].Name][0] == first {
			t.Error("two jobs have the same idempotency key")
		}
	})
}

// TestUnchangedIsNotWritten counts the entities that updates write. Some functions change a part of
// the entities, some use another Go type, and some skip entities. Each entity must be written at
// most once, and a second job must write none.
func TestUnchangedIsNotWritten(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		some := mapper.Update("some", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance%10 == 0 {
				a.Value.Balance++
			}
			return nil
		})
		// Newer versions of the Go type have one more field, or other index flags.
		more := mapper.Update("more", func(_ context.Context, a *mapper.Entity[struct {
			account
			Large bool
		}], _ mapper.NoParams) error {
			if a.Value.Balance < 300 {
				a.Value.Balance = -1
				a.Count("skipped", 1)
				return fmt.Errorf("small: %w", mapper.Skip)
			}
			a.Value.Large = a.Value.Balance >= 600
			return nil
		})
		unindex := mapper.Update("unindex", func(_ context.Context, a *mapper.Entity[struct {
			Owner string `datastore:",noindex"`
		}], _ mapper.NoParams) error {
			a.Resave()
			return nil
		})
		drop := mapper.Update("drop", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance < 100 {
				a.Delete(a.Key)
			}
			return mapper.Skip
		})
		w := newWorld(t, setting{}, some, more, unindex, drop)
		w.putAccounts(names(1000))
		for _, c := range []struct {
			m       *mapper.Mapper[mapper.NoParams]
			want    int64
			skipped int64
		}{{some, 100, 0}, {some, 0, 0}, {more, 700, 300}, {more, 0, 300}, {unindex, 1000, 0}, {unindex, 0, 0},
			{drop, 100, 0}} {
			before, records := w.emulator.Usage(), w.count(record.RangeKind, "job")
			s := over(w, c.m, nil)
			used := w.emulator.Usage().Sub(before)
			writes := used.Writes + used.Deletes - 2*int64(w.count(record.RangeKind, "job")-records)
			if writes < c.want || writes > c.want+5 || s.Processed != 1000 || s.Written != c.want ||
				s.Counters["skipped"] != c.skipped {
				t.Errorf("%s: %d writes besides the ranges', want %d: %+v", c.m.Name(), writes, c.want, s)
			}
		}
	})
}

// TestSkipWithError returns mapper.Skip joined with another error. The error must count as a
// failure.
func TestSkipWithError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("both", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance%2 == 0 {
				return mapper.Permanent(errors.Join(mapper.Skip, errors.New("even")))
			}
			return fmt.Errorf("odd: %w", mapper.Skip)
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(10))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{FailureShare: 1})
		if err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.Processed != 5 || s.Failures != 5 || s.Written != 0 {
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// TestManyCounters counts under many names: a few in each page, or all in one page. The counters
// must be exact, and the proof of the job must hold.
func TestManyCounters(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, c := range []struct{ entities, names, page int }{{150, 150, 10}, {1500, 150, 100}, {1000, 10_000, 50},
		{1000, 10_000, 1000}} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Visit("count", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				for i := range int64(10) { // adjacent entities share some names
					a.Count(fmt.Sprintf("country-%04d", (a.Value.Balance*10+i)%int64(c.names)), a.Value.Balance-100)
				}
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(c.entities))
			want := make(map[string]int64)
			for balance := range c.entities {
				for i := range 10 {
					want[fmt.Sprintf("country-%04d", (balance*10+i)%c.names)] += int64(balance) - 100
				}
			}
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: c.page})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, w.wait(job).Counters); diff != "" {
				t.Errorf("%+v: counters (-want +got):\n%s", c, diff)
			}
			if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
				t.Errorf("%+v: proof %+v, %v", c, proof, err)
			}
		})
	}
}

// TestTooManyCounters counts under more names than a job can have: in one page, in all pages of one
// process, or of several processes together. It also counts up to more than an int64 holds. The job
// must fail. After Resume it must continue without counters, so that it never shows a wrong number.
func TestTooManyCounters(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	many := func(n int) func(a *mapper.Entity[account]) {
		return func(a *mapper.Entity[account]) {
			for i := range n {
				a.Count(fmt.Sprintf("%s-%d", a.Key.Name, i), 1)
			}
		}
	}
	for name, c := range map[string]struct {
		entities, page int
		processes      int
		count          func(a *mapper.Entity[account])
		wants          string
	}{
		"in one page":       {200, 200, 1, many(201), "Count under fewer names"},
		"in one process":    {200, 10, 1, many(201), "more names than the 40000"},
		"in many processes": {200, 10, 50, many(201), "more names than the 40000"},
		"in bytes": {8, 1, 1, func(a *mapper.Entity[account]) {
			for i := range 1500 {
				sum := sha512.Sum512(fmt.Appendf(nil, "%s-%d", a.Key.Name, i))
				a.Count(base64.StdEncoding.EncodeToString(sum[:]), 1)
			}
		}, "640 KiB"},
		"of one entity": {200, 10, 1, func(a *mapper.Entity[account]) {
			if a.Key.Name == "user-0000007" {
				many(40_001)(a)
			}
		}, "more names than the 40000"},
		"a large one": {200, 10, 1, func(a *mapper.Entity[account]) { a.Count("all", math.MaxInt64/100) },
			"more than an int64 holds"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ends := 0
				m := mapper.Update("count",
					func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
						c.count(a)
						a.Value.Balance += 10
						return nil
					}).WithFinalizer(func(_ context.Context, d *mapper.Completion, _ mapper.NoParams) error {
					if len(d.Status.Counters) > 0 || !d.Status.CountersDropped {
						t.Errorf("the finalizer sees %+v", d.Status)
					}
					ends++
					return nil
				})
				w := newWorld(t, setting{queue: few(10)}, m)
				newFleet(w, 1, c.processes, m).fails.Store(true)
				keys := names(c.entities)
				w.putAccounts(keys)
				o := &mapper.StartOptions{ID: "j", PageSize: c.page, ExpectedWorkers: 10}
				s := over(w, m, o)
				if s.State != mapper.StateFailed || !strings.Contains(s.Error, c.wants) || len(s.Counters) > 0 ||
					ends > 0 {
					t.Errorf("status %+v", s)
				}
				if err := w.engine.Job("j").Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				if s := w.wait(w.engine.Job("j")); s.Processed != int64(c.entities) || len(s.Counters) > 0 ||
					!s.CountersDropped || ends != 1 {
					t.Errorf("status %+v", s)
				}
				if proof, err := w.engine.Job("j").Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
					t.Errorf("proof %+v, %v", proof, err)
				}
				w.wantBalances(keys, 10)
			})
		})
	}
}

// TestAbortedCounters aborts a job whose processes together have counted under too many names, or
// up to too large a number. The job must have no counters and say so, also after its clean-up.
func TestAbortedCounters(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, count := range map[string]func(a *mapper.Entity[account]){
		"many": func(a *mapper.Entity[account]) {
			for i := range 240 {
				a.Count(fmt.Sprintf("%s-%d", a.Key.Name, i), 1)
			}
		},
		"large": func(a *mapper.Entity[account]) { a.Count("all", math.MaxInt64) },
	} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Visit("count", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				count(a)
				time.Sleep(time.Second)
				return nil
			})
			w := newWorld(t, setting{queue: few(20)}, m)
			newFleet(w, 1, 20, m)
			w.putAccounts(names(400))
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 1, ExpectedWorkers: 20})
			if err != nil {
				t.Fatal(err)
			}
			check := func(when string) {
				t.Helper()
				s, err := job.Status(t.Context())
				if err != nil || s.Processed < 200 || len(s.Counters) > 0 || !s.CountersDropped {
					t.Errorf("%s, %s: %+v, %v", name, when, s, err)
				}
			}
			time.Sleep(15 * time.Second)
			check("running")
			if err := job.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			check("aborted")
			if err := job.CleanUp(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			check("cleaned up")
		})
	}
}

// TestKeysOfOneText deletes entities with different keys that Google's client takes for equal,
// because they have the same text. All of them must be deleted, by one function, and by several
// functions of a page.
func TestKeysOfOneText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		others := []*datastore.Key{datastore.IDKey("Other", 7, nil), datastore.NameKey("Other", "7", nil),
			datastore.IDKey("Other", 8, nil), datastore.NameKey("Other", "8", nil)}
		m := mapper.Update("m", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
			if e.Delete(others[e.Value.Balance]); e.Value.Balance == 0 {
				e.Delete(others[2])
				e.Delete(others[3])
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		for _, key := range others {
			_, err := w.client.Put(t.Context(), key, &account{})
			w.must(err)
		}
		w.putAccounts(names(2))
		if s := over(w, m, nil); s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
		for _, key := range others {
			if err := w.client.Get(t.Context(), key, new(account)); !errors.Is(err, datastore.ErrNoSuchEntity) {
				t.Errorf("%v: %v", key, err)
			}
		}
	})
}

// A player belongs to a team, and has a copy of the team's name.
type player struct {
	Team string
	Name string `datastore:",noindex"`
}

type team struct {
	Name   string `datastore:",noindex"`
	Points int64
}

func teamKey(name string) *datastore.Key { return datastore.NameKey("Team", name, nil) }

// TestJoin copies the names of teams to their players. Meanwhile other clients rename teams. At the
// end, each player must have the name that its team had when the player was written. A second job
// must therefore change nothing, if nobody else writes.
func TestJoin(t *testing.T) {
	t.Parallel()
	named := func(ctx context.Context, e *mapper.Entity[player], _ mapper.NoParams) error {
		var of team
		if err := e.Get(ctx, teamKey(e.Value.Team), &of); err != nil {
			return err
		}
		e.Value.Name = of.Name
		return nil
	}
	reads := func(e *mapper.Entity[player], _ mapper.NoParams) []*datastore.Key {
		return []*datastore.Key{teamKey(e.Value.Team)}
	}
	for name, m := range map[string]*mapper.Mapper[mapper.NoParams]{
		"one by one": mapper.Update("join", named), "ahead": mapper.UpdateReading("join", reads, named),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testJoin(t, m) })
		})
	}
}

func testJoin(t *testing.T, m *mapper.Mapper[mapper.NoParams]) {
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	slow := faults.New(1,
		faults.Rule{Kind: faults.SlowCall, Latency: faults.Exponential{Mean: 5 * time.Millisecond}})
	w, ctx := newWorld(t, setting{queue: few(4), emulator: emulator.Options{Faults: slow}}, m), t.Context()
	const n, teams = 400, 10
	keys := make([]*datastore.Key, n)
	all := make([]player, n)
	for i := range keys {
		keys[i], all[i] = datastore.IDKey("Member", int64(i+1), nil), player{Team: fmt.Sprint(i % teams)}
	}
	_, err := w.client.PutMulti(ctx, keys, all)
	w.must(err)
	for i := range teams {
		_, err := w.client.Put(ctx, teamKey(fmt.Sprint(i)), &team{Name: "before"})
		w.must(err)
	}
	job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Member"}, mapper.NoParams{},
		&mapper.StartOptions{PageSize: 50, ExpectedWorkers: 4})
	w.must(err)
	// Another client renames a team, and all its players that have a name, in one transaction. So
	// these players always agree.
	for turn, i := range rng.Perm(teams) { // each team once, because a second change could hide a mistake
		of := fmt.Sprint(i)
		name := fmt.Sprint("name ", turn)
		_, err := w.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			var found []player
			keys, err := w.client.GetAll(ctx, datastore.NewQuery("Member").FilterField("Team", "=", of).Transaction(tx),
				&found)
			if err != nil {
				return err
			}
			for i := range found {
				if found[i].Name != "" {
					if found[i].Name = name; true {
						if _, err := tx.Put(keys[i], &found[i]); err != nil {
							return err
						}
					}
				}
			}
			_, err = tx.Put(teamKey(of), &team{Name: name})
			return err
		}, datastore.MaxAttempts(50))
		w.must(err)
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
	}
	if s := w.wait(job); s.Processed != n || s.Failures != 0 {
		t.Errorf("%d processed, %d failures", s.Processed, s.Failures)
	} else {
		t.Logf("%d times again", s.Conflicts)
	}
	found := make([]player, n)
	w.must(w.client.GetMulti(ctx, keys, found))
	for i, got := range found {
		var of team
		w.must(w.client.Get(ctx, teamKey(got.Team), &of))
		if got.Name != of.Name {
			t.Errorf("%v has the name %q, and its team %q", keys[i], got.Name, of.Name)
		}
	}
}

// TestMerge merges duplicates while other clients add points. Each duplicate must add its points to
// its team, and be deleted. No point may be lost.
func TestMerge(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	type entry struct {
		Of     string
		Points int64
	}
	merge := mapper.Update("merge", func(ctx context.Context, e *mapper.Entity[entry], _ mapper.NoParams) error {
		var of team
		if err := e.Get(ctx, teamKey(e.Value.Of), &of); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
			return err
		}
		of.Points += e.Value.Points
		e.Put(teamKey(e.Value.Of), &of)
		e.Delete(e.Key)
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		slow := faults.New(1,
			faults.Rule{Kind: faults.SlowCall, Latency: faults.Exponential{Mean: 3 * time.Millisecond}})
		w, ctx := newWorld(t, setting{queue: few(4), emulator: emulator.Options{Faults: slow}}, merge), t.Context()
		const n, teams = 300, 7
		want := int64(0)
		for i := range n {
			_, err := w.client.Put(ctx, datastore.IDKey("Entry", int64(i+1), nil),
				&entry{fmt.Sprint(i % teams), int64(i)})
			w.must(err)
			want += int64(i)
		}
		job, err := merge.Start(ctx, w.engine, mapper.Query{Kind: "Entry"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 40, ExpectedWorkers: 4})
		w.must(err)
		for range 30 {
			key := teamKey(fmt.Sprint(rng.IntN(teams)))
			_, err := w.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
				var of team
				if err := tx.Get(key, &of); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
					return err
				}
				of.Points += 1_000_000
				_, err := tx.Put(key, &of)
				return err
			}, datastore.MaxAttempts(100))
			w.must(err)
			want += 1_000_000
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		}
		if s := w.wait(job); s.Processed != n || s.Failures != 0 {
			t.Errorf("%d processed, %d failures", s.Processed, s.Failures)
		} else {
			t.Logf("%d times again", s.Conflicts)
		}
		got := int64(0)
		var all []team
		_, err = w.client.GetAll(ctx, datastore.NewQuery("Team"), &all)
		w.must(err)
		for _, of := range all {
			got += of.Points
		}
		if got != want {
			t.Errorf("%d points, want %d", got, want)
		}
	})
}

// TestRekey moves entities to keys of another form. Several entities, of one page or of several,
// want the same key, and some keys are taken. The first one must move. The others must be failures
// that name both keys.
func TestRekey(t *testing.T) {
	t.Parallel()
	to := func(name string) *datastore.Key { return datastore.NameKey("Patron", strings.ToLower(name), nil) }
	move := mapper.Update("rekey", func(_ context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
		e.Insert(to(e.Key.Name), &e.Value)
		e.Delete(e.Key)
		return nil
	})
	for _, size := range []int{3, 100} {
		synctest.Test(t, func(t *testing.T) {
			w, ctx := newWorld(t, setting{queue: few(1)}, move), t.Context()
			put := func(key *datastore.Key, points int64) {
				_, err := w.client.Put(ctx, key, &team{Points: points})
				w.must(err)
			}
			names := []string{"ANN", "Ann", "ann", "Bob", "cyd", "CYD", "dan"}
			for i, name := range names {
				put(datastore.NameKey("Guest", name, nil), int64(i))
			}
			put(to("dan"), 100)
			job, err := move.Start(ctx, w.engine, mapper.Query{Kind: "Guest"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: size, ExpectedWorkers: 1, FailureLimit: -1})
			w.must(err)
			s, err := job.Wait(ctx)
			w.must(err)
			failures, _, err := job.FailuresPage(ctx, "")
			w.must(err)
			if s.Processed != 3 || len(failures) != 4 {
				t.Errorf("pages of %d: %d processed, %d failures", size, s.Processed, len(failures))
			}
			for _, f := range failures {
				if !strings.Contains(f.Error, f.Key.String()) || !strings.Contains(f.Error, to(f.Key.Name).String()) {
					t.Errorf("the failure of %v does not name both: %s", f.Key, f.Error)
				}
			}
			for name, points := range map[string]int64{"ann": 0, "bob": 3, "cyd": 5, "dan": 100} {
				var got team
				if err := w.client.Get(ctx, to(name), &got); err != nil || got.Points != points {
					t.Errorf("%s has %d, %v, want %d", name, got.Points, err, points)
				}
			}
			for _, name := range []string{"Ann", "ann", "cyd", "dan"} {
				if err := w.client.Get(ctx, datastore.NameKey("Guest", name, nil), new(team)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestReadsInOrder copies a value from each entity to the next one, in one page or several. The
// result must be the same as if the functions had run one after the other.
func TestReadsInOrder(t *testing.T) {
	t.Parallel()
	key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
	sum := mapper.Update("sum", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
		if e.Key.ID == 1 {
			return nil
		}
		var before team
		if err := e.Get(ctx, key(e.Key.ID-1), &before); err != nil {
			return err
		}
		e.Value.Points += before.Points
		return nil
	})
	for _, size := range []int{1, 7, 100} {
		synctest.Test(t, func(t *testing.T) {
			w, ctx := newWorld(t, setting{queue: few(1)}, sum), t.Context()
			const n = 60
			for i := range int64(n) {
				_, err := w.client.Put(ctx, key(i+1), &team{Points: 1})
				w.must(err)
			}
			var once sync.Once
			job, err := sum.Start(ctx, w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{}, &mapper.StartOptions{
				PageSize: size, ExpectedWorkers: 1, Splitting: mapper.Splitting{First: 1, FanOut: 1},
			})
			w.must(err)
			once.Do(func() { w.wait(job) })
			for i := range int64(n) {
				var got team
				w.must(w.client.Get(ctx, key(i+1), &got))
				if got.Points != i+1 {
					t.Fatalf("pages of %d: %v has %d, want %d", size, key(i+1), got.Points, i+1)
				}
			}
		})
	}
}

// TestGet checks the errors of Entity.Get for missing entities, for the function's own entity, and
// for wrong keys and destinations.
func TestGet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := make(map[string]error)
		m := mapper.Update("get", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			var one team
			asked["missing"] = e.Get(ctx, teamKey("none"), &one)
			some := make([]*team, 2)
			asked["several"] = e.GetMulti(ctx, []*datastore.Key{teamKey("here"), teamKey("none")}, some)
			if some[0] == nil || some[0].Points != 3 || some[1] != nil && some[1].Points != 0 {
				t.Errorf("got %v", some)
			}
			asked["incomplete"] = e.Get(ctx, datastore.IncompleteKey("Team", nil), &one)
			asked["nil"] = e.Get(ctx, nil, &one)
			asked["no pointer"] = e.Get(ctx, teamKey("here"), one)
			asked["length"] = e.GetMulti(ctx, []*datastore.Key{teamKey("here")}, make([]team, 2))
			asked["none"] = e.GetMulti(ctx, nil, []team{})
			var list datastore.PropertyList
			asked["list"] = e.Get(ctx, teamKey("here"), &list)
			if len(list) != 2 {
				t.Errorf("the list is %v", list)
			}
			var wrong struct{ Points string }
			asked["type"] = e.Get(ctx, teamKey("here"), &wrong)
			return nil
		})
		w, ctx := newWorld(t, setting{}, m), t.Context()
		_, err := w.client.Put(ctx, teamKey("here"), &team{Points: 3})
		w.must(err)
		_, err = w.client.Put(ctx, datastore.NameKey("One", "x", nil), &team{})
		w.must(err)
		job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "One"}, mapper.NoParams{}, nil)
		w.must(err)
		w.wait(job)
		var each datastore.MultiError
		if !errors.Is(asked["missing"], datastore.ErrNoSuchEntity) || !errors.As(asked["several"], &each) ||
			each[0] != nil || !errors.Is(each[1], datastore.ErrNoSuchEntity) {
			t.Errorf("missing: %v, several: %v", asked["missing"], asked["several"])
		}
		for what, want := range map[string]string{"incomplete": "incomplete", "nil": "key", "no pointer": "pointer",
			"length": "slice of 1", "type": "Points"} {
			if err := asked[what]; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if asked["none"] != nil || asked["list"] != nil {
			t.Errorf("none: %v, list: %v", asked["none"], asked["list"])
		}
	})
}

// TestGroups aggregates over 10,000 groups of entities: the count of each, and optionally a sum,
// minimum and maximum. Calls and deliveries fail meanwhile. The finalizer must get exact
// aggregates.
func TestGroups(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	first := testflag.Seed(t)
	for _, c := range []struct {
		groups int64
		four   bool
	}{{10_000, true}, {10_000, false}}[:testflag.Size(t, 1, 1, 2)] {
		for i := range uint64(testflag.Size(t, 1, 1, 2)) {
			seed := first + i
			t.Run(fmt.Sprintf("%d groups/four %t/seed %d", c.groups, c.four, seed), func(t *testing.T) {
				const each = 2 // number of entities in each group
				n := c.groups * each
				var got map[string]int64
				m := mapper.Visit("groups", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) error {
					group := fmt.Sprint("g", e.Value.N%c.groups)
					e.Count(group, 1)
					if c.four {
						e.Count(group+" sum", e.Value.N)
						e.CountMin(group, e.Value.N)
						e.CountMax(group, e.Value.N)
					}
					return nil
				}).WithFinalizer(func(_ context.Context, d *mapper.Completion, _ mapper.NoParams) error {
					got = d.Status.Counters
					return nil
				})
				mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Seed: seed},
					func(t *testing.T, w *mappertest.Env) {
						for from := int64(0); from < n; from += 500 {
							var keys []*datastore.Key
							var all []leaf
							for i := from; i < from+500; i++ {
								keys = append(keys, datastore.IDKey("Leaf", i*7919+1, nil))
								all = append(all, leaf{N: i})
							}
							if _, err := w.Client.PutMulti(t.Context(), keys, all); err != nil {
								t.Fatal(err)
							}
						}
						start := func() (*mapper.Job, error) {
							return m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
								&mapper.StartOptions{ID: "groups", PageSize: 50})
						}
						w.ResumeFaults()
						job, err := start()
						if err != nil {
							w.PauseFaults()
							job, err = start()
						}
						if err != nil {
							t.Fatal(err)
						}
						s, err := job.Wait(t.Context())
						if err != nil || s.State != mapper.StateSucceeded || s.Processed != n {
							t.Errorf("status %+v, %v", s, err)
						}
						w.PauseFaults()
					})
				want := make(map[string]int64)
				for g := range c.groups {
					name := fmt.Sprint("g", g)
					want[name] = each
					if c.four {
						want[name+" sum"], want["min("+name+")"], want["max("+name+")"] = g+g+c.groups, g, g+c.groups
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("aggregates (-want +got):\n%.2000s", diff)
				}
			})
		}
	}
}
