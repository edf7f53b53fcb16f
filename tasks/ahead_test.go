package tasks

import (
	"testing"
	"time"
)

// TestAhead checks how far another clock is ahead, after a call between 100 s and 130 s by this
// clock.
func TestAhead(t *testing.T) {
	from, to := time.Unix(100, 0), time.Unix(130, 0)
	for at, want := range map[int64]time.Duration{
		99: 0, 100: 0, 115: 0, 130: 0,
		90: 0, 89: -11, 40: -60,
		140: 0, 141: 11, 190: 60,
		130 + 86400: 86400, 131 + 86400: 0, 100 - 86400: -86400, 99 - 86400: 0, -62135596800: 0,
	} {
		if got := ahead(time.Unix(at, 0), from, to); got != want*time.Second {
			t.Errorf("the other clock shows %d: %v, want %ds", at, got, want)
		}
	}
}
