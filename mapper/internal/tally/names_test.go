package tally

import (
	"fmt"
	"slices"
	"testing"
)

// TestNames counts names in parts: a few exactly, and many approximately.
func TestNames(t *testing.T) {
	for _, n := range []int{0, 1, 999, 1000, 5000, 200_000} {
		var whole Names
		parts := make([]Names, 3)
		for i := range n {
			name := fmt.Sprint("space ", i)
			whole.Add(name)
			parts[i%3].Add(name)
			parts[i*7%3].Add(name)
		}
		var sum Names
		for _, p := range parts {
			sum.Merge(p)
		}
		if got := sum.Count(); !slices.Equal(sum, whole) || n < maxNames && got != n || got < n*9/10 || got > n*11/10 {
			t.Errorf("%d names, want %d", got, n)
		}
	}
}
