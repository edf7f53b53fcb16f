package split

import "testing"

// TestDecide checks when a task cuts its piece: once by a plan, and later only to give away late
// work.
func TestDecide(t *testing.T) {
	for _, test := range []struct {
		name     string
		strategy Strategy
		piece    Piece
		task     Task
		mayCut   bool
		cuts     bool
	}{
		{"a new range for several workers", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 10},
			Task{Page: 100}, true, true},
		{"what it kept, for one worker", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 1},
			Task{Divided: true, Page: 100}, false, false},
		{"what it kept, for several workers", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 10},
			Task{Divided: true, Page: 100}, true, true},
		{"what it kept is longer than it was taken for", Strategy{}, Piece{Workers: 1}, Task{Divided: true, Page: 100},
			true, true},
		{"a new range for one worker", Strategy{}, Piece{Estimate: 1000, Exact: true, Workers: 1, FairShare: 1000},
			Task{Page: 100}, true, false},
	} {
		if got := test.task.MayCut(test.piece); got != test.mayCut {
			t.Errorf("%s: may cut: %v", test.name, got)
		}
		if got := test.strategy.Decide(test.piece, test.task).Pieces; got > 1 != test.cuts {
			t.Errorf("%s: cut into %d pieces", test.name, got)
		}
	}
}

// TestBeyond checks that estimates that were too low become unknown.
func TestBeyond(t *testing.T) {
	for estimate, want := range map[int64]int64{0: 0, 99: 0, 100: 0, 101: 101} {
		if s := (Piece{Estimate: estimate, Exact: true}).Beyond(100); s.Estimate != want || s.Exact != (want > 0) {
			t.Errorf("an estimate of %d becomes %+v", estimate, s)
		}
	}
}
