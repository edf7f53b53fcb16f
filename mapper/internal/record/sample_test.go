package record

import (
	"reflect"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestSamplePending checks what a pending range adds to a sample: its expected number of entities,
// and whether this was counted.
func TestSamplePending(t *testing.T) {
	for name, c := range map[string]struct {
		r    Range
		want Sample
	}{
		"a single entity": {Range{Alone: true}, Sample{Left: 1, LeftSquares: 1, Counted: 1}},
		"an estimate": {Range{Estimate: 5, Samples: make([]*keyspace.Position, 3)},
			Sample{Left: 5, LeftSquares: 25, Gaps: 4}},
		"a count":            {Range{Estimate: 5, Exact: true}, Sample{Left: 5, LeftSquares: 25, Counted: 5}},
		"a count of nothing": {Range{Exact: true}, Sample{}},
		"nothing is known":   {Range{}, Sample{Blind: 1}},
	} {
		s := NewSample()
		c.r.State = Pending
		s.Add(&c.r)
		if len(s.Open) != 1 || s.Open[0] != &c.r {
			t.Errorf("%s: %d are open", name, len(s.Open))
		}
		s.Open = nil
		c.want.Scale, c.want.LeftScale = 1, 1
		if !reflect.DeepEqual(*s, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *s, c.want)
		}
	}
	s := NewSample()
	s.Add(&Range{State: Pending})
	if s.CountBlind(7); s.Blind != 0 || s.Left != 7 || s.LeftSquares != 49 || s.Counted != 7 {
		t.Errorf("a range that was counted afterwards: %+v", s)
	}
}

// TestSampleDone checks what a range that is done adds to a sample.
func TestSampleDone(t *testing.T) {
	began := rounded.Add(-time.Minute)
	for name, c := range map[string]struct {
		r    Range
		want Sample
	}{
		"a page": {Range{Created: began, Processed: 3, Ran: time.Second, Yielded: 2}, Sample{Pages: 1, Done: 3,
			DoneSquares: 9, Ends: []End{{At: rounded, Entities: 3, Ran: time.Second, Yielded: 2}}}},
		"a page that its parent's delivery went on with": {Range{Created: began, Processed: 3, Continued: true},
			Sample{Pages: 1, Done: 3, DoneSquares: 9, Ends: []End{{At: rounded, Began: began, Entities: 3}}}},
		"such a page of another delivery": {Range{Created: began, Processed: 3, Continued: true, Attempts: 1},
			Sample{Pages: 1, Done: 3, DoneSquares: 9, Ends: []End{{At: rounded, Entities: 3}}}},
		"such a page that was refused": {Range{Created: began, Processed: 3, Continued: true, Refusals: 1},
			Sample{Pages: 1, Done: 3, DoneSquares: 9, Ends: []End{{At: rounded, Entities: 3}}}},
		"a page without entities": {Range{Created: began}, Sample{Pages: 1}},
		"a single entity": {Range{Created: began, Processed: 1, Alone: true},
			Sample{Pages: 1, Alone: 1, Done: 1, DoneSquares: 1, Ends: []End{{At: rounded, Entities: 1, Alone: true}}}},
		"a failure": {Range{Created: began, Alone: true, Failed: "j"},
			Sample{Failed: 1, Ends: []End{{At: rounded, Entities: 1, Alone: true, Failed: true}}}},
		"a failure at the first attempt": {Range{Created: rounded, Alone: true, Failed: "j"},
			Sample{Failed: 1, Ends: []End{{At: rounded, Entities: 1, Alone: true, Failed: true, AtOnce: true}}}},
	} {
		c.r.State, c.r.Done = Done, rounded
		s := NewSample()
		s.Add(&c.r)
		c.want.Scale, c.want.LeftScale = 1, 1
		if !reflect.DeepEqual(*s, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *s, c.want)
		}
	}
}

// TestTook checks how long a page took: as long as its delivery, or as long as the function ran if
// the delivery's start is unknown.
func TestTook(t *testing.T) {
	at := rounded
	for _, c := range []struct {
		e    End
		want time.Duration
	}{
		{End{At: at, Ran: time.Second}, time.Second},
		{End{At: at, Began: at.Add(-time.Minute), Ran: time.Second}, time.Minute},
		{End{At: at, Began: at.Add(-time.Millisecond), Ran: time.Second}, time.Second},
	} {
		if got := c.e.Took(); got != c.want {
			t.Errorf("%+v: %v", c.e, got)
		}
	}
}
