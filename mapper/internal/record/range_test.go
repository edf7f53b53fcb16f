package record

import (
	"errors"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

func at(id int64) *keyspace.Position { return keyspace.At(datastore.IDKey("K", id, nil)) }

// root returns the root range of a job, limited to the keys [10, 20).
func root() *Range {
	j := &Job{ID: "j", PageSize: 100, Created: noon, Generation: 2}
	j.Incarnate(1)
	r := j.RootRange()
	r.Start, r.End, r.EntitySize = at(10), at(20), 1000
	return r
}

func TestContains(t *testing.T) {
	r, all, one := root(), &Range{}, &Range{Alone: true, Start: at(10)}
	for id, want := range map[int64][3]bool{9: {false, true, false}, 10: {true, true, true}, 19: {true, true, false},
		20: {false, true, false}} {
		if got := [3]bool{r.Contains(at(id)), all.Contains(at(id)), one.Contains(at(id))}; got != want {
			t.Errorf("key %d: %v, want %v", id, got, want)
		}
	}
}

// TestChildren checks that each child is a new pending range with an ID of its own.
func TestChildren(t *testing.T) {
	r := root()
	r.Kind, r.RefusedIn = "K", 2
	piece := split.Piece{Start: at(15), End: at(20), Estimate: 5, Exact: true, Workers: 3, FairShare: 2,
		Space: keyspace.Space{Kind: "K"}}
	a, b := r.Child(piece, noon), r.Child(piece, noon)
	c := r.AloneChild(at(12), 2, true, noon)
	for i, child := range []*Range{a, b, c} {
		if child.ID != RangeID(r.ID, int64(i)) || child.State != Pending || child.Open != "j" ||
			child.Ref() != r.Ref() || child.Depth != 1 || child.PageSize != 100 || child.EntitySize != 1000 {
			t.Errorf("child %d: %+v", i, child)
		}
	}
	if r.Children != 3 || a.Piece().Workers != 3 || a.Piece().FairShare != 2 || !a.Exact || a.Space() != r.Space() ||
		a.Solo || b.Solo {
		t.Errorf("%d children, %+v, %+v", r.Children, a, b)
	}
	if !c.Alone || c.Refusals != 2 || c.RefusedIn != 2 || !c.Solo || c.Kind != "K" || !c.Contains(at(12)) {
		t.Errorf("%+v", c)
	}
}

// TestRestOfSuspects checks the rest of a range after a page that may have killed its process. The
// rest is also suspected, and its pages are half as large.
func TestRestOfSuspects(t *testing.T) {
	for _, test := range []struct {
		solo               bool
		narrowed, estimate int64
		wantSolo           bool
		want               int64
	}{
		{false, 0, 50, false, 0},
		{false, 4, 50, false, 0}, // halved after conflicts, but not suspected
		{true, 0, 50, false, 0},
		{true, 4, 50, true, 25},
		{true, 4, 500, true, 50}, // a suspected page
		{true, 1, 1, true, 1},
	} {
		r := root()
		r.Solo, r.Narrowed, r.Estimate = test.solo, test.narrowed, test.estimate
		if c := r.rest(Outcome{Next: at(15)}, noon); c.Solo != test.wantSolo ||
			c.Narrowed != test.want {
			t.Errorf("%+v: solo %v, %d", test, c.Solo, c.Narrowed)
		}
	}
}

func TestPageLimit(t *testing.T) {
	for _, test := range []struct {
		r               Range
		limit, expected int
	}{
		{Range{PageSize: 100}, 100, 100},
		{Range{PageSize: 100, Estimate: 30}, 100, 30},
		{Range{PageSize: 100, Estimate: 300}, 100, 100},
		{Range{PageSize: 100, Narrowed: 7, Estimate: 30}, 7, 7},
		{Range{PageSize: 100, Alone: true}, 1, 1},
	} {
		if test.r.PageLimit() != test.limit || test.r.Expected() != test.expected {
			t.Errorf("%+v: %d, %d", test.r, test.r.PageLimit(), test.r.Expected())
		}
	}
	var r Range
	for n, want := range map[int]int64{100: 50, 3: 1, 1: 1, 0: 1} {
		if r.Halve(n); r.Narrowed != want {
			t.Errorf("%d halved: %d", n, r.Narrowed)
		}
	}
}

// TestRefusalsIn checks that only failed attempts since the last Resume count.
func TestRefusalsIn(t *testing.T) {
	r := &Range{Refusals: 3, RefusedIn: 2}
	if r.RefusalsIn(&Job{Generation: 2}) != 3 || r.RefusalsIn(&Job{Generation: 3}) != 0 {
		t.Error(r.RefusalsIn(&Job{Generation: 2}), r.RefusalsIn(&Job{Generation: 3}))
	}
}

// TestRangeTransitions lets the range of a single entity fail, be retried and end.
func TestRangeTransitions(t *testing.T) {
	r := root().AloneChild(at(12), 4, false, noon)
	r.Begun, r.SeenTask, r.Deaths, r.DeathsCountAt, r.Samples = "d", "t", []string{"d"}, []time.Time{noon},
		[]*keyspace.Position{at(13)}
	r.Fail(errors.New("no"), noon.Add(time.Hour))
	if r.State != Done || r.Open != "" || r.Failed != "j" || r.Error != "no" || r.Begun != "" || r.SeenTask != "" ||
		r.Entities != 1 || r.Samples != nil || len(r.Seal) == 0 || !r.Done.Equal(noon.Add(time.Hour)) {
		t.Errorf("it has failed: %+v", r)
	}
	seal := string(r.Seal)
	r.Reopen(noon.Add(2 * time.Hour))
	if r.State != Pending || r.Open != "j" || r.Failed != "" || r.Error != "" || r.Entities != 0 || r.Keys != nil ||
		r.Seal != nil || r.Refusals != 0 || r.Deaths != nil || r.Generation != 1 || !r.Done.IsZero() {
		t.Errorf("it is opened: %+v", r)
	}
	r.Processed, r.Entities = 1, 1
	r.Finish(noon.Add(3 * time.Hour))
	if r.State != Done || r.Open != "" || r.Failed != "" || string(r.Seal) == seal {
		t.Errorf("it is done: %+v", r)
	}
}

// TestOwnSamples cuts a root whose samples are large and all in the root's own piece. The root's
// record must not become larger than a child's.
func TestOwnSamples(t *testing.T) {
	var samples []*keyspace.Position
	for i := range 1600 {
		samples = append(samples,
			keyspace.At(datastore.NameKey("K", string(rune('A'+i))+strings.Repeat("x", 1200), nil)))
	}
	r := &Range{Job: "j", ID: RangeID("j", 0)}
	pieces := []split.Piece{{Samples: samples, End: samples[len(samples)-1]}, {Start: samples[len(samples)-1]}}
	if n := len(r.Divide(pieces, 500, false, noon)); n != 1 {
		t.Fatalf("%d children", n)
	}
	if size := r.Size(); len(r.Samples) < 20 || size > split.MaxSampleBytes+4<<10 {
		t.Errorf("%d samples in a record of %d bytes", len(r.Samples), size)
	}
}

// TestChildPace checks that a child far from its parent's page does not get the time per entity
// that was measured on this page.
func TestChildPace(t *testing.T) {
	r := root()
	r.Pace = time.Second
	if near, far := r.Child(split.Piece{}, noon), r.Child(split.Piece{Far: true}, noon); near.Pace != time.Second ||
		far.Pace != 0 {
		t.Errorf("near %v, far %v", near.Pace, far.Pace)
	}
}

// TestDue checks that a task is due when its range was made, or at NotBefore if that is later.
func TestDue(t *testing.T) {
	for _, c := range []struct{ wait, want time.Duration }{{-time.Hour, 0}, {0, 0}, {time.Hour, time.Hour}} {
		r := &Range{Created: noon, NotBefore: noon.Add(c.wait)}
		if got := r.Due().Sub(noon); got != c.want {
			t.Errorf("it waits %v: due after %v", c.wait, got)
		}
	}
}

// TestRefuse checks when the next attempt is due. It also checks that, after the last attempt, a
// Resume gives all attempts again.
func TestRefuse(t *testing.T) {
	j := &Job{Generation: 2, AttemptSettings: AttemptSettings{Attempts: 3, BackoffFirst: int64(time.Second),
		BackoffMax: int64(time.Hour)}}
	for _, test := range []struct {
		name     string
		r        Range
		delay    time.Duration
		final    bool
		refusals int64
		after    time.Duration // 0: due immediately
		last     bool
	}{
		{"the first attempt", Range{LaterFrom: noon}, 0, false, 1, time.Second, false},
		{"an attempt that asks for time", Range{}, time.Minute, false, 1, time.Minute, false},
		{"an attempt that asks for less than the back-off", Range{}, time.Millisecond, false, 1, time.Second, false},
		{"the second attempt", Range{Refusals: 1, RefusedIn: 2}, 0, false, 2, 4 * time.Second, false},
		{"the last attempt", Range{Refusals: 2, RefusedIn: 2}, time.Minute, false, 0, 0, true},
		{"the first attempt after a resume", Range{Refusals: 2, RefusedIn: 1}, 0, false, 1, time.Second, false},
		{"a final error", Range{}, time.Minute, true, 0, 0, true},
	} {
		r := test.r
		r.Generation = 7
		last := r.Refuse(j, test.delay, test.final, noon)
		due := time.Time{}
		if test.after > 0 {
			due = rounded.Add(test.after)
		}
		if last != test.last || r.Refusals != test.refusals || r.RefusedIn != 2 || !r.NotBefore.Equal(due) ||
			!r.LaterFrom.IsZero() || r.Generation != 8 {
			t.Errorf("%s: last %v, %+v", test.name, last, r)
		}
	}
}

// TestLater checks that a service may answer "later" for an hour, counted from the first such
// answer.
func TestLater(t *testing.T) {
	r := new(Range)
	if r.Impatient(noon) {
		t.Error("it is impatient before the first answer")
	}
	for i, c := range []struct {
		after     time.Duration
		impatient bool
	}{{0, false}, {longestOutage - 1, false}, {longestOutage, true}, {2 * longestOutage, true}} {
		now := rounded.Add(c.after)
		if r.Later(time.Minute, now); !r.LaterFrom.Equal(rounded) || r.Impatient(now) != c.impatient ||
			!r.NotBefore.Equal(now.Add(time.Minute).Truncate(time.Microsecond)) || r.Generation != int64(i+1) ||
			r.Refusals != 0 {
			t.Errorf("after %v: %+v", c.after, r)
		}
	}
	r = new(Range)
	if r.Later(0, noon); !r.LaterFrom.Equal(rounded) || !r.NotBefore.Equal(rounded) { // rounded as in the database
		t.Errorf("%+v", r)
	}
}

// TestPostpone checks that the next task is due when all deaths are certain, and in ten seconds at
// the earliest. It also checks that the calling delivery's crash mark ([CrashMark]) is removed.
func TestPostpone(t *testing.T) {
	for name, c := range map[string]struct {
		deaths []time.Time
		want   time.Time
	}{
		"deaths that count":        {[]time.Time{noon.Add(-time.Hour)}, rounded.Add(10 * time.Second)},
		"a death that soon counts": {[]time.Time{noon.Add(time.Second)}, rounded.Add(10 * time.Second)},
		"deaths that count later": {[]time.Time{rounded.Add(time.Minute), rounded.Add(time.Second)},
			rounded.Add(time.Minute)},
	} {
		r := &Range{Suspicion: Suspicion{Begun: "d", BegunAt: noon, SeenTask: "t", DeathsCountAt: c.deaths}}
		r.Postpone(noon)
		if !r.NotBefore.Equal(c.want) || r.Generation != 1 || r.Begun != "" || r.SeenTask != "" || !r.BegunAt.IsZero() {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestClone checks that changing a copy does not change the original.
func TestClone(t *testing.T) {
	r := &Range{Suspicion: Suspicion{Deaths: []string{"a", "b"}, DeathsCountAt: []time.Time{noon, rounded}}}
	c := r.Clone()
	c.Alive("a")
	if len(c.Deaths) != 1 || r.Deaths[0] != "a" || r.Deaths[1] != "b" || !r.DeathsCountAt[0].Equal(noon) {
		t.Errorf("%+v", r)
	}
}
