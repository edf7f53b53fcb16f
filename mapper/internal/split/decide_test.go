package split

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// TestDecide has tasks decide where their pieces are cut: by a plan once, and later only by what they can't
// do in time.
func TestDecide(t *testing.T) {
	slow := pace.Throughput{Entities: 1000, Spent: 10 * time.Second} // 10 ms each
	late := Task{Divided: true, Page: 100, Usual: 100, Ran: 4 * time.Second, Seen: slow}
	few := Piece{Estimate: 300, Exact: true, Workers: 1, FairShare: 400}
	for _, test := range []struct {
		name     string
		strategy Strategy
		piece    Piece
		task     Task
		mayCut   bool
		cuts     bool
	}{
		{"a new range for several workers", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 10}, Task{Page: 100, Usual: 100}, true, true},
		{"what it kept, for one worker", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 1}, Task{Divided: true, Page: 100, Usual: 100}, false, false},
		{"what it kept, for several workers", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 10}, Task{Divided: true, Page: 100, Usual: 100}, true, true},
		{"what it kept is longer than it was taken for", Strategy{}, Piece{Workers: 1}, Task{Divided: true, Page: 100, Usual: 100}, true, true},
		{"it is late", Strategy{}, few, late, false, true},
		{"another strategy sheds nothing", Strategy{First: 8, FanOut: 1}, few, late, false, false},
	} {
		if got := test.task.MayCut(test.piece); got != test.mayCut {
			t.Errorf("%s: may cut: %v", test.name, got)
		}
		if got := test.strategy.Decide(test.piece, test.task).Pieces; got > 1 != test.cuts {
			t.Errorf("%s: cut into %d pieces", test.name, got)
		}
	}
	last := late
	last.Seen.Squares = 10 // uneven times
	if got := (Strategy{}).DecideLast(Piece{Estimate: 90, Exact: true, Workers: 1, FairShare: 400}, last).Pieces; got != 2 {
		t.Errorf("the last page of a task that is late: %d pieces", got)
	}
	if got := (Strategy{}).DecideLast(Piece{Estimate: 90, Exact: true, Workers: 3, FairShare: 400}, last).Pieces; got != 0 {
		t.Errorf("the last page for several workers: %d pieces", got)
	}
}

// TestBeyond forgets estimates that were too low.
func TestBeyond(t *testing.T) {
	for estimate, want := range map[int64]int64{0: 0, 99: 0, 100: 0, 101: 101} {
		if s := (Piece{Estimate: estimate, Exact: true}).Beyond(100); s.Estimate != want || s.Exact != (want > 0) {
			t.Errorf("an estimate of %d becomes %+v", estimate, s)
		}
	}
}
