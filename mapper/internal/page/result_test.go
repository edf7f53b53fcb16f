package page

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// commits describes the mutations of a page's commit, with their conditions. "1@3" means that
// entity 1 must still have version 3.
func commits(o *Results) string {
	at := func(id int64, c wire.Condition) string {
		if c.Version == 0 {
			return fmt.Sprint(id)
		}
		return fmt.Sprintf("%d@%d", id, c.Version)
	}
	var all []string
	for _, m := range o.Mutations() {
		if m.Deletes != nil {
			all = append(all, "delete "+at(m.Deletes.ID, m.Condition))
			continue
		}
		id := int64(0)
		if m.Writes != nil {
			id = m.Writes.Key.Path[0].IdType.(*pb.Key_PathElement_Id).Id
		}
		all = append(all, "put "+at(id, m.Condition))
	}
	return strings.Join(all, ", ")
}

// relies describes the guards of a page's commit: the entities that must be unchanged.
func relies(o *Results) string {
	var all []string
	for _, g := range o.Guards() {
		what := fmt.Sprintf("%d@%d", g.Key.ID, g.Was.Version)
		if g.Was.Gone {
			what = fmt.Sprintf("no %d", g.Key.ID)
		}
		if g.Free {
			what += " read"
		}
		all = append(all, what)
	}
	return strings.Join(all, ", ")
}

// TestCommits checks the writes and guards of a page of the entities 1 and 2. A guard is an entity
// that must be unchanged at the commit. At first, all entities have version 1.
func TestCommits(t *testing.T) {
	puts := func(c *call, id int64) { c.PutStored(keyOf(id), entityOf(id, 5)) }
	for _, c := range []struct {
		name, want, relies string
		mode               function.Mode
		fn                 func(c *call)
		with               func(p *Page)
	}{
		{name: "nothing", fn: func(*call) {}},
		{name: "nothing is written: what was read has to stay", fn: func(c *call) { c.sees(7) },
			relies: "7@1 read, 1@1 read, 7@1 read, 2@1 read"},
		{name: "only what the page writes is read, and nothing written: the own one has to stay", fn: func(c *call) {
			if c.id == 1 {
				puts(c, 7)
			} else {
				c.sees(7)
			}
		}, want: "put 7", relies: "1@1 read, 2@1 read"},
		{name: "each", fn: func(c *call) { c.n++ }, want: "put 1@1, put 2@1", relies: "1@1, 2@1"},
		{name: "one is deleted", fn: func(c *call) {
			if c.id == 2 {
				c.Delete(keyOf(2))
			}
		}, want: "delete 2@1", relies: "2@1"},
		{name: "another one is put for what the own one has: that has to stay", fn: func(c *call) {
			if c.id == 1 {
				puts(c, 7)
			}
		}, want: "put 7", relies: "1@1 read"},
		{name: "what was read for it has to stay, too", fn: func(c *call) {
			if c.id == 1 {
				c.sees(8)
				puts(c, 7)
			}
		}, want: "put 7", relies: "8@1 read, 1@1 read"},
		{name: "both put one: the last counts", fn: func(c *call) { puts(c, 7) }, want: "put 7",
			relies: "1@1 read, 2@1 read"},
		{name: "both delete one", fn: func(c *call) { c.Delete(keyOf(7)) }, want: "delete 7",
			relies: "1@1 read, 2@1 read"},
		{name: "an insert: it must not be there", fn: func(c *call) {
			if c.id == 1 {
				c.InsertStored(keyOf(9), entityOf(9, 5))
			}
		}, want: "put 9", relies: "no 9, 1@1 read"},
		{name: "an insert under the key of one that the page deletes", fn: func(c *call) {
			if c.id == 1 {
				c.Delete(keyOf(1))
			} else {
				c.InsertStored(keyOf(1), entityOf(1, 5))
			}
		}, want: "delete 1@1, put 1", relies: "1@1, 2@1 read"},
		{name: "what an undo restores is as it has seen it", fn: func(c *call) {
			if c.id == 1 {
				c.Restore(keyOf(7), entityOf(7, 5), 4)
			}
		}, want: "put 7@4", relies: "7@4, 1@1 read"},
		{name: "keys only: nothing is known of the own one", fn: func(c *call) { puts(c, 7) },
			with: func(p *Page) { p.Query.KeysOnly = true }, want: "put 7"},
		{name: "a visit writes nothing", mode: function.Visit, fn: func(c *call) { c.sees(7) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := over(kindOf(1, 2, 7, 8), c.mode, func(e *call) error { c.fn(e); return nil }, 1, 2)
			if c.with != nil {
				c.with(p)
			}
			o, err := p.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := commits(o); got != c.want {
				t.Errorf("it commits %q, want %q", got, c.want)
			}
			if got := relies(o); got != c.relies {
				t.Errorf("it relies on %q, want %q", got, c.relies)
			}
			if got := len(o.Mutations()); got > o.Writes() {
				t.Errorf("%d mutations, and %d were said", got, o.Writes())
			}
		})
	}
}

// TestPageWrites checks the writes of the function over a page, which replace the writes of the
// page's entities.
func TestPageWrites(t *testing.T) {
	o, err := over(kindOf(1), function.Update, func(c *call) error {
		c.PutStored(keyOf(7), entityOf(7, 5))
		return nil
	}, 1).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := function.NewAttempt(record.Ref{ID: "j"}, function.Update, nil)
	a.Delete(keyOf(7))
	a.Delete(keyOf(8))
	a.Put(datastore.IncompleteKey("K", nil), &struct{ N int }{1})
	e, err := a.Effect()
	if err != nil {
		t.Fatal(err)
	}
	o.Page = *e
	if got := commits(o); got != "delete 7, delete 8, put 0" {
		t.Errorf("it commits %q", got)
	}
}

// TestFold replaces results of a page by larger ones, so that they no longer fit in one commit. The
// remaining entities must be left to the next page.
func TestFold(t *testing.T) {
	wants := func(id int64) *function.Effect {
		a := function.NewAttempt(record.Ref{ID: "j"}, function.Update, keyOf(1))
		a.PutStored(keyOf(id), entityOf(id, 5))
		e, _ := a.Effect()
		e.Counters.Add("puts", 1)
		return e
	}
	o := new(Results)
	for id := range int64(3) {
		o.add(result{at: keyspace.At(keyOf(id + 1)), effect: wants(7)})
	}
	if got := said(o); got != "3 reached, 3 done; wrote others 7 7 7" {
		t.Fatal(got)
	}
	o.replace(0, result{at: keyspace.At(keyOf(1)), effect: wants(3)}, nil, map[int]wire.Stamp{})
	o.fold()
	counters, _ := o.Counters.Values()
	if got := said(o); got != "2 reached, 2 done; wrote others 3 7" || counters["puts"] != 2 {
		t.Errorf("%s, counted %v: the third entity is put by the first, and is for the next page", got, counters)
	}
	o.replace(0, result{at: keyspace.At(keyOf(1)), effect: &function.Effect{Bytes: maxBytes}}, nil,
		map[int]wire.Stamp{})
	if o.fold(); said(o) != "1 reached, 1 done" {
		t.Errorf("%s: there is no room for the second entity", said(o))
	}
}

// TestSums checks that a page lists all entities that an undo did not restore, and only some
// examples of a rehearsal.
func TestSums(t *testing.T) {
	s := new(sum)
	for id := range int64(record.PageExamples + 3) {
		s.add(&result{at: keyspace.At(keyOf(id + 1)), effect: &function.Effect{
			Left:    []undolog.Left{{Key: keyOf(id + 1)}},
			Example: func() []record.Example { return []record.Example{{}} }}})
	}
	if len(s.Left) != record.PageExamples+3 || len(s.Examples) != record.PageExamples {
		t.Errorf("%d left, %d examples", len(s.Left), len(s.Examples))
	}
}

// TestVisitsWriteNothing checks that the page of a rehearsal (a dry run) neither writes nor guards
// anything, although its function would write. So the page's usage has no such write or read.
func TestVisitsWriteNothing(t *testing.T) {
	for _, visits := range []bool{true, false} {
		e := effectOf(write{id: 1}, write{id: 9, inserts: true})
		e.Seen = []function.Seen{{Key: keyOf(7)}}
		o := &Results{visits: visits}
		o.add(result{at: keyspace.At(keyOf(1)), effect: e, compare: true})
		for what, n := range map[string]int{"mutations": len(o.Mutations()), "guards": len(o.Guards()),
			"writes": o.Writes(), "reads": o.OtherReads()} {
			if (n == 0) != visits {
				t.Errorf("visits %v: %d %s", visits, n, what)
			}
		}
	}
}

// TestPageInserts checks that the function over a page can put several entities with incomplete
// keys.
func TestPageInserts(t *testing.T) {
	o, open := new(Results), datastore.IncompleteKey("New", nil)
	o.Page = *effectOf(write{id: 1}, write{id: 1}, write{id: 2}, write{id: 3})
	o.Page.Mutations[2].Key, o.Page.Mutations[3].Key = open, open
	if got := len(o.Mutations()); got != 3 {
		t.Errorf("%d writes", got)
	}
}

// TestLook checks on which entities the function runs, if they have changed since their keys were
// read.
func TestLook(t *testing.T) {
	five := query.Filter{Property: "N", Op: "=", Value: int64(5)}
	at := func(n int64) *keyspace.Position { return &keyspace.Position{Valued: true, Value: n, Key: keyOf(1)} }
	whole := keyspace.At(keyOf(1))
	several := entityOf(1, 5)
	several.Properties["N"] = &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{
		Values: []*pb.Value{several.Properties["N"], entityOf(1, 6).Properties["N"]}}}}
	for _, c := range []struct {
		name   string
		query  query.Query
		visit  bool
		alone  bool
		at     *keyspace.Position
		read   wire.Stamp
		runs   bool
		failed bool
	}{
		{name: "of a kind", at: whole, read: wire.Stamp{Entity: entityOf(1, 4)}, runs: true},
		{name: "of a kind, and gone", at: whole, read: wire.Stamp{Gone: true}},
		{name: "below an ancestor, and gone", query: query.Query{Ancestor: keyOf(1)}, at: whole,
			read: wire.Stamp{Gone: true}},
		{name: "it passes the filter", query: query.Query{Filters: []query.Filter{five}}, at: whole,
			read: wire.Stamp{Entity: entityOf(1, 5)}, runs: true},
		{name: "it passes no more", query: query.Query{Filters: []query.Filter{five}}, at: whole,
			read: wire.Stamp{Entity: entityOf(1, 4)}},
		{name: "it passes no more, alone", query: query.Query{Filters: []query.Filter{five}}, at: whole, alone: true,
			read: wire.Stamp{Entity: entityOf(1, 4)}},
		{name: "only its key is read", query: query.Query{Filters: []query.Filter{five}, KeysOnly: true}, visit: true,
			at: whole, runs: true},
		{name: "only its key was read by the query", query: query.Query{Filters: []query.Filter{five}, KeysOnly: true},
			at: whole, read: wire.Stamp{Entity: entityOf(1, 4)}},
		{name: "at its value", query: query.Query{ShardBy: "N"}, at: at(5), read: wire.Stamp{Entity: entityOf(1, 5)},
			runs: true},
		{name: "at another value", query: query.Query{ShardBy: "N"}, at: at(4),
			read: wire.Stamp{Entity: entityOf(1, 5)}},
		{name: "at another value, alone", query: query.Query{ShardBy: "N"}, at: at(4), alone: true,
			read: wire.Stamp{Entity: entityOf(1, 5)}, runs: true},
		{name: "with several values", query: query.Query{ShardBy: "N"}, at: at(5), read: wire.Stamp{Entity: several},
			failed: true},
	} {
		mode := function.Update
		if c.visit {
			mode = function.Visit
		}
		c.query.Kind = "K"
		p := &Page{Query: c.query, Mode: mode, Alone: c.alone}
		r, runs := p.look(c.at, c.read)
		if runs != c.runs || (r.failure != nil) != c.failed || r.compare == c.visit {
			t.Errorf("%s: it runs %v, failure %v, compared %v", c.name, runs, r.failure, r.compare)
		}
	}
}

// TestKeepsPlace checks that a function may change the property in ShardBy of other entities.
func TestKeepsPlace(t *testing.T) {
	p := &Page{Query: query.Query{Kind: "K", ShardBy: "N"}}
	for _, id := range []int64{1, 2} {
		e := effectOf(write{id: id})
		e.Mutations[0].Edit.Changed, e.Mutations[0].On.Writes = []string{"N"}, entityOf(id, 7)
		err := p.keepsPlace(keyOf(1), entityOf(1, 5), e)
		if (err == nil) != (id == 2) {
			t.Errorf("of %d: %v", id, err)
		}
	}
}

// TestNoPause checks that a page does not wait for a time that has passed, even if its delivery
// ends.
func TestNoPause(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		if took, err := pause(ctx, 0); took != 0 || err != nil {
			t.Fatalf("after %v: %v", took, err)
		}
	}
}

// TestTellsAmidChunk checks how soon the speed of a slow chunk is reported to other pages.
func TestTellsAmidChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var known []int64
		var p *Page
		p = over(kindOf(1, 2, 3, 4, 5), function.Visit, func(*call) error {
			known = append(known, p.Paces.Get(p.Job.Ref()).Entities)
			time.Sleep(tellEvery / 2)
			return nil
		}, 1, 2, 3, 4, 5)
		if _, err := p.Run(t.Context()); err != nil || !slices.Equal(known, []int64{0, 0, 2, 2, 4}) {
			t.Errorf("%v, %v", known, err)
		}
	})
}

// TestSumOfUpdates checks that adding up a page of updates does not encode a key for each entity.
func TestSumOfUpdates(t *testing.T) {
	const n = 500
	results := make([]result, n)
	for i := range results {
		key := datastore.IDKey("K", int64(i+1), nil)
		a := function.NewAttempt(record.Ref{}, function.Update, key)
		a.Save(property.NewEdit(&pb.Entity{}, map[string]*pb.Value{"A": nil}), true)
		effect, err := a.Effect()
		if err != nil {
			t.Fatal(err)
		}
		results[i] = result{at: keyspace.At(key), compare: true, effect: effect}
	}
	allocations := testing.AllocsPerRun(5, func() {
		var s sum
		for i := range results {
			s.add(&results[i])
		}
		if s.Written != n || s.Compared != 0 {
			t.Fatalf("%d written and %d compared, want %d and 0", s.Written, s.Compared, n)
		}
	})
	if allocations > n/2 {
		t.Errorf("%v allocations for %d updates", allocations, n)
	}
}
