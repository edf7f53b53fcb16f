package query

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
	"github.com/scattermap/scattermap/internal/testflag"
)

// equalities returns a query with an equality for each of the given properties' values.
func equalities(t *testing.T, of map[string][]int64) *Query {
	t.Helper()
	and := &pb.CompositeFilter{Op: pb.CompositeFilter_AND}
	for name, values := range of {
		for _, n := range values {
			equal := &pb.PropertyFilter{
				Property: &pb.PropertyReference{Name: name}, Op: pb.PropertyFilter_EQUAL, Value: entity.Integer(n),
			}
			and.Filters = append(and.Filters, &pb.Filter{FilterType: &pb.Filter_PropertyFilter{PropertyFilter: equal}})
		}
	}
	q, err := Parse(model.Database{Project: "p"}, Options{Scatter: 2}, nil, &pb.Query{
		Kind:   []*pb.KindExpression{{Name: "K"}},
		Filter: &pb.Filter{FilterType: &pb.Filter_CompositeFilter{CompositeFilter: and}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func integers(values []int64) *pb.Value {
	var all []*pb.Value
	for _, n := range values {
		all = append(all, entity.Integer(n))
	}
	return entity.Array(all)
}

func stored(t *testing.T, properties map[string]*pb.Value) (*store.Record, store.Version) {
	t.Helper()
	path := []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: 1}}}
	f, err := entity.New(&pb.Key{Path: path})
	if err == nil {
		f, err = f.With(properties)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &store.Record{Path: string(collate.AppendPath(nil, path))}, store.Version{Form: f}
}

// TestEqualities compares two ways to check random equalities on random values: the query's, and a
// simple loop over the values.
func TestEqualities(t *testing.T) {
	rng := testflag.Rand(t)
	some := func() map[string][]int64 {
		of := make(map[string][]int64)
		for range 1 + rng.IntN(12) {
			name := []string{"a", "b", "b.c", "b.c.d", "b-c", "b.", "e", "f", "g", "h", "i", "j"}[rng.IntN(12)]
			of[name] = append(of[name], rng.Int64N(3))
		}
		return of
	}
	met := 0
	for range 20000 {
		has, asked := some(), some()
		if rng.IntN(2) == 0 {
			asked = has
			for name := range has {
				if rng.IntN(8) == 0 {
					asked[name] = append(slices.Clone(asked[name]), 2)
				}
			}
		}
		properties := make(map[string]*pb.Value)
		for name, values := range has {
			properties[name] = integers(values)
		}
		want := true
		for name, values := range asked {
			for _, n := range values {
				want = want && slices.Contains(has[name], n)
			}
		}
		q := equalities(t, asked)
		r, v := stored(t, properties)
		if got := len(q.Rows(nil, r, v, "")) == 1; got != want {
			t.Fatalf("%v meets %v: %v, want %v", has, asked, got, want)
		}
		if want {
			met++
		}
		for _, need := range q.Needs() {
			if len(need.Definition) == 0 || len(need.Definition) > maxIndexed {
				t.Errorf("%v needs an index over %v", asked, need.Definition)
			}
		}
	}
	if met < 1000 {
		t.Errorf("%d met what was asked", met)
	}
}

// TestManyEqualities checks that the time of a query grows in proportion to the number of its
// equalities. They are on one array, or on different properties.
func TestManyEqualities(t *testing.T) {
	type size struct{ array, wide float64 }
	measure := func(n int) size {
		values, properties, each := make([]int64, n), make(map[string]*pb.Value), make(map[string][]int64)
		for i := range values {
			values[i] = int64(i)
			name := fmt.Sprint("p", i)
			properties[name], each[name] = entity.Integer(1), []int64{1}
		}
		rows := func(q *Query, properties map[string]*pb.Value) float64 {
			r, v := stored(t, properties)
			if len(q.Rows(nil, r, v, "")) != 1 {
				t.Fatal("no row")
			}
			return testing.AllocsPerRun(1, func() { q.Rows(nil, r, v, "") })
		}
		return size{
			rows(equalities(t, map[string][]int64{"a": values}), map[string]*pb.Value{"a": integers(values)}),
			rows(equalities(t, each), properties),
		}
	}
	few, many := measure(25), measure(100)
	if many.array > 6*few.array || many.wide > 6*few.wide {
		t.Errorf("4 times as many equalities take %.1f and %.1f times as many allocations",
			many.array/few.array, many.wide/few.wide)
	}
}

// TestNamesRead compares Names.Read with a simple loop over the names.
func TestNamesRead(t *testing.T) {
	rng := testflag.Rand(t)
	name := func() string {
		b := make([]byte, 1+rng.IntN(4))
		for i := range b {
			b[i] = "a.-/"[rng.IntN(4)]
		}
		return string(b)
	}
	for range 20000 {
		var all []string
		for range rng.IntN(6) {
			all = append(all, name())
		}
		asked := name()
		want := slices.ContainsFunc(all, func(p string) bool { return p == asked || strings.HasPrefix(p, asked+".") })
		if got := store.NamesOf(slices.Clone(all)).Needs([]byte(asked)); got != want {
			t.Fatalf("%q reads %q: %v, want %v", all, asked, got, want)
		}
	}
}

// TestNarrowedPlans drops equalities from the indexes of random queries until entities with many
// values fit. It checks that only equalities were dropped.
func TestNarrowedPlans(t *testing.T) {
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	for range 5000 {
		of := make(map[string][]int64)
		for range 1 + rng.IntN(12) {
			of[string(rune('a'+rng.IntN(20)))] = []int64{1}
		}
		q := equalities(t, of)
		d := q.Needs()[0].Definition
		counts := make([]int, len(d))
		for i := range counts {
			counts[i] = 1 + rng.IntN(1<<rng.IntN(12))
		}
		if d.Fits(counts) {
			continue
		}
		if !q.Needs()[0].Narrow(counts) {
			t.Fatalf("%v does not become narrower for %v", d, counts)
		}
		left := q.Needs()[0].Definition
		var fewer []int
		for i, o := range d {
			if slices.Contains(left, o) {
				fewer = append(fewer, counts[i])
			}
		}
		if len(fewer) != len(left) || len(left) == 0 || len(left) >= len(d) || !left.Fits(fewer) {
			t.Fatalf("%v with %v becomes %v with %v", d, counts, left, fewer)
		}
	}
}
