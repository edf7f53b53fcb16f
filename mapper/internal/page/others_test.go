package page

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

// TestSees checks that functions see other entities as earlier entities of the page leave them,
// or else as the database has them.
func TestSees(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(c *call) (sees int64)
		want string // what each function sees
	}{
		{"what the database has", func(c *call) int64 { return c.sees(7) }, "7 7 7"},
		{"what is not there", func(c *call) int64 { return c.sees(99) }, "-1 -1 -1"},
		{"the entity before has changed", func(c *call) int64 {
			if c.n += 100; c.id == 1 {
				return -1
			}
			return c.sees(c.id - 1)
		}, "-1 101 102"},
		{"an entity behind has not", func(c *call) int64 { c.n += 100; return c.sees(3) }, "3 3 3"},
		{"what those before have put", func(c *call) int64 {
			n := c.sees(7)
			c.Put(keyOf(7), &struct{ N int64 }{n + 1})
			return n
		}, "7 8 9"},
		{"what one before has deleted", func(c *call) int64 {
			if c.id == 2 {
				c.Delete(keyOf(7))
			}
			return c.sees(7)
		}, "7 7 -1"},
		{"what a failure has asked for is not there", func(c *call) int64 {
			if c.id == 1 {
				c.Put(keyOf(7), &struct{ N int64 }{70})
				panic("ouch")
			}
			return c.sees(7)
		}, "0 7 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sees := make([]int64, 3)
			p := over(kindOf(1, 2, 3, 7), function.Update, func(e *call) error {
				sees[e.id-1] = c.fn(e)
				return nil
			}, 1, 2, 3)
			if _, err := p.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(sees); got != "["+c.want+"]" {
				t.Errorf("they see %s, want [%s]", got, c.want)
			}
		})
	}
}

// TestLooksOnce counts the reads of other entities. Each entity is read once. Entities that the
// mapper names are read in one call, which may fail.
func TestLooksOnce(t *testing.T) {
	reads := func(c *call) error {
		_, err := c.Get(c, []*datastore.Key{keyOf(7), keyOf(8), keyOf(7)}, func(int, *pb.Entity) error { return nil })
		if c.id == 2 && c.sees(9) != 9 {
			return errBad
		}
		return err
	}
	named := func(key *datastore.Key, _ *pb.Entity) ([]*datastore.Key, error) {
		if key.ID == 2 {
			return []*datastore.Key{keyOf(7), keyOf(8), keyOf(9)}, nil
		}
		return []*datastore.Key{keyOf(7), nil}, nil
	}
	for _, c := range []struct {
		name string
		keys function.Keys
		want string
	}{
		{"nothing is named", nil, "[[7 8] [9]]"},
		{"all is named", named, "[[7 8 9]]"},
		{"the wrong one is named", func(*datastore.Key, *pb.Entity) ([]*datastore.Key, error) {
			return []*datastore.Key{keyOf(5)}, nil
		}, "[[5] [7 8] [9]]"},
		{"what names them fails", func(*datastore.Key, *pb.Entity) ([]*datastore.Key, error) { return nil, errBad },
			"[[7 8] [9]]"},
	} {
		k := kindOf(1, 2, 7, 8, 9)
		p := over(k, function.Update, reads, 1, 2)
		p.Keys = c.keys
		o, err := p.Run(t.Context())
		if got := fmt.Sprint(k.looks); err != nil || got != c.want || o.Processed != 2 {
			t.Errorf("%s: looked up %s, %v, want %s; %s", c.name, got, err, c.want, said(o))
		}
	}
	k := kindOf(1, 2)
	k.down = errBad
	o, err := over(k, function.Update, reads, 1, 2).Run(t.Context())
	if err != nil || said(o) != "2 reached, 0 done; failed 1, 2" {
		t.Errorf("the database is down: %s, %v", said(o), err)
	}
}

// TestClosed checks that reads of an abandoned function fail.
func TestClosed(t *testing.T) {
	v := &view{get: kindOf(7).get, outcome: new(Results)}
	if seen, err := v.Look(t.Context(), []*datastore.Key{keyOf(7)}); err != nil || seen[0].Version != 1 {
		t.Fatalf("%+v, %v", seen, err)
	}
	if _, known := v.Known(keyOf(7)); !known {
		t.Error("what was read is not known")
	}
	v.close()
	if _, err := v.Look(t.Context(), []*datastore.Key{keyOf(7)}); !errors.Is(err, errClosed) {
		t.Errorf("%v, want %v", err, errClosed)
	}
	if _, known := v.Known(keyOf(7)); known {
		t.Error("it is still told what is known")
	}
}

// TestAgain runs a page of the entities 1, 2, 3, and then changes entities as another client
// would. It checks which functions run again, and the results of the page.
func TestAgain(t *testing.T) {
	adds := func(c *call) error { c.n += 100; return nil }
	aside := errors.New("set aside")
	for _, c := range []struct {
		name  string
		fn    func(c *call) error
		moved int64 // the entity that somebody else has changed
		aside bool  // the function does not run again on changed entities
		runs  []int64
		want  string
		puts  map[int64]int64 // the writes of the page's commit
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
		{name: "those that have failed: that may be for what they have read", fn: func(c *call) error {
			if c.n += 100; c.id == 1 {
				return errBad
			}
			return nil
		}, moved: 3, runs: []int64{1, 3}, want: "3 reached, 2 done; wrote 2 3; failed 1",
			puts: map[int64]int64{2: 102, 3: 150}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := kindOf(1, 2, 3, 7)
			var runs []int64
			p := over(k, function.Update, func(e *call) error { runs = append(runs, e.id); return c.fn(e) }, 1, 2, 3)
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
			if !slices.Equal(runs, c.runs) {
				t.Errorf("it ran again on %v, want %v", runs, c.runs)
			}
			if got := said(o); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
			for _, m := range o.Mutations() {
				id := m.Writes.GetKey().GetPath()[0].GetId()
				if n := m.Writes.GetProperties()["N"].GetIntegerValue(); n != c.puts[id] ||
					m.Version != k.version[id] {
					t.Errorf("%d becomes %d over the version %d, want %d", id, n, m.Version, c.puts[id])
				}
				delete(c.puts, id)
			}
			if len(c.puts) > 0 {
				t.Errorf("not written: %v", c.puts)
			}
			if o.Moves(moved[0]) != 1 || c.aside && o.Failures[0].Attempts != 0 {
				t.Errorf("%d moves, failures %+v", o.Moves(moved[0]), o.Failures)
			}
		})
	}
}
