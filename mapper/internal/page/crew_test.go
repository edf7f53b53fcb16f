package page

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
)

// crewOf returns a crew over the entities 1 to 9, whose first entity has written the entity 100.
func crewOf(mode function.Mode) *crew {
	p := over(kindOf(idsTo(9)...), mode, func(*call) error { return nil }, idsTo(9)...)
	o := new(Results)
	o.add(result{at: p.At[0], effect: effectOf(write{id: 100})})
	now := time.Now()
	return &crew{page: p, results: o, begun: now, at: now, atOnce: 5, batch: 6, ended: make(chan *turn, 1)}
}

// turnOf returns an ended call for the entities at the given places. Its results have 11 bytes
// each. Calls at the places in stale have read the entity 100 before it was written.
func (w *crew) turnOf(stale string, places ...int) *turn {
	t := &turn{group: group{pass: new(pace.Pass)}, done: true}
	for _, place := range places {
		h := &hand{place: place, r: result{at: w.page.At[place], effect: &function.Effect{Bytes: 10}, bytes: 1}}
		h.view = &view{outcome: w.results, place: place}
		if strings.Contains(stale, fmt.Sprint(place)) {
			h.view.reads = []reading{{keyOf(100).Encode(), -1}}
		}
		t.all = append(t.all, h)
	}
	t.hands = t.all
	return t
}

// TestRerun checks on which entities the function runs again together, after an earlier entity's
// call has written what they have read. The maximum number of calls and of entities in a call must
// be halved, and also apply to the call that waits for its start.
func TestRerun(t *testing.T) {
	for _, c := range []struct {
		name  string
		stale string // places of the entities that have read what was written afterwards
		from  int    // the place of the first entity whose result is not added yet
		end   int    // the place before which the page ends; 0: none
		batch int
		want  string // the places of the calls whose results are added next
	}{
		{"one", "1", 1, 0, 6, "[1] [2 3 4 5 6] [7]"},
		{"one amid the call", "3", 3, 0, 6, "[3] [4 5 6] [7]"},
		{"two that are not neighbors", "13", 1, 0, 6, "[1] [2 3 4 5 6] [7]"},
		{"neighbors", "123", 1, 0, 8, "[1 2 3] [4 5 6] [7]"},
		{"more than a call may have", "123456", 1, 0, 6, "[1 2 3] [4 5 6] [7]"},
		{"all", "123456", 1, 0, 12, "[1 2 3 4 5 6] [7]"},
		{"the last ones", "56", 5, 0, 12, "[5 6] [7]"},
		{"the page ends before one of them", "1234", 1, 3, 12, "[1 2] [3 4 5 6] [7]"},
		{"calls have one entity", "12", 1, 0, 1, "[1] [2 3 4 5 6] [7]"},
	} {
		w := crewOf(function.Update)
		of := w.turnOf(c.stale, 1, 2, 3, 4, 5, 6)
		if c.end > 0 {
			of.end = of.all[c.end-1]
		}
		w.turns, w.batch, w.bytes, w.next = []*turn{of, w.turnOf("", 7)}, c.batch, 1000, w.turnOf("", 8)
		w.rerun(of, c.from-1)
		var got []string
		for _, next := range w.turns {
			var places []int
			for _, h := range next.all {
				places = append(places, h.place)
			}
			if len(places) > 0 {
				got = append(got, fmt.Sprint(places))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
		again := w.turns[0]
		if w.again != again || len(again.hands) != len(again.all) || !again.reran || again.done {
			t.Errorf("%s: the next call is %+v", c.name, w.again)
		}
		if rest := w.turns[1]; rest.end != of.end || !rest.done {
			t.Errorf("%s: the rest is %+v", c.name, rest)
		}
		if w.atOnce != 2 || w.batch != max(1, c.batch/2) || w.next != nil || w.bytes != 1000-11*len(again.all) {
			t.Errorf("%s: %d calls at once, of %d entities, next %+v; %d bytes wait", c.name, w.atOnce, w.batch,
				w.next, w.bytes)
		}
	}
}

// TestRerunEnds checks when the page ends before an entity on which the function must run again.
func TestRerunEnds(t *testing.T) {
	for _, c := range []struct {
		name  string
		spent time.Duration // of a page that may take at most 20 s
		ends  bool          // whether the process drains
		want  bool
	}{
		{"there is time", 20*time.Second - 1, false, false},
		{"its time is over", 20 * time.Second, false, true},
		{"its process drains", 0, true, true},
	} {
		w := crewOf(function.Update)
		w.results.Spent, w.page.Ends = c.spent, func() bool { return c.ends }
		of := w.turnOf("1", 1)
		w.turns = []*turn{of}
		if w.rerun(of, 0); w.over != c.want || w.cut != c.want || (w.again == nil) != c.want {
			t.Errorf("%s: over %v, cut %v, again %+v", c.name, w.over, w.cut, w.again)
		}
	}
}

// TestFinish checks after which calls no further call may start (over), and which results are not
// added any more (cut). The results of the call must count as bytes in memory.
func TestFinish(t *testing.T) {
	visit, update := function.Visit, function.Update
	for _, c := range []struct {
		name      string
		mode      function.Mode
		over      bool // whether no further call could start before
		left      error
		panicked  any
		ends      bool
		entities  int
		want, cut bool
		bytes     int
	}{
		{name: "it has succeeded", mode: update, entities: 1, bytes: 11},
		{name: "it has succeeded, and another one has ended the page", mode: update, over: true, entities: 2,
			want: true, bytes: 22},
		{name: "it ends the page", mode: update, ends: true, entities: 2, want: true, bytes: 22},
		{name: "a visit times out", mode: visit, left: function.ErrTimeout, entities: 1},
		{name: "a visit times out, and another one has ended the page", mode: visit, over: true,
			left: function.ErrTimeout, entities: 1, want: true},
		{name: "an update times out", mode: update, left: function.ErrTimeout, entities: 1, want: true},
		{name: "it ends its goroutine", mode: update, left: errBad, entities: 1},
		{name: "a batch ends its goroutine", mode: update, left: errBad, entities: 2, want: true, bytes: 22},
		{name: "a batch of a visit times out", mode: visit, left: function.ErrTimeout, entities: 2, want: true,
			bytes: 22},
		{name: "the page's own code panics", mode: update, panicked: "ouch", entities: 1, want: true, cut: true},
	} {
		w := crewOf(c.mode)
		of := w.turnOf("", []int{3, 4}[:c.entities]...)
		if w.over, w.running, of.left, of.panicked = c.over, 1, c.left, c.panicked; c.ends {
			of.end = of.all[0]
		}
		if w.finish(of); w.over != c.want || w.cut != c.cut || w.bytes != c.bytes || w.running != 0 {
			t.Errorf("%s: over %v, cut %v, %d bytes, %d running", c.name, w.over, w.cut, w.bytes, w.running)
		}
		if w.panicked != c.panicked {
			t.Errorf("%s: it panics with %v", c.name, w.panicked)
		}
	}
}

// TestStartTicks checks that the time before the start of a call is shared by the calls that ran in
// it, and not by the new one.
func TestStartTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crewOf(function.Visit)
		w.running = 2
		time.Sleep(4 * time.Second)
		of := w.turnOf("", 1)
		w.start(t.Context(), of)
		if of.from != time.Now() || of.clock != 2*time.Second || w.running != 3 {
			t.Errorf("it has started at %v, with the clock at %v, as one of %d", of.from, of.clock, w.running)
		}
		<-w.ended
	})
}

// TestAsksBrakeInTime checks that the page asks its brake (pace.Brake) even if the job's rate
// allows the call at just this moment.
func TestAsksBrakeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := crewOf(function.Visit)
		braked(w.page, true, 5)
		w.page.Begin, w.page.Pause = time.Now(), time.Minute
		if wait, err := w.mayBegin(0); wait == 0 || err != nil {
			t.Errorf("it waits %v, %v", wait, err)
		}
	})
}

// TestStale checks that the function does not run again on an entity whose call has timed out,
// because that call may still run.
func TestStale(t *testing.T) {
	for _, left := range []error{nil, errBad, function.ErrTimeout} {
		w := crewOf(function.Update)
		of := w.turnOf("2", 2)
		of.left = left
		if got := w.stale(of, of.all[0]); got == errors.Is(left, function.ErrTimeout) {
			t.Errorf("after %v: %v", left, got)
		}
	}
}
