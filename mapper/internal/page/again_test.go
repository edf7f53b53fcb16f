package page

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

// TestAgain runs a page of the entities 1, 2, 3, and then changes entities as another client would.
// It checks on which entities the function runs again, and the results of the page.
func TestAgain(t *testing.T) {
	adds := func(c *call) error { c.n += 100; return nil }
	aside := errors.New("set aside")
	for _, c := range []struct {
		name  string
		fn    func(c *call) error
		moved int64 // the ID of the entity that another client has changed
		aside bool  // whether aside returns an error for changed entities
		runs  []int64
		want  string
		puts  map[int64]int64 // the writes of the page's entities in its commit: N by ID
	}{
		{name: "one of its own", fn: adds, moved: 2, runs: []int64{2}, want: "3 reached, 3 done; wrote 1 2 3",
			puts: map[int64]int64{1: 101, 2: 150, 3: 103}},
		{name: "it is set aside", fn: adds, moved: 2, aside: true, want: "3 reached, 2 done; wrote 1 3; failed 2",
			puts: map[int64]int64{1: 101, 3: 103}},
		{name: "another one, which one of them has read", fn: func(c *call) error {
			if c.id == 3 {
				c.n = c.sees(7)
			}
			return nil
		}, moved: 7, runs: []int64{3}, want: "3 reached, 3 done; wrote 3", puts: map[int64]int64{3: 50}},
		{name: "those that have read what it writes", fn: func(c *call) error {
			if c.n += 100; c.id == 3 {
				c.n = c.sees(1) + 1
			}
			return nil
		}, moved: 1, runs: []int64{1, 3}, want: "3 reached, 3 done; wrote 1 2 3",
			puts: map[int64]int64{1: 150, 2: 102, 3: 151}},
		{name: "one has failed because of another one, which it has read", fn: func(c *call) error {
			if c.n += 100; c.id == 2 && c.sees(7) == 7 {
				return errBad
			}
			return nil
		}, moved: 7, runs: []int64{2}, want: "3 reached, 3 done; wrote 1 2 3",
			puts: map[int64]int64{1: 101, 2: 102, 3: 103}},
		{name: "one has failed because of itself and another one", fn: func(c *call) error {
			if c.n += 100; c.id == 2 && c.sees(7) == 7 && c.n == 102 {
				return errBad
			}
			return nil
		}, moved: 2, runs: []int64{2}, want: "3 reached, 3 done; wrote 1 2 3",
			puts: map[int64]int64{1: 101, 2: 150, 3: 103}},
		{name: "one has failed because of what another one writes", fn: func(c *call) error {
			if c.n += 100; c.id == 2 && c.sees(1) < 150 {
				return errBad
			}
			return nil
		}, moved: 1, runs: []int64{1, 2}, want: "3 reached, 3 done; wrote 1 2 3",
			puts: map[int64]int64{1: 150, 2: 102, 3: 103}},
		{name: "one has failed, and has read only itself", fn: func(c *call) error {
			if c.n += 100; c.id == 1 {
				return errBad
			}
			return nil
		}, moved: 3, runs: []int64{3}, want: "3 reached, 2 done; wrote 2 3; failed 1",
			puts: map[int64]int64{2: 102, 3: 150}},
		{name: "one has failed because another one is there", fn: func(c *call) error {
			switch {
			case c.id == 2 && c.n == 2:
				c.Delete(keyOf(2))
			case c.id == 2:
				c.n++
			case c.id == 3:
				c.Insert(keyOf(2), &struct{ N int64 }{30})
			default:
				c.n += 100
			}
			return nil
		}, moved: 2, runs: []int64{2, 3}, want: "3 reached, 2 done; wrote 1 2; failed 3 permanently",
			puts: map[int64]int64{1: 101, 2: 51}},
		{name: "it stays, and one of them has inserted its key", fn: func(c *call) error {
			switch {
			case c.id == 3:
				c.Insert(keyOf(1), &struct{ N int64 }{30})
			case c.id == 1 && c.n == 1:
				c.Delete(keyOf(1))
			default:
				c.n += 100
			}
			return nil
		}, moved: 1, runs: []int64{1, 3}, want: "3 reached, 2 done; wrote 1 2; failed 3 permanently",
			puts: map[int64]int64{1: 150, 2: 102}},
		{name: "not those that put the entity that it puts, or insert another one", fn: func(c *call) error {
			switch c.id {
			case 1:
				c.n += 100
				c.Put(keyOf(8), &struct{ N int64 }{10})
			case 2:
				c.Put(keyOf(8), &struct{ N int64 }{20})
			case 3:
				c.Insert(keyOf(9), &struct{ N int64 }{30})
			}
			return nil
		}, moved: 1, runs: []int64{1}, want: "3 reached, 3 done; wrote 1; wrote others 8 8 9",
			puts: map[int64]int64{1: 150}},
	} {
		again := func(t *testing.T, atOnce, batch int) {
			k := kindOf(1, 2, 3, 7)
			var runs []int64
			var mu sync.Mutex
			p := over(k, function.Update, func(e *call) error {
				mu.Lock()
				runs = append(runs, e.id)
				mu.Unlock()
				return c.fn(e)
			}, 1, 2, 3)
			p.AtOnce, p.BatchSize = atOnce, batch
			puts := maps.Clone(c.puts)
			o, err := p.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			runs = nil
			k.put(c.moved, 50)
			var moved []Moved
			for _, g := range o.Guards() {
				if now := k.stamp(g.Key.ID); !now.Same(g.Was) {
					moved = append(moved, Moved{g, now})
				}
			}
			if len(moved) != 1 || moved[0].Key.ID != c.moved {
				t.Fatalf("found changed: %+v, want %d", moved, c.moved)
			}
			err = p.Again(t.Context(), o, moved, func(Moved) error {
				if c.aside {
					return aside
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(runs)
			if !slices.Equal(runs, c.runs) {
				t.Errorf("it ran again on %v, want %v", runs, c.runs)
			}
			if got := said(o); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
			for _, m := range o.Mutations() {
				if m.Writes == nil {
					continue // a put or an insert of another entity
				}
				id := m.Writes.GetKey().GetPath()[0].GetId()
				if n := m.Writes.GetProperties()["N"].GetIntegerValue(); n != puts[id] ||
					m.Version != k.version[id] {
					t.Errorf("%d becomes %d over the version %d, want %d", id, n, m.Version, puts[id])
				}
				delete(puts, id)
			}
			if len(puts) > 0 {
				t.Errorf("not written: %v", puts)
			}
			if o.Moves(moved[0]) != 1 || c.aside && o.Failures[0].Attempts != 0 {
				t.Errorf("%d moves, failures %+v", o.Moves(moved[0]), o.Failures)
			}
		}
		for _, way := range [][2]int{{1, 0}, {3, 0}, {1, 3}} {
			t.Run(fmt.Sprintf("%s, %d at once, batches of %d", c.name, way[0], way[1]),
				func(t *testing.T) { again(t, way[0], way[1]) })
		}
	}
}

// TestSameAgain runs pages one call at a time, with several calls at once, and in batches. Then it
// changes some entities as other clients would, and lets the functions run again. The results must
// be the same in all ways.
func TestSameAgain(t *testing.T) {
	again := int64(0)
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			outcome := func(atOnce, batch int) string {
				k := kindOf(append(idsTo(20), 100, 101, 103)...)
				p := over(k, function.Update, mixed(seed), idsTo(20)...)
				p.AtOnce, p.BatchSize, p.Job.PageTime = atOnce, batch, int64(time.Hour)
				o, err := p.Run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				dice := rand.New(rand.NewPCG(seed, 99))
				for _, id := range slices.Sorted(maps.Keys(k.n)) {
					if dice.IntN(3) == 0 {
						k.put(id, 200+id)
					}
				}
				var moved []Moved
				for _, g := range o.Guards() {
					if now := k.stamp(g.Key.ID); !now.Same(g.Was) {
						moved = append(moved, Moved{g, now})
					}
				}
				if err := p.Again(t.Context(), o, moved, func(Moved) error { return nil }); err != nil {
					t.Fatal(err)
				}
				again += o.Again
				return whole(o)
			}
			want := outcome(1, 0)
			for _, way := range [][2]int{{2, 0}, {20, 0}, {1, 3}, {1, 20}, {3, 4}} {
				if got := outcome(way[0], way[1]); got != want {
					t.Errorf("seed %d, %d at once, batches of %d:\n%s\nwant\n%s", seed, way[0], way[1], got, want)
				}
			}
		})
	}
	if again < 3000 {
		t.Errorf("functions ran again on only %d entities", again)
	}
}

// TestAgainAsFresh changes entities on which a page's commit depends, and lets the functions run
// again until nothing that they depend on has changed. Then the page must have the same writes and
// failures as a new page over the new state.
func TestAgainAsFresh(t *testing.T) {
	again := int64(0)
	for seed := range uint64(60) {
		for _, way := range []runWay{{1, 0}, {3, 0}, {20, 0}, {1, 3}, {1, 20}, {3, 4}} {
			synctest.Test(t, func(t *testing.T) {
				k := kindOf(append(idsTo(20), 100, 101, 103, 151)...)
				run := func(way runWay) (*Page, *Results) {
					p := over(k, function.Update, mixed(seed), idsTo(20)...)
					p.AtOnce, p.BatchSize, p.Job.PageTime = way.atOnce, way.batch, int64(time.Hour)
					o, err := p.Run(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					return p, o
				}
				p, o := run(way)
				dice := rand.New(rand.NewPCG(seed, 99))
				for range 3 {
					for _, id := range guardedIn(o) {
						switch dice.IntN(12) {
						case 0, 1, 2:
							k.put(id, 200+dice.Int64N(50))
						case 3:
							delete(k.n, id)
							k.version[id]++
						}
					}
					again += settle(t, k, p, o)
					anew, fresh := run(runWay{1, 0})
					settle(t, k, anew, fresh)
					n := min(o.Reached, fresh.Reached) // a page that was cut off does not grow again
					if got, want := effects(o, n), effects(fresh, n); got != want {
						t.Errorf("seed %d, %+v:\n%s\nwant\n%s", seed, way, got, want)
					}
				}
			})
		}
	}
	if again < 1000 {
		t.Errorf("functions ran again on only %d failures", again)
	}
}

// guardedIn returns the IDs of the entities that a client may change such that all results that
// depend on them are calculated again. It leaves out an entity of the page if the commit does not
// guard its own result, because the function has read nothing else and writes nothing.
func guardedIn(o *Results) (ids []int64) {
	own, all := make(map[int64]bool), make(map[int64]bool)
	for _, g := range o.Guards() {
		id := g.Key.ID
		all[id], own[id] = true, own[id] || o.results[g.of].at.Key.ID == id
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if own[id] || id > 20 {
			ids = append(ids, id)
		}
	}
	return ids
}

// settle lets functions run again until nothing on which the page depends has changed. It returns
// the number of failures among the results that depended on something that had changed.
func settle(t *testing.T, k *kind, p *Page, o *Results) (failures int64) {
	for range 20 {
		var moved []Moved
		for _, g := range o.Guards() {
			if now := k.stamp(g.Key.ID); !now.Same(g.Was) {
				moved = append(moved, Moved{g, now})
				if o.results[g.of].failure != nil {
					failures++
				}
			}
		}
		if len(moved) == 0 {
			return failures
		}
		if err := p.Again(t.Context(), o, moved, func(Moved) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the functions run again without an end")
	return failures
}

// effects describes the writes and failures of the page's first n entities. A refused insert is
// described without the reason, because an insert finds out only at the commit what a read knows
// before.
func effects(o *Results, n int) string {
	var b strings.Builder
	for _, r := range o.results[:n] {
		fmt.Fprint(&b, r.at.Key.ID, ":")
		if r.failure != nil {
			text, _, _ := strings.Cut(r.failure.Err.Error(), "\n")
			if strings.Contains(text, " inserts ") {
				text = "it inserts"
			}
			fmt.Fprint(&b, " ", text)
		}
		if r.effect != nil {
			for _, m := range r.effect.Mutations {
				after, _ := m.After()
				n := after.Entity.GetProperties()["N"].GetIntegerValue()
				fmt.Fprint(&b, " ", m.Key.ID, m.Inserts, after.Gone, n)
			}
			fmt.Fprint(&b, r.effect.Counters)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// TestAgainInChain changes the entity 1, from which 2 copies, from which 3 copies. The function fails
// on 3 before it sees the new number. It must then succeed, also if calls overlap.
func TestAgainInChain(t *testing.T) {
	for _, way := range []runWay{{1, 0}, {3, 0}, {1, 3}, {2, 2}} {
		k := kindOf(1, 2, 3)
		p := over(k, function.Update, func(c *call) error {
			if c.id > 1 {
				c.n = c.sees(c.id - 1)
			}
			if c.n++; c.id == 3 && c.n < 50 {
				return errBad
			}
			return nil
		}, 1, 2, 3)
		p.AtOnce, p.BatchSize = way.atOnce, way.batch
		o, err := p.Run(t.Context())
		if err != nil || said(o) != "3 reached, 2 done; wrote 1 2; failed 3" {
			t.Fatalf("%s, %v", said(o), err)
		}
		k.put(1, 50)
		moved := []Moved{{o.Guards()[0], k.stamp(1)}}
		if err := p.Again(t.Context(), o, moved, func(Moved) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if got := said(o); got != "3 reached, 3 done; wrote 1 2 3" {
			t.Errorf("%+v: %s", way, got)
		}
	}
}

// TestAgainOverGone deletes an entity as another client would. The function does not run again on
// it, so no run may count as repeated.
func TestAgainOverGone(t *testing.T) {
	k := kindOf(1, 2)
	p := over(k, function.Update, func(c *call) error { c.n++; return nil }, 1, 2)
	o, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	delete(k.n, 1)
	moved := []Moved{{o.Guards()[0], k.stamp(1)}}
	if err := p.Again(t.Context(), o, moved, func(Moved) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := said(o); got != "2 reached, 1 done; wrote 2" || o.Again != 0 {
		t.Errorf("%s, %d repeated runs", got, o.Again)
	}
}

// TestAgainTogether checks that repeated calls may overlap: 60 calls of 100 ms each take 300 ms
// with 20 at once, and 200 ms in two batches of 30.
func TestAgainTogether(t *testing.T) {
	for _, c := range []struct {
		atOnce, batch int
		want          time.Duration
		calls         int64
	}{{1, 0, 6 * time.Second, 60}, {20, 0, 300 * time.Millisecond, 60}, {1, 30, 200 * time.Millisecond, 2},
		{2, 30, 100 * time.Millisecond, 2}} {
		synctest.Test(t, func(t *testing.T) {
			k := kindOf(idsTo(60)...)
			p := over(k, function.Update, func(c *call) error { c.n++; return nil }, idsTo(60)...)
			p.AtOnce, p.BatchSize, p.Job.PageTime = c.atOnce, c.batch, int64(time.Hour)
			calls := new(atomic.Int64)
			slowly(p, 100*time.Millisecond, calls)
			o, err := p.Run(t.Context())
			if err != nil || o.Reached != 60 {
				t.Fatalf("%s, %v", said(o), err)
			}
			var moved []Moved
			for _, g := range o.Guards() {
				k.put(g.Key.ID, 1000)
				moved = append(moved, Moved{g, k.stamp(g.Key.ID)})
			}
			begun := time.Now()
			calls.Store(0)
			if err := p.Again(t.Context(), o, moved, func(Moved) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took != c.want || calls.Load() != c.calls || o.Again != 60 {
				t.Errorf("%+v: %d calls in %v, %d entities", c, calls.Load(), took, o.Again)
			}
		})
	}
}

// slowly makes each call of a page take the time each, and counts the calls.
func slowly(p *Page, each time.Duration, calls *atomic.Int64) {
	call, batch := p.Call, p.Batch
	p.Call = func(ctx context.Context, j function.Job, key *datastore.Key, e *pb.Entity) (*function.Effect, error) {
		calls.Add(1)
		time.Sleep(each)
		return call(ctx, j, key, e)
	}
	p.Batch = func(ctx context.Context, all []function.Subject) ([]function.Answer, error) {
		calls.Add(1)
		time.Sleep(each)
		return batch(ctx, all)
	}
}
