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

// TestSees checks which states of other entities the functions see: the state after the writes for
// the page's earlier entities, or else the database's state.
func TestSees(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(c *call) (sees int64)
		want string // what the functions see, in order
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

// TestLooksOnce counts the reads of other entities. Each entity must be read once. Entities that
// the mapper names must be read in one call, which may fail.
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
		const compared = 5 // 1, 2 and what they have read
		if told, n := p.Paces.Get(p.Job.Ref()).Others, len(slices.Concat(k.looks...))+compared; o.OtherReads() != n ||
			told != int64(n) {
			t.Errorf("%s: %d reads are counted, and %d reported, want %d", c.name, o.OtherReads(), told, n)
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
	k := kindOf(7, 8)
	v := &view{get: k.get, outcome: new(Results)}
	if seen, err := v.Look(t.Context(), []*datastore.Key{keyOf(7)}); err != nil || seen[0].Version != 1 {
		t.Fatalf("%+v, %v", seen, err)
	}
	if _, known := v.Known(keyOf(7)); !known {
		t.Error("what was read is not known")
	}
	v.close()
	for _, id := range []int64{7, 8} {
		if _, err := v.Look(t.Context(), []*datastore.Key{keyOf(id)}); !errors.Is(err, errClosed) || len(k.looks) != 1 {
			t.Errorf("of %d: %v after %d lookups, want %v", id, err, len(k.looks), errClosed)
		}
	}
	if _, known := v.Known(keyOf(7)); known {
		t.Error("it is still told what is known")
	}
}
