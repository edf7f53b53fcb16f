package tally

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestTally adds the same numbers in parts and in random order. The sums must always be the same.
func TestTally(t *testing.T) {
	rng := testflag.Rand(t)
	want := make(map[string]int64)
	parts := make([]Counters, 5)
	for range 10_000 {
		name, n := fmt.Sprint("n", rng.IntN(500)), rng.Int64()-rng.Int64()
		if rng.IntN(2) == 0 {
			n >>= 40
		}
		sum := want[name] + n // as an int64, in which a part may overflow
		want[name] = sum
		parts[rng.IntN(len(parts))].Add(name, n)
	}
	for name, n := range want { // the totals fit into an int64, even if parts did not
		var rest Counters
		for _, p := range parts {
			rest.addWide(name, p.sums[name])
		}
		parts[0].addWide(name, Sum{n >> 63, uint64(n)})
		parts[0].addWide(name, rest.sums[name].negative())
	}
	var sum Counters
	for _, i := range rng.Perm(len(parts)) {
		sum.Merge(parts[i])
	}
	if got, err := sum.Values(); err != nil || !maps.Equal(got, want) {
		t.Errorf("%d counters, %v; want %d", len(got), err, len(want))
	}
}

func (a Sum) negative() Sum { return Sum{^a.hi, ^a.lo}.Plus(Sum{0, 1}) }

func TestTallyLimits(t *testing.T) {
	for name, test := range map[string]struct {
		names  int
		length int
		each   int64
		want   error
	}{
		"few":          {10, 10, 1, nil},
		"as many":      {maxCounters, 10, 1, nil},
		"too many":     {maxCounters + 1, 10, 1, ErrTooMany},
		"too long":     {39_000, 100, 1, ErrTooMany},
		"the largest":  {1, 10, math.MaxInt64 / 2, nil},
		"the smallest": {1, 10, math.MinInt64 / 2, nil},
		"too large":    {1, 10, math.MaxInt64/2 + 1, ErrLarge},
	} {
		var a, b Counters
		for i := range test.names {
			counter := fmt.Sprintf("%0*d", test.length, i)
			a.Add(counter, test.each)
			b.Add(counter, test.each)
		}
		a.Merge(b)
		got, err := a.Values()
		if !errors.Is(err, test.want) || err == nil && len(got) != test.names {
			t.Errorf("%s: %d counters, %v, want %v", name, len(got), err, test.want)
		}
		if err != nil && (!errors.Is(err, Err) || !strings.Contains(err.Error(), "a resume goes on")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckCounter(t *testing.T) {
	for name, ok := range map[string]bool{"a": true, strings.Repeat("x", 100): true, "": false,
		strings.Repeat("x", 101): false, "\xff": false} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestExtremes checks that minimums and maximums do not depend on the order of the numbers, or on
// how the numbers are divided into parts.
func TestExtremes(t *testing.T) {
	rng := testflag.Rand(t)
	want := make(map[string]int64)
	parts := make([]Counters, 7)
	for range 5_000 {
		name, n := fmt.Sprint("n", rng.IntN(100)), rng.Int64()-rng.Int64()
		p := &parts[rng.IntN(len(parts))]
		p.Add(Min(name), n)
		p.Add(Max(name), n)
		p.Add(name, 1)
		if _, known := want[name]; !known {
			want[Min(name)], want[Max(name)] = n, n
		}
		want[Min(name)], want[Max(name)] = min(want[Min(name)], n), max(want[Max(name)], n)
		want[name]++
	}
	for range 3 {
		var sum Counters
		for _, i := range rng.Perm(len(parts)) {
			sum.Merge(parts[i])
			sum.Merge(Counters{})
		}
		text, err := sum.MarshalJSON() // encoded and decoded, as when another task continues
		if err != nil {
			t.Fatal(err)
		}
		var again Counters
		if err := again.UnmarshalJSON(text); err != nil {
			t.Fatal(err)
		}
		if got, err := again.Values(); err != nil || !maps.Equal(got, want) {
			t.Errorf("%d counters, %v; want %d", len(got), err, len(want))
		}
	}
	if CheckName(Min("a")) == nil || CheckName(Max("a")) == nil || CheckName("minimum") != nil {
		t.Error("the name of a sum counts as the name of a minimum")
	}
}
