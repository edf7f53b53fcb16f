package mapper

import (
	"testing"
	"time"
)

// TestNextPage has pages of 500 at most, and of a second.
func TestNextPage(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name  string
		o     outcome
		usual time.Duration
		want  int64
	}{
		{"fast", outcome{reached: 500, ran: 500 * ms, dearest: ms}, ms, 500},
		{"slow", outcome{reached: 501, ran: 5010 * ms, dearest: 10 * ms}, 0, 100},
		{"one entity was dear", outcome{reached: 101, ran: 1500 * ms, dearest: 500 * ms}, 0, 100},
		{"some hung", outcome{reached: 101, ran: 61_010 * ms, dearest: 10 * ms, hung: 60_000 * ms}, 0, 100},
		{"as usual, about", outcome{reached: 101, ran: 1010 * ms, dearest: 10 * ms}, 8 * ms, 125},
		{"not as usual", outcome{reached: 101, ran: 1010 * ms, dearest: 10 * ms}, 4 * ms, 100},
		{"slower than a page may take", outcome{reached: 1, ran: 2000 * ms, dearest: 2000 * ms}, 0, 1},
		{"nothing", outcome{}, 0, 500},
	} {
		if got := test.o.nextPage(500, time.Second, test.usual); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}
