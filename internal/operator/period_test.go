package operator

import (
	"testing"
	"time"
)

// TestParsePeriod checks times in days, and others.
func TestParsePeriod(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{"30d": 30 * day, "0d": 0, "-2d": -2 * day, "90s": 90 * time.Second,
		"1h30m": 90 * time.Minute, "100000d": 100_000 * day} {
		if got, err := ParsePeriod(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "1.5d", "30", "1d2h", "100001d", "-100001d", "99999999999999999999d"} {
		if got, err := ParsePeriod(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
