package dashboard

import (
	"strings"
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// said returns the text of a standing, with the ranges that it names in brackets.
func (s standing) said() string {
	var b strings.Builder
	for _, p := range s.Text {
		if b.WriteString(p.Text); p.Range != "" {
			b.WriteString("(" + p.Range + ")")
		}
	}
	return b.String()
}

// TestStanding checks how jobs are said to stand, and what to do.
func TestStanding(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	const id = "0123456789abcdef0123456789abcdef"
	ann := []mapper.HistoryEntry{{State: mapper.StateRunning, By: "ben"},
		{State: mapper.StatePaused, By: "ann", Reason: "lunch"}}
	counted := func(restored, left int64) map[string]int64 {
		return map[string]int64{"restored": restored, "left": left}
	}
	for name, test := range map[string]struct {
		status  mapper.Status
		history []mapper.HistoryEntry
		tone    string
		text    string
		next    string
	}{
		"well": {mapper.Status{State: mapper.StateRunning, Processed: 5,
			Progress: mapper.Progress{EntitiesPerSecond: 1234.4}}, nil, good, "Running well at 1,234 entities/s",
			"Nothing to do."},
		"starting": {mapper.Status{State: mapper.StateRunning, Created: now.Add(-time.Second)}, nil, good,
			"Starting: no page is done yet", "Nothing to do."},
		"waiting": {mapper.Status{State: mapper.StateRunning, Created: now.Add(-5 * time.Minute)}, nil, held,
			"Waiting: it started 5 min ago, and no page is done yet", "queue"},
		"queued": {mapper.Status{State: mapper.StateRunning, Phase: mapper.PhaseQueued, Processed: 5,
			Bottleneck: "its tasks wait"}, nil, held, "Queued: its tasks wait", "other jobs"},
		"waiting with a reason": {mapper.Status{State: mapper.StateRunning, Bottleneck: "its tasks wait in the queue"},
			nil, held, "Running, no page is done yet: its tasks wait in the queue", ""},
		"a service": {mapper.Status{ID: "j", State: mapper.StateRunning, Processed: 5,
			Error: "pages wait: job j: range " + id + ": refused"}, nil, held,
			"Running, but held up: pages wait: range 01234567(" + id + "): refused", "continues when"},
		"a rate": {mapper.Status{State: mapper.StateRunning, Processed: 5, Bottleneck: "its rate is 5"}, nil, good,
			"Running at 0 entities/s: its rate is 5", "rate limit"},
		"failing": {mapper.Status{State: mapper.StateRunning, Failures: 1,
			Settings: mapper.StartOptions{FailureLimit: 1000}}, nil, trial,
			"Running, with 1 failure; above 1,000 it pauses", "causes"},
		"paused": {mapper.Status{State: mapper.StatePaused}, ann, held, "Paused by ann: lunch", "Resume"},
		"paused by nobody known": {mapper.Status{State: mapper.StatePaused}, ann[:1], held, "Paused",
			"Resume"},
		"budget": {mapper.Status{State: mapper.StatePaused, Error: "paused by its budget of $1",
			Settings: mapper.StartOptions{Budget: mapper.Budget{Dollars: 1}}}, nil, trial,
			"Paused by a limit: its budget of $1", "spend the same amount again"},
		"too many failures": {mapper.Status{State: mapper.StatePaused, Limited: true, Error: "1001 failures"}, nil,
			trial, "Paused by a limit: 1001 failures", "retry"},
		"failed": {mapper.Status{ID: "j", State: mapper.StateFailed, Error: "job j: range " + id + ": broken."}, nil,
			trial, "Failed: range 01234567(" + id + "): broken", "Mend the cause"},
		"aborted": {mapper.Status{State: mapper.StateAborted, Written: 5}, nil, held, "Aborted", "Undo"},
		"succeeded": {mapper.Status{State: mapper.StateSucceeded, Processed: 5, Created: now,
			Ended: now.Add(2 * time.Minute)}, nil, good, "Succeeded in 2 min: 5 entities processed", "Nothing"},
		"with failures": {mapper.Status{State: mapper.StateSucceededWithFailures, Processed: 5, Failures: 2}, nil,
			trial, "Ended, but 2 entities failed, of 7", "retry"},
		"undone": {mapper.Status{State: mapper.StateSucceeded, Processed: 5, UndoneBy: "u"}, nil, held,
			"The job u undoes it, or has undone it. Before that: succeeded: 5 entities processed", "on its page"},
		"rehearsal": {mapper.Status{State: mapper.StateSucceeded, Mapper: "rehearsal:m", Processed: 5, Written: 3}, nil,
			good, "Rehearsed: it would write 3 of 5 entities, and wrote nothing", "preview"},
		"undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(9, 0)}, nil, good,
			"9 entities restored", "Nothing"},
		"half an undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(9, 1)}, nil,
			held, "9 entities restored", "why"},
		"no undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(0, 60_000)}, nil,
			trial, "Nothing was restored: 0 entities restored", "why"},
		"rehearsal of an undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "rehearsal:undo:m",
			Counters: counted(9, 0)}, nil, good, "It would restore 9 entities", "undo the job itself"},
	} {
		s := &status{Status: &test.status, Error: test.status.Error, Bottleneck: test.status.Bottleneck,
			Counters: test.status.Counters}
		got := standingOf(s, test.history, now)
		if got.Tone != test.tone || !strings.HasPrefix(got.said(), test.text) ||
			!strings.Contains(got.Next, test.next) {
			t.Errorf("%s: %s %q, %q, want %s %q, %q", name, got.Tone, got.said(), got.Next, test.tone, test.text,
				test.next)
		}
	}
}

// TestBar checks that a bar whose bounds say nothing is not drawn as if it were full.
func TestBar(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		p       mapper.Progress
		unknown bool
		says    string
	}{
		{mapper.Progress{FractionMax: 1}, true, "progress not known yet"},
		{mapper.Progress{Fraction: 0.3, FractionMax: 1}, true, "about 30%, not well known yet"},
		{mapper.Progress{FractionMin: 0.2, Fraction: 0.3, FractionMax: 0.4}, false, "30%, between 20% and 40%"},
		{mapper.Progress{FractionMin: 1, Fraction: 1, FractionMax: 1}, false, "100%"},
	} {
		if b := barOf(test.p); b.Unknown != test.unknown || b.Says != test.says {
			t.Errorf("%+v: %+v", test.p, b)
		}
	}
}

// TestDrawnEnds checks that a strip has the ends of its job, also if its ranges are a sample.
func TestDrawnEnds(t *testing.T) {
	t.Parallel()
	seen := []ranged{{Range: picture.Range{ID: "a", Entities: 5}, Start: "/A,5", End: "/A,9"}}
	for sample, want := range map[bool][2]string{true: {"the first key", "the last key"}, false: {"/A,5", "/A,9"}} {
		p := &picture.Picture{Estimated: sample, Ranges: []picture.Range{seen[0].Range}}
		if s := draw("j", p, seen, picture.ByState); s.First != want[0] || s.Last != want[1] {
			t.Errorf("sample %v: from %q to %q", sample, s.First, s.Last)
		}
	}
}

// TestChart draws the time in which pages are in flight apart, and rounds its axis.
func TestChart(t *testing.T) {
	t.Parallel()
	var all []picture.Moment
	for i := range 4 {
		all = append(all, picture.Moment{From: time.Unix(int64(i), 0), Rate: 300 + float64(i), Partial: i == 3})
	}
	rate := func(m picture.Moment) float64 { return m.Rate }
	if c := chartOf(all, rate); c.Top != "400" || !strings.HasPrefix(c.Path, "M0 90") || !strings.HasSuffix(c.Path,
		"H450V90Z") || !strings.HasPrefix(c.Partial, "M450 90") || c.Says != "at most 303, 301 on average" ||
		c.To != "4.00 s" {
		t.Errorf("%+v", c)
	}
	if c := chartOf(nil, rate); c.Path != "" || c.Partial != "" || c.Top != "1.0" {
		t.Errorf("nothing: %+v", c)
	}
}
