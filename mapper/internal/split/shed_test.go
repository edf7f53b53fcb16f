package split

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// TestShedRest has tasks leave what they can't do in a fair share's time to others.
func TestShedRest(t *testing.T) {
	even := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 1e-4}
	uneven := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 10e-4}
	for _, test := range []struct {
		name           string
		fair, estimate int64
		ran            time.Duration
		pace           pace.Throughput
		want           CutPlan
	}{
		{"in time", 200, 100, time.Second, even, CutPlan{}},
		{"a short rest", 200, 149, time.Second, even, CutPlan{}},
		{"a long rest", 200, 150, time.Second, even, CutPlan{Pieces: 2, Keep: 100, each: 100, ownShare: true}},
		{"a short rest, and others have time", 200, 149, time.Second, uneven, CutPlan{Pieces: 2, Keep: 100, each: 100, First: true, ownShare: true}},
		{"late already", 200, 300, time.Hour, even, CutPlan{Pieces: 2, Keep: 100, each: 100, ownShare: true}},
		{"a little late", 400, 300, 1400 * time.Millisecond, even, CutPlan{}},
		{"a little late, and others have time", 400, 300, 1400 * time.Millisecond, uneven, CutPlan{Pieces: 2, Keep: 200, each: 200, First: true, ownShare: true}},
		{"many pages a share", 401, 5000, 0, even, CutPlan{}},
		{"no share", 0, 5000, 0, even, CutPlan{}},
		{"nothing seen yet", 200, 5000, 0, pace.Throughput{}, CutPlan{}},
	} {
		s := Piece{FairShare: test.fair, Estimate: test.estimate}
		if got := s.shedRest(Task{Page: 100, Usual: 100, Ran: test.ran, Seen: test.pace}); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestShedLast has tasks share their last page that would end long after a fair share's time.
func TestShedLast(t *testing.T) {
	even := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 1e-4}
	uneven := pace.Throughput{Entities: 1000, Spent: 10 * time.Second, Squares: 1000 * 10e-4}
	halves := CutPlan{Pieces: 2, Keep: 45, each: 45, First: true, ownShare: true}
	for _, test := range []struct {
		name string
		s    Piece
		ran  time.Duration
		pace pace.Throughput
		want CutPlan
	}{
		{"in time", Piece{FairShare: 200, Estimate: 90, Exact: true}, 1433 * time.Millisecond, uneven, CutPlan{}},
		{"overdue", Piece{FairShare: 200, Estimate: 90, Exact: true}, 1434 * time.Millisecond, uneven, halves},
		{"nobody has time", Piece{FairShare: 200, Estimate: 90, Exact: true}, time.Minute, even, CutPlan{}},
		{"short", Piece{FairShare: 200, Estimate: 49, Exact: true}, time.Minute, uneven, CutPlan{}},
		{"fast", Piece{FairShare: 200, Estimate: 90, Exact: true}, time.Minute, pace.Throughput{Entities: 1000, Spent: time.Second, Squares: 1000 * 10e-6}, CutPlan{}},
		{"it is not known how short", Piece{FairShare: 200, Estimate: 90}, time.Minute, uneven, CutPlan{}},
		{"many pages a share", Piece{FairShare: 401, Estimate: 90, Exact: true}, time.Minute, uneven, CutPlan{}},
		{"no share", Piece{Estimate: 90, Exact: true}, time.Minute, uneven, CutPlan{}},
		{"nothing seen yet", Piece{FairShare: 200, Estimate: 90, Exact: true}, time.Second, pace.Throughput{}, CutPlan{}},
	} {
		if got := test.s.shedLast(Task{Page: 100, Usual: 100, Ran: test.ran, Seen: test.pace}); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestSharedByAll cuts what is left when a function turns out to be slow: between as many workers
