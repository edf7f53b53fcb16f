package mapper

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
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

// TestSudden has entities become slow in the middle of a page.
func TestSudden(t *testing.T) {
	const slow = 100 * time.Millisecond
	w := &work{job: &record.Job{PageTime: int64(time.Second), Tolerant: true}, record: &record.Range{PageSize: 30}}
	if w.slowEntity() != slow {
		t.Fatalf("slow is %v, want %v", w.slowEntity(), slow)
	}
	o := new(outcome)
	each := func(n int, t, hung time.Duration) {
		for range n {
			o.reached++
			o.took(t, hung, w.slowEntity())
		}
	}
	each(400, time.Millisecond, 0)
	each(4, 3*slow, 0)
	each(1, time.Millisecond, 0)
	each(4, slow, 0)
	if w.surprising(o) {
		t.Error("four slow entities in a row are a surprise")
	}
	each(1, 2*slow, 0)
	if !w.surprising(o) {
		t.Error("five slow entities in a row are none")
	}
	o.dearest = 2 * slow
	if n := o.nextPage(500, time.Second, time.Millisecond); n != 10 {
		t.Errorf("the next page has %d entities, want 10", n)
	}
	o = new(outcome)
	each(10, time.Minute, time.Minute)
	if o.inRow > 0 {
		t.Error("entities that hung count as slow")
	}
	o = new(outcome)
	each(400, 10*time.Millisecond, 0)
	each(1, 30*time.Second, 30*time.Second)
	if n := o.nextPage(500, 3*time.Second, 0); n < 299 || n > 301 {
		t.Errorf("after one that hung the next page has %d entities, want about 300", n)
	}
}
