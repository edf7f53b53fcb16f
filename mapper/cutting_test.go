package mapper

import (
	"slices"
	"testing"
)

// TestLengthsFor cuts ranges of known lengths into portions of two pages of 100: a short rest
// is spread over the last of them.
func TestLengthsFor(t *testing.T) {
	portions := Splitting{}.cut(stretch{estimate: 2000, exact: true, workers: 10, portion: 200}, false, 100, 100)
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
		got := portions.lengthsFor(test.n)
		last := test.n
		for _, n := range got {
			last -= n
		}
		if got = append(slices.Clone(got), last); !slices.Equal(got, test.want) {
			t.Errorf("%d entities: %v, want %v", test.n, got, test.want)
		}
	}
}
