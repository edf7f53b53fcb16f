package split

import (
	"slices"
	"testing"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestShares checks how n entities are cut into fair shares for 4 workers, with pages of 100.
func TestShares(t *testing.T) {
	for _, test := range []struct {
		n    int64
		want []int64
	}{
		{1, []int64{1}},
		{50, []int64{50}},
		{99, []int64{50, 49}}, // a shorter piece costs more than it saves
		{250, []int64{63, 63, 63, 61}},
		{400, []int64{100, 100, 100, 100}},
		{470, []int64{118, 118, 117, 117}},
		{800, []int64{200, 200, 200, 200}},
		{1150, []int64{288, 288, 287, 287}},
		{12_050, []int64{3025, 3025, 3000, 3000}}, // the first two have a page that is not full
	} {
		if got := ShareLengths(test.n, max(1, test.n/4), test.n, 100); !slices.Equal(got, test.want) {
			t.Errorf("%d entities: %v, want %v", test.n, got, test.want)
		}
	}
	many := ShareLengths(1_000_000, 1000, 1_000_000, 500)
	if len(many) != MaxFanOut || slices.Min(many) != 10_000 {
		t.Errorf("a thousand workers share %d pieces, the shortest of %d", len(many), slices.Min(many))
	}
	rng := testflag.Rand(t)
	for range 10_000 {
		n, workers, page := 1+rng.Int64N(2_000_000), 1+rng.Int64N(5000), 1+rng.Int64N(1000)
		fair := max(1, n/workers)
		lengths := ShareLengths(n, fair, n, page)
		sum := int64(0)
		for _, l := range lengths {
			sum += l
		}
		// Lengths may differ by up to a page, because a small remainder is spread over only some
		// pieces.
		if shortest := slices.Min(lengths[:max(1, len(lengths)-1)]); sum != n || len(lengths) > MaxFanOut ||
			slices.Min(lengths) < 1 || slices.Max(lengths) > shortest+page {
			t.Fatalf("%d entities, a share of %d, %d workers, pages of %d: %v", n, fair, workers, page, lengths)
		}
	}
}
