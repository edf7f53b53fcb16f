package executor

import (
	"context"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestWrote checks what a page's record says for an undo about the entities that the page has
// written. The page has reached three entities.
func TestWrote(t *testing.T) {
	old, fresh := time.Now().Add(-time.Hour).UnixMicro(), time.Now().UnixMicro()
	keys := []*datastore.Key{testworld.Key(1), testworld.Key(2), testworld.Key(3)}
	for _, c := range []struct {
		name            string
		own, gone       int
		at              []int64
		allOwn, allGone bool
		fresh           []int64
		allFresh        bool
	}{
		{name: "all, long unchanged", own: 3, at: []int64{old, old, old}, allOwn: true},
		{name: "all, just changed", own: 3, at: []int64{fresh, fresh, fresh}, allOwn: true, allFresh: true,
			fresh: []int64{1, 2, 3}},
		{name: "one just changed", own: 3, at: []int64{old, fresh, old}, allOwn: true, fresh: []int64{2}},
		{name: "nobody knows when one was changed", own: 3, at: []int64{old, old, 0}, allOwn: true, fresh: []int64{3}},
		{name: "two of three", own: 2, at: []int64{old, old}},
		{name: "all deleted", own: 3, gone: 3, at: []int64{old, old, old}, allOwn: true, allGone: true},
		{name: "one deleted", own: 3, gone: 1, at: []int64{old, old, old}, allOwn: true},
		{name: "none", allOwn: false},
	} {
		o := page.Failed(nil)
		o.Reached, o.Own, o.Gone, o.OwnAt = 3, keys[:c.own], keys[:c.gone], c.at
		w, err := undolog.Decode(wrote(o))
		if err != nil {
			t.Fatal(err)
		}
		if w.Own.All != c.allOwn || w.Gone.All != c.allGone || w.Fresh.All != c.allFresh || w.Written != int64(c.own) {
			t.Errorf("%s: %+v", c.name, w)
		}
		for i, key := range keys {
			is := false
			for _, id := range c.fresh {
				is = is || id == key.ID
			}
			if w.Fresh.Has(key) != is || w.Own.Has(key) != (i < c.own) || w.Gone.Has(key) != (i < c.gone) {
				t.Errorf("%s: of %v it says written %v, deleted %v, fresh %v", c.name, key, w.Own.Has(key),
					w.Gone.Has(key),
					w.Fresh.Has(key))
			}
		}
	}
}

// TestOutcomeRecorded checks the fields that pages set in their ranges' records.
func TestOutcomeRecorded(t *testing.T) {
	for _, c := range []struct {
		name    string
		mode    function.Mode
		query   string
		dropped bool
		check   func(j *record.Job, r *record.Range) bool
	}{
		{name: "an update says what it has written", check: func(_ *record.Job, r *record.Range) bool {
			return len(r.Wrote) > 0 && len(r.Counters) > 0
		}},
		{name: "a visit has written nothing", mode: function.Visit, check: func(_ *record.Job, r *record.Range) bool {
			return len(r.Wrote) == 0
		}},
		{name: "counters that were dropped", dropped: true, check: func(_ *record.Job, r *record.Range) bool {
			return len(r.Counters) == 0
		}},
		{name: "a page of one of several kinds", query: `{"kinds":["K","Sheet"]}`, check: func(_ *record.Job,
			r *record.Range) bool {
			return r.Processed == 0 || r.Kind == "K" || r.Kind == "Sheet"
		}},
		{name: "its time", check: func(_ *record.Job, r *record.Range) bool {
			return r.Ran == time.Duration(r.Entities)*time.Millisecond && (r.Entities == 0 || r.Pace > 0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 25, c.mode, func(a *testworld.Call) error {
				a.N += 100
				a.Count("n", 1)
				time.Sleep(time.Millisecond)
				return nil
			}, func(w *testworld.World, x *Executor) {
				for id := range int64(3) {
					if _, err := w.Client.Put(w.Context(), sheet(id+1), &testworld.Thing{N: 1}); err != nil {
						w.Fatal(err)
					}
				}
				j := w.NewJob("j", "m")
				if j.CountersDropped = c.dropped; c.query != "" {
					j.Query = []byte(c.query)
					j.Incarnate(w.Jobs.Random())
				}
				w.Begin(j)
				time.Sleep(time.Minute)
				if pages := x.cache.at(j.Ref()).pages.Load(); pages < 3 {
					w.Errorf("the process counts %d pages", pages)
				}
				job, all := w.Job("j"), int64(0)
				for _, r := range w.Records(j) {
					if all += r.Processed; r.Processed > 0 && !c.check(job, r) {
						w.Errorf("%+v", r)
					}
				}
				want := int64(25)
				if c.query != "" {
					want += 3
				}
				if job.State != record.Succeeded || all != want {
					w.Errorf("%s, %d processed; %s", job.State, all, job.Error)
				}
			})
		})
	}
}

// TestWritesAhead lets a page's function write an entity of the next page, which was already read
// ahead. The next page must read it again.
func TestWritesAhead(t *testing.T) {
	for _, query := range []string{`{"kind":"K"}`, `{"kinds":["K","Other"]}`} {
		met := make(map[int64]int64)
		inWorld(t, 50, function.Update, func(c *testworld.Call) error {
			if met[c.ID] = c.N; c.ID == 29 {
				time.Sleep(time.Second) // until the next page is read ahead
				c.Put(testworld.Key(35), &testworld.Thing{N: 1000})
			}
			if c.ID == 50 { // there is no page after this one
				c.Put(sheet(1), &testworld.Thing{})
			}
			c.N += 100
			return nil
		}, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Query = []byte(query)
			j.Incarnate(w.Jobs.Random())
			w.Begin(j)
			time.Sleep(30 * time.Second)
			conflicts := int64(0)
			for _, r := range w.Records(j) {
				conflicts += r.Conflicts
			}
			if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 50 processed by ") || w.N(35) != 1100 ||
				met[35] != 1000 ||
				conflicts != 0 {
				w.Errorf("%s: %s; 35 was %d, and is %d; %d conflicts", query, got, met[35], w.N(35), conflicts)
			}
		})
	}
}

// TestSpaces runs jobs over several kinds, with and without entities.
func TestSpaces(t *testing.T) {
	for _, n := range []int64{0, 5, 25} {
		inWorld(t, n, function.Update, func(c *testworld.Call) error { c.N += 100; return nil },
			func(w *testworld.World, _ *Executor) {
				for id := range n {
					if _, err := w.Client.Put(w.Context(), sheet(id+1), &testworld.Thing{N: 1}); err != nil {
						w.Fatal(err)
					}
				}
				j := w.NewJob("j", "m")
				j.Query = []byte(`{"kinds":["Empty","K","Sheet"]}`)
				j.Incarnate(w.Jobs.Random())
				w.Begin(j)
				time.Sleep(time.Minute)
				processed := int64(0)
				for _, r := range w.Records(j) {
					if processed += r.Processed; r.Processed > 0 && r.Kind == "" {
						w.Error("a page of no kind")
					}
					if n == 25 && r.Continued && r.Resample {
						w.Error("the rest of a kind is looked through for other kinds")
					}
				}
				if job := w.Job("j"); job.State != record.Succeeded || processed != 2*n {
					w.Errorf("%s, %d processed; %s", job.State, processed, job.Error)
				}
			})
	}
}

// TestUnsharded checks that the root's record has the number of entities that lack the property in
// ShardBy.
func TestUnsharded(t *testing.T) {
	inWorld(t, 25, function.Update, func(*testworld.Call) error { return nil },
		func(w *testworld.World, x *Executor) {
			for id := range int64(2) {
				if _, err := w.Client.Put(w.Context(), testworld.Key(1000+id), &datastore.PropertyList{}); err != nil {
					w.Fatal(err)
				}
			}
			j := w.NewJob("j", "m")
			j.Query = []byte(`{"kind":"K","shard_by":"N"}`)
			j.Incarnate(w.Jobs.Random())
			w.Begin(j)
			time.Sleep(time.Minute)
			if root := w.Records(j)[j.Root()]; root.Unsharded != 2 || w.Job("j").State != record.Succeeded {
				w.Errorf("%s: %d entities without the property", w.Job("j").State, root.Unsharded)
			}
			again := w.NewJob("again", "m")
			again.Query = j.Query
			again.Incarnate(w.Jobs.Random())
			// an earlier delivery has cut the range
			d := loaded(w, x, again, func(r *record.Range) { r.Cut = true })
			defer d.planner.Close()
			if s, err := d.attempt(w.Context()); s != ours || err != nil || d.record.Unsharded != 2 {
				w.Errorf("%d, %v: %d entities without the property, of a root that was cut before", s, err,
					d.record.Unsharded)
			}
			d.leave()
		})
}

// TestLateRuns lets others change an entity of a page again and again, while the function takes
// long. The slower the function, the earlier the entity must get a range of its own.
func TestLateRuns(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration // duration of a run on the entity
		runs  int           // number of runs before the entity gets its own range
	}{{0, 3}, {2500 * time.Millisecond, 2}, {time.Second, 3}, {2 * time.Second, 3}} {
		var w *testworld.World
		runs := 0
		inWorld(t, 5, function.Update, func(a *testworld.Call) error {
			if a.ID == 3 && runs < c.runs {
				runs++
				if _, err := w.Client.Put(context.WithoutCancel(a), testworld.Key(3),
					&testworld.Thing{N: a.N + 1}); err != nil {
					return err
				}
				time.Sleep(c.takes)
			}
			a.N += 100
			return nil
		}, func(world *testworld.World, x *Executor) {
			w = world
			read := measured(w)
			d := loaded(w, x, w.NewJob("j", "m"))
			defer d.planner.Close()
			if s, err := d.attempt(w.Context()); err != nil || s != ours {
				w.Fatal(s, err)
			}
			d.leave()
			if n := read()["scattermap.conflicts"]; n < float64(c.runs-1) {
				w.Errorf("%v conflicts are reported", n)
			}
			root := w.Records(d.job)[d.job.Root()]
			if runs != c.runs || root.Retries != 1 {
				w.Errorf("%v: %d runs, %d retries, %d processed, %d conflicts", c.takes, runs, root.Retries,
					root.Processed,
					root.Conflicts)
			}
		})
	}
}

// TestManyRounds lets others change each entity of a page twice, one entity after the other. No
// entity changes often enough for a range of its own, so all must be processed in the page.
func TestManyRounds(t *testing.T) {
	var w *testworld.World
	rounds := 0
	inWorld(t, 12, function.Update, func(a *testworld.Call) error {
		if next := int64(rounds%12 + 1); rounds < 24 && (rounds == 0 && a.ID == 12 || rounds > 0 &&
			a.N > 1000*int64(rounds-1)) {
			rounds++
			if _, err := w.Client.Put(context.WithoutCancel(a), testworld.Key(next),
				&testworld.Thing{N: 1000 * int64(rounds)}); err != nil {
				return err
			}
		}
		a.N++
		return nil
	}, func(world *testworld.World, x *Executor) {
		w = world
		j := w.NewJob("j", "m")
		j.PageSize = 12
		d := loaded(w, x, j)
		defer d.planner.Close()
		if s, err := d.attempt(w.Context()); err != nil || s != ours {
			w.Fatal(s, err)
		}
		d.leave()
		if root := w.Records(j)[j.Root()]; rounds != 24 || root.Processed != 12 || root.Retries != 0 ||
			w.N(12) != 24001 {
			w.Errorf("%d rounds: %d processed, %d retries; 12 is %d", rounds, root.Processed, root.Retries, w.N(12))
		}
	})
}
