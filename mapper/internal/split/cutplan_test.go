package split

import (
	"slices"
	"testing"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestApplyOdd cuts ranges that have changed since they were counted.
func TestApplyOdd(t *testing.T) {
	keys := keyspace.AtAll(sequence(100))
	find := func(from *keyspace.Position, n int64) (*keyspace.Position, error) {
		i, _ := slices.BinarySearchFunc(keys, from, keyspace.Compare)
		if i+int(n) >= len(keys) {
			return nil, nil
		}
		return keys[i+int(n)], nil
	}
	for _, test := range []struct {
		name  string
		s     Piece
		c     CutPlan
		want  int   // pieces
		after int64 // the fair share of the last one
	}{
		{"it was empty", Piece{Start: keys[0], Exact: true, Workers: 3}, CutPlan{Pieces: 4, Keep: 10, each: 10}, 1, 0},
		{"it was longer", Piece{Start: keys[0], Exact: true, Estimate: 300, Workers: 3}, CutPlan{Pieces: 4, Keep: 60, each: 60}, 2, 0},
		{"a rest", Piece{Start: keys[0], Exact: true, Estimate: 100, Workers: 1, FairShare: 200}, CutPlan{Pieces: 2, Keep: 60, each: 60}, 2, 200},
	} {
		pieces, err := test.c.Apply(test.s, find)
		if err != nil || len(pieces) != test.want || !Ordered(pieces) || pieces[len(pieces)-1].FairShare != test.after {
			t.Errorf("%s: %+v, %v", test.name, pieces, err)
		}
	}
}

// TestApplyClumped cuts a range whose samples are nearly all in the first page.
func TestApplyClumped(t *testing.T) {
	keys := keyspace.AtAll(sequence(1000))
	find := func(_ *keyspace.Position, n int64) (*keyspace.Position, error) { return keys[n], nil }
	s := Piece{Start: keys[0], Samples: slices.Concat(keys[1:10], keys[500:501]), Estimate: 1000, Workers: 5}
	sp := Strategy{First: 1, FanOut: 5}
	pieces, err := sp.Decide(s, Task{Page: 20, Usual: 20}).Apply(s, find)
	if err != nil || len(pieces) != 3 || !Ordered(pieces) || pieces[0].End != keys[20] || pieces[1].End != keys[500] {
		t.Errorf("%+v, %v", pieces, err)
	}
}

// TestLengthsFor cuts ranges of known lengths into fair shares of two pages of 100: a short rest
// is spread over the last of them.
func TestLengthsFor(t *testing.T) {
	plan := Strategy{}.plan(Piece{Estimate: 2000, Exact: true, Workers: 10, FairShare: 200}, Task{Page: 100, Usual: 100})
	for _, test := range []struct {
		n    int64
		want []int64 // with the last one
	}{
		{0, []int64{0}},
		{200, []int64{200}},
		{201, []int64{201}},
		{233, []int64{233}},
		{234, []int64{200, 34}}, // too much for one
		{400, []int64{200, 200}},
		{466, []int64{233, 233}},
		{467, []int64{200, 200, 67}},
		{1000, []int64{200, 200, 200, 200, 200}},
		{1030, []int64{200, 200, 200, 200, 230}},
		{1041, []int64{200, 200, 200, 220, 221}},
		{1133, []int64{226, 226, 226, 226, 229}},
		{1134, []int64{200, 200, 200, 200, 200, 134}},
	} {
		got := plan.lengthsFor(test.n)
		last := test.n
		for _, n := range got {
			last -= n
		}
		if got = append(slices.Clone(got), last); !slices.Equal(got, test.want) {
			t.Errorf("%d entities: %v, want %v", test.n, got, test.want)
		}
	}
}
