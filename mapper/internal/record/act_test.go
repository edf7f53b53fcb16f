package record

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestActs checks that a history keeps its last hundred entries, or fewer if they would take more
// than 64 KiB.
func TestActs(t *testing.T) {
	var h History
	for i := range 10_000 {
		h = h.With(Act{At: time.Unix(int64(i), 0), What: "paused", By: "ann", Why: fmt.Sprint(i), To: Running})
	}
	acts, err := h.Acts()
	if err != nil || len(acts) != 100 || acts[0].Why != "9900" || acts[99].Why != "9999" || acts[99].To != Running {
		t.Errorf("%d acts, %v: %+v", len(acts), err, acts)
	}
	for range 200 {
		h = h.With(Act{What: "paused", By: strings.Repeat("<", 200), Why: strings.Repeat("\x00", 500)})
	}
	if acts, err := h.Acts(); err != nil || len(acts) < 10 || len(h) > maxActBytes {
		t.Errorf("%d acts in %d bytes, %v", len(acts), len(h), err)
	}
	h = History("?")
	h = h.With(Act{What: "resumed"})
	if acts, err := h.Acts(); err != nil || len(acts) != 1 {
		t.Errorf("after a history that can't be read: %+v, %v", acts, err)
	}
}

// TestActsBound checks that a history drops an old entry only if it would otherwise have more than
// 64 KiB.
func TestActsBound(t *testing.T) {
	if acts, err := History(nil).Acts(); acts != nil || err != nil {
		t.Errorf("an empty history: %v, %v", acts, err)
	}
	h := History(nil).With(Act{What: "paused"}).With(Act{What: "resumed", Why: "x"})
	room := strings.Repeat("x", maxActBytes-len(h)+1)
	for more, want := range map[string]int{"": 2, "x": 1} {
		h := History(nil).With(Act{What: "paused"}).With(Act{What: "resumed", Why: room + more})
		if acts, err := h.Acts(); err != nil || len(acts) != want || acts[want-1].What != "resumed" {
			t.Errorf("%d acts in %d bytes, %v", len(acts), len(h), err)
		}
	}
	at := time.Date(2026, 11, 22, 12, 0, 0, 1234, time.FixedZone("", 3600))
	if acts, err := History(nil).With(Act{At: at}).Acts(); err != nil || acts[0].At.Location() != time.UTC ||
		!acts[0].At.Equal(at.Truncate(time.Microsecond)) {
		t.Errorf("the time of an act: %v, %v", acts, err)
	}
}

// TestNoteEnd checks the history's entry for the end of a job. A job that fails twice has two such
// entries.
func TestNoteEnd(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	j := Job{History: History(nil).With(Act{At: at, What: "started", By: "ann", To: Running})}
	j.Fail("the table is read-only", false, at.Add(time.Minute))
	j.NoteEnd()
	if err := j.Succeed(Totals{Failures: 1}, at.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	j.NoteEnd()
	got, err := j.History.Acts()
	want := []Act{
		{At: at, What: "started", By: "ann", To: Running},
		{At: at.Add(time.Minute), What: "failed", Why: "the table is read-only", To: Failed},
		{At: at.Add(time.Hour), What: "succeeded with failures", To: SucceededWithFailures},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}
