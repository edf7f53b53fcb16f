package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// TestCells draws the strips of random pictures. Every cell must have the state of a range in its
// place. Every failure must have a mark. If all ranges have one state, all cells must have it.
func TestCells(t *testing.T) {
	rng := testflag.Rand(t)
	for range 500 {
		p := new(picture.Picture)
		failed := 0
		states := []picture.State{picture.Done, picture.Slow, picture.Running, picture.Pending}
		states = states[:1+rng.IntN(len(states))]
		for range 1 + rng.IntN(400) {
			r := picture.Range{State: states[rng.IntN(len(states))], Entities: rng.Int64N(1000),
				Weight: 1 + 9*rng.Float64()}
			if r.State == picture.Done || r.State == picture.Slow {
				r.Done = time.Unix(1, 0)
			}
			p.Ranges = append(p.Ranges, r)
			if rng.IntN(20) == 0 && !r.Done.IsZero() && r.Entities > 500 {
				p.Ranges = append(p.Ranges, picture.Range{State: picture.Failed, Alone: true, Entities: 1, Weight: 1,
					Done: r.Done})
				failed++
			}
		}
		cells, marks := cellsOf(p)
		seen, marked := make(map[picture.State]bool), 0
		for i, state := range cells {
			if seen[state] = true; marks[i] {
				marked++
			}
		}
		if len(cells) != miniCells || len(marks) != miniCells ||
			len(states) == 1 && (len(seen) != 1 || !seen[picture.Done]) {
			t.Fatalf("%d cells of states %v, of ranges with %v", len(cells), seen, states)
		}
		if marked > failed || failed > 0 && marked == 0 {
			t.Fatalf("%d marks of %d failures", marked, failed)
		}
		m := miniOf(p, &mapper.Status{Failures: int64(failed)})
		if !strings.Contains(m.Says, "% done") || len(m.Paths) == 0 {
			t.Fatalf("%+v", m)
		}
	}
}

// TestMiniWithoutPlaces checks the strips of jobs whose ranges are not known. A job without ranges
// and a failed job have no strip. A strip that is made from numbers alone must show even one
// failure among 100,000 entities.
func TestMiniWithoutPlaces(t *testing.T) {
	if m := miniOf(new(picture.Picture), new(mapper.Status)); m != nil {
		t.Errorf("a picture without ranges: %+v", m)
	}
	if m := countedMini(mapper.StateFailed, 100, 0); m != nil {
		t.Errorf("it is not known where a job has failed: %+v", m)
	}
	if m := countedMini(mapper.StateSucceededWithFailures, 99_999, 1); len(m.Paths) != 2 {
		t.Errorf("a failure among many is not drawn: %+v", m)
	}
}

// TestReasons checks the text that the list shows about a job in addition to its ID and state.
func TestReasons(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	for _, test := range []struct {
		row  row
		want string
	}{
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StateFailed,
			Error: "job j: range " + id + ": 403 Forbidden"}},
			"403 Forbidden"},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StateFailed,
			Error: "the page of range " + id + " is lost"}},
			"the page of a range is lost"},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StateSucceeded, UndoneBy: "undo-j"}},
			"undone, or being undone, by undo-j"},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StateSucceeded, UndoneBy: "undo-j"},
			Seen: status{Undo: &mapper.Status{State: mapper.StateRunning}}}, "by undo-j"},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StateSucceeded, UndoneBy: "undo-j"},
			Seen: status{Undo: &mapper.Status{State: mapper.StateFailed}}}, "its undo, undo-j, has failed"},
		{row{JobInfo: mapper.JobInfo{ID: "undo-j", State: mapper.StateSucceeded, NotRestored: 2}},
			"2 entities not restored"},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StatePaused}, Phase: mapper.PhaseOverBudget,
			Why: "paused by its budget of $1: the next page may cost $2"}, "paused by its budget of $1"},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StatePaused}, Why: "paused"}, ""},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StatePaused}, Why: "paused by ann"}, "paused by ann"},
		{row{JobInfo: mapper.JobInfo{ID: "j", State: mapper.StateRunning}, Progress: new(mapper.Progress)},
			"no page is done yet"},
	} {
		if got := test.row.Says(); got != test.want {
			t.Errorf("%+v: %q, want %q", test.row.JobInfo, got, test.want)
		}
	}
}
