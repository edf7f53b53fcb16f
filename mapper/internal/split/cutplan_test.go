package split

import (
	"slices"
	"testing"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestApplyOdd cuts ranges from which entities were deleted, or to which entities were added, since
// they were counted.
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
		want  int   // number of pieces
		after int64 // the fair share of the last piece
	}{
		{"it was empty", Piece{Start: keys[0], Exact: true, Workers: 3},
			CutPlan{Pieces: 4, Keep: 10, lengths: []int64{10, 10}}, 1, 0},
		{"it was longer", Piece{Start: keys[0], Exact: true, Estimate: 300, Workers: 3},
			CutPlan{Pieces: 4, Keep: 60, lengths: []int64{60, 60}}, 2, 0},
		{"a rest", Piece{Start: keys[0], Exact: true, Estimate: 100, Workers: 1, FairShare: 200},
			CutPlan{Pieces: 2, Keep: 60}, 2, 200},
	} {
		pieces, err := test.c.Apply(test.s, find)
		if err != nil || len(pieces) != test.want || !Ordered(pieces) || pieces[len(pieces)-1].FairShare != test.after {
			t.Errorf("%s: %+v, %v", test.name, pieces, err)
		}
	}
}

// TestApplyClumped cuts a range with nearly all samples in its first page.
func TestApplyClumped(t *testing.T) {
	keys := keyspace.AtAll(sequence(1000))
	find := func(_ *keyspace.Position, n int64) (*keyspace.Position, error) { return keys[n], nil }
	s := Piece{Start: keys[0], Samples: slices.Concat(keys[1:10], keys[500:501]), Estimate: 1000, Workers: 5}
	sp := Strategy{First: 1, FanOut: 5}
	pieces, err := sp.Decide(s, Task{Page: 20}).Apply(s, find)
	if err != nil || len(pieces) != 3 || !Ordered(pieces) || pieces[0].End != keys[20] || pieces[1].End != keys[500] {
		t.Errorf("%+v, %v", pieces, err)
	}
}
