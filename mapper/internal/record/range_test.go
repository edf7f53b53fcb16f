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

// root returns the root range of a job over the keys [10, 20).
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

// TestChildren checks that each child is a new pending range.
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

// TestRestOfSuspects checks that the rest after a suspected page is suspected, too, and halved.
func TestRestOfSuspects(t *testing.T) {
	for _, test := range []struct {
		solo               bool
		narrowed, estimate int64
		wantSolo           bool
		want               int64
	}{
		{false, 0, 50, false, 0},
		{false, 4, 50, false, 0}, // by a commit that met others
		{true, 0, 50, false, 0},
		{true, 4, 50, true, 25},
		{true, 4, 500, true, 50}, // of a page
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
		if r.Narrow(n); r.Narrowed != want {
			t.Errorf("%d halved: %d", n, r.Narrowed)
		}
	}
}

// TestRefusalsIn checks that failed attempts are counted since the last Resume.
func TestRefusalsIn(t *testing.T) {
	r := &Range{Refusals: 3, RefusedIn: 2}
	if r.RefusalsIn(&Job{Generation: 2}) != 3 || r.RefusalsIn(&Job{Generation: 3}) != 0 {
		t.Error(r.RefusalsIn(&Job{Generation: 2}), r.RefusalsIn(&Job{Generation: 3}))
	}
}

// TestRangeTransitions takes the range of a single entity through failure, retry and end.
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

// TestOwnSamples cuts a root whose long samples are all in its own piece. Its record must become as
// small as its children's.
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
