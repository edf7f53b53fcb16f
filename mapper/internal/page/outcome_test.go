package page

import (
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestNextPage has pages of 500 at most, and of a second.
func TestNextPage(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name  string
		o     Outcome
		usual time.Duration
		want  int64
	}{
		{"fast", Outcome{Reached: 500, Ran: 500 * ms, dearest: ms}, ms, 500},
		{"slow", Outcome{Reached: 501, Ran: 5010 * ms, dearest: 10 * ms}, 0, 100},
		{"one entity was dear", Outcome{Reached: 101, Ran: 1500 * ms, dearest: 500 * ms}, 0, 100},
		{"some hung", Outcome{Reached: 101, Ran: 61_010 * ms, dearest: 10 * ms, hung: 60_000 * ms}, 0, 100},
		{"as usual, about", Outcome{Reached: 101, Ran: 1010 * ms, dearest: 10 * ms}, 8 * ms, 125},
		{"not as usual", Outcome{Reached: 101, Ran: 1010 * ms, dearest: 10 * ms}, 4 * ms, 100},
		{"slower than a page may take", Outcome{Reached: 1, Ran: 2000 * ms, dearest: 2000 * ms}, 0, 1},
		{"nothing", Outcome{}, 0, 500},
	} {
		if got := test.o.NextPage(500, time.Second, test.usual); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// TestSudden has entities become slow in the middle of a page.
func TestSudden(t *testing.T) {
	const ms = time.Millisecond
	o := new(Outcome)
	each := func(n int, t, hung time.Duration) {
		for range n {
			o.Reached++
			o.took(t, hung)
		}
	}
	each(400, ms, 0)
	each(10, 100*ms, 0)
	if n := o.NextPage(500, time.Second, ms); n > 20 {
		t.Errorf("behind ten slow ones the next page has %d entities", n)
	}
	each(30, 100*ms, 0)
	if n := o.NextPage(500, time.Second, ms); n != 10 {
		t.Errorf("behind forty slow ones the next page has %d entities, want 10", n)
	}
	o = new(Outcome)
	each(400, 10*ms, 0)
	each(1, 30*time.Second, 30*time.Second)
	if n := o.NextPage(500, 3*time.Second, 0); n < 299 || n > 301 {
		t.Errorf("behind one that hung the next page has %d entities, want about 300", n)
	}
}
