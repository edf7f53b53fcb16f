package keyspace

import (
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
)

// positionsInOrder returns positions in ascending order, and the expected String of each.
func positionsInOrder() (all []*Position, said []string) {
	ancestor := named("", "A", "x", nil)
	for _, c := range []struct {
		at   *Position
		said string
	}{
		{&Position{Kind: "J"}, "/J"},
		{At(datastore.IDKey("J", 1, nil)), "/J,1"},
		{Space{"", "J"}.End(), `/"J\x00"`},
		{&Position{Kind: "K"}, "/K"},
		{At(datastore.IDKey("K", 1, nil)), "/K,1"},
		{At(named("", "K", "a", nil)), `/K,"a"`},
		{&Position{Kind: "K", Valued: true}, "null of /K"},
		{&Position{Kind: "K", Valued: true, Value: int64(5)}, "5 of /K"},
		{&Position{Kind: "K", Valued: true, Value: int64(5), Key: ancestor}, `5 of /A,"x"`},
		{&Position{Valued: true, Value: int64(5), Key: datastore.IDKey("K", 1, nil)}, "5 of /K,1"},
		{&Position{Valued: true, Value: int64(6), Key: datastore.IDKey("K", 1, nil)}, "6 of /K,1"},
		{&Position{Kind: "K", Valued: true, Value: "a"}, `"a" of /K`},
		{&Position{Namespace: "n", Kind: "A"}, "[n]/A"},
		{At(named("n", "A", "x", nil)), `[n]/A,"x"`},
		{At(named("n", "B", "x", nil)), `[n]/B,"x"`},
	} {
		all, said = append(all, c.at), append(said, c.said)
	}
	return all, said
}

// TestCompare compares all pairs of positions.
func TestCompare(t *testing.T) {
	all, said := positionsInOrder()
	for i, a := range all {
		if got := a.String(); got != said[i] {
			t.Errorf("it is called %q, want %q", got, said[i])
		}
		for j, b := range all {
			if got := Compare(a, b); sign(got) != sign(i-j) || a.Equal(b) != (i == j) {
				t.Errorf("%v and %v: %d, and equal %v", a, b, got, a.Equal(b))
			}
		}
	}
	var none *Position
	if !none.Equal(nil) || none.Equal(all[0]) || all[0].Equal(nil) {
		t.Error("a nil position is not equal to nil, or is equal to another position")
	}
	if none.String() != "no position" || (&Position{}).String() != "the beginning" {
		t.Errorf("%v, %v", none, &Position{})
	}
}

// TestFromTo checks that a text about a range tells a missing start from a missing end.
func TestFromTo(t *testing.T) {
	a, b := At(named("", "K", "a", nil)), At(named("", "K", "b", nil))
	for want, of := range map[string][2]*Position{
		"from the start to the end": {nil, nil},
		`from the start to /K,"b"`:  {nil, b},
		`from /K,"a" to the end`:    {a, nil},
		`from /K,"a" to /K,"b"`:     {a, b},
	} {
		if got := FromTo(of[0], of[1]); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestSort sorts positions with duplicates.
func TestSort(t *testing.T) {
	all, _ := positionsInOrder()
	mixed := append(slices.Clone(all), all...)
	slices.Reverse(mixed)
	if got := Sort(mixed); !slices.EqualFunc(got, all, (*Position).Equal) {
		t.Errorf("%v", got)
	}
}

// TestNames checks that a position has the names of its key and of the key's ancestors.
func TestNames(t *testing.T) {
	at := At(datastore.IDKey("K", 7, named("", "P", "a", named("", "Q", "b", nil))))
	if got := at.Names(); !slices.Equal(got, []string{"", "a", "b"}) {
		t.Errorf("%q", got)
	}
	if got := Keys(AtAll([]*datastore.Key{at.Key})); len(got) != 1 || got[0] != at.Key {
		t.Errorf("%v", got)
	}
	if got := (*Position)(nil).Names(); got != nil {
		t.Errorf("%q", got)
	}
	if got := (&Position{Kind: "K"}).Names(); got != nil {
		t.Errorf("%q", got)
	}
}

// TestSizes checks that the estimated size of an entity is the same in the Go client's form and in
// the form of the Datastore API. It must be at least the size of the entity's texts.
func TestSizes(t *testing.T) {
	key := named("space", "K", "seven77", nil) // 5 + 1 + 7 + 16
	if got := KeySize(key); got != 29 {
		t.Errorf("a key has %d bytes", got)
	}
	if got := KeySize(datastore.IDKey("KK", 1, named("", "P", "x", nil))); got != 36 {
		t.Errorf("a path has %d bytes", got)
	}
	if got := (&Position{Namespace: "nn", Kind: "K", Valued: true, Value: "abc", Key: key}).Size(); got != 16+2+1+3+29 {
		t.Errorf("a position has %d bytes", got)
	}
	for _, c := range []struct {
		name  string
		value any
		want  int
	}{
		{"an integer", int64(5), 12}, {"null", nil, 12}, {"a time", time.UnixMicro(1), 12}, {"a text", "abcde", 5},
		{"bytes", []byte("abc"), 3}, {"a key", key, 29}, {"an array", []any{"ab", int64(1)}, 2 + 4 + 12 + 4},
		{"an entity", &datastore.Entity{Properties: []datastore.Property{{Name: "inner", Value: "abc"}}}, 5 + 3 + 8},
	} {
		properties := []datastore.Property{{Name: "p", Value: c.value, NoIndex: true}}
		if got := PropertiesSize(properties); got != 1+8+c.want {
			t.Errorf("%s: %d, want %d", c.name, got, 1+8+c.want)
		}
		e, err := pbvalue.Entity(nil, properties, false)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := EntitySize(e); got != 1+8+c.want {
			t.Errorf("%s in the protocol: %d, want %d", c.name, got, 1+8+c.want)
		}
	}
	if EntitySize(nil) != 0 || EntitySize(new(pb.Entity)) != 0 || valueSize((*datastore.Entity)(nil)) != 0 {
		t.Error("a missing key or value has a size")
	}
}
