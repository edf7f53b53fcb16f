package dashboard

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// said returns the text of a standing, with links in brackets.
func (s standing) said() string {
	var b strings.Builder
	for _, p := range s.Text {
		switch {
		case p.Range != "":
			b.WriteString(p.Text + "(" + p.Range + ")")
		case p.Job != "":
			b.WriteString("[" + p.Text + "]")
		default:
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// TestStanding checks the standings of jobs and the advice in them. The text must start with the
// last words of the badge, the short label of the job's state.
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
		"well": {mapper.Status{Phase: mapper.PhaseProcessing, Processed: 5,
			Progress: mapper.Progress{EntitiesPerSecond: 1234.4}}, nil, good, "Running at 1,234 entities/s",
			"Nothing."},
		"well, with its end": {mapper.Status{Phase: mapper.PhaseProcessing, Processed: 5,
			Progress: mapper.Progress{EntitiesPerSecond: 10, TimeLeft: 53 * time.Second}}, nil, good,
			"Running at 10 entities/s, about 53 s left", "Nothing."},
		"starting": {mapper.Status{Phase: mapper.PhaseStarting, Created: now.Add(-time.Second)}, nil, good,
			"Starting: no page is done yet", "Nothing."},
		"starting for long": {mapper.Status{Phase: mapper.PhaseStarting, Created: now.Add(-5 * time.Minute)}, nil, held,
			"Starting: no page is done yet, and it was started 5 min ago", "Wait"},
		"queued": {mapper.Status{Phase: mapper.PhaseQueued, Processed: 5, SharesQueue: []string{"a", "b"},
			Bottleneck: `its tasks wait in the queue "a", shared with the jobs a, b and ab`}, nil, held,
			`Queued: its tasks wait in the queue "a", shared with the jobs [a], [b] and ab`, "other jobs"},
		"a service": {mapper.Status{ID: "j", Phase: mapper.PhaseProcessing, Processed: 5,
			Error: "pages wait: job j: range " + id + ": refused"}, nil, held,
			"Running at 0 entities/s, with trouble: pages wait: refused (range 01234567(" + id + "))",
			"Mend the cause, and the job continues"},
		"a rate": {mapper.Status{Phase: mapper.PhaseRateLimited, Processed: 5, Bottleneck: "its rate is 5"}, nil, good,
			"Rate limited at 0 entities/s: its rate is 5", "rate limit"},
		"below its rate": {mapper.Status{Phase: mapper.PhaseProcessing, Processed: 5, Bottleneck: "its rate is 5"}, nil,
			good, "Running at 0 entities/s: its rate is 5", "Nothing."},
		"slowed": {mapper.Status{Phase: mapper.PhaseSlowed, Bottleneck: "5 a second"}, nil, held, "Slowed: 5 a second",
			"the service"},
		"retrying": {mapper.Status{Phase: mapper.PhaseRetrying, Bottleneck: "5 left"}, nil, held, "Retrying: 5 left",
			"when it is due"},
		"stuck": {mapper.Status{Phase: mapper.PhaseStuck, Error: "the queue q is paused"}, nil, trial,
			"Stuck: the queue q is paused", "Mend"},
		"finishing": {mapper.Status{Phase: mapper.PhaseFinishing, Bottleneck: "all is done"}, nil, good,
			"Finishing: all is done", "Nothing"},
		"failing": {mapper.Status{Phase: mapper.PhaseProcessing, Failures: 1,
			Settings: mapper.StartOptions{FailureLimit: 1000}}, nil, held,
			"Running at 0 entities/s. 1 entity failed. Above 1,000 failures the job pauses", "press Pause"},
		"failing, and queued": {mapper.Status{Phase: mapper.PhaseQueued, Failures: 2, Bottleneck: "it waits"}, nil,
			held, "Queued: it waits. 2 entities failed", "other jobs"},
		"paused": {mapper.Status{Phase: mapper.PhasePaused}, ann, held, "Paused by ann: lunch", "press Resume"},

		"paused by nobody known": {mapper.Status{Phase: mapper.PhasePaused}, ann[:1], held, "Paused", "Resume"},
		"draining": {mapper.Status{Phase: mapper.PhaseDraining, Bottleneck: "paused by ann; pages finish"}, ann, held,
			"Draining: paused by ann: lunch; pages finish", "Wait"},
		"draining, over budget": {mapper.Status{Phase: mapper.PhaseDraining, DollarsTotal: -1,
			Error:      "paused by its budget of $1: the next page",
			Bottleneck: "paused by its budget of $1: the next page; pages finish",
			Settings:   mapper.StartOptions{Budget: mapper.Budget{Dollars: 1}}}, nil, held,
			"Draining: paused by its budget of $1; pages finish", "uses. Enter a new budget below. Press Set budget"},
		"budget": {mapper.Status{Phase: mapper.PhaseOverBudget, Error: "paused by its budget of $1: the next page",
			Settings: mapper.StartOptions{Budget: mapper.Budget{Dollars: 1}}, Dollars: 1, DollarsTotal: 3.5,
			Progress: mapper.Progress{FractionMin: 0.4, Fraction: 0.4, FractionMax: 0.4}}, nil, held,
			"Over budget: paused by its budget of $1, at 40%", "Enter a new budget below for the rest, which may " +
				"cost $2.50. Press Set budget, and then Resume."},
		"budget that is enough": {mapper.Status{Phase: mapper.PhaseOverBudget,
			Error:    "paused by its budget of $1: the next page",
			Settings: mapper.StartOptions{Budget: mapper.Budget{Dollars: 1}}, Dollars: 1, DollarsTotal: 1.5}, nil, held,
			"Over budget: paused by its budget of $1", "To continue, press Resume. This allows $1 once more, and the " +
				"rest may cost $0.50."},
		"budget of operations": {mapper.Status{Phase: mapper.PhaseOverBudget, DollarsTotal: -1,
			Error:    "paused by its budget of 5000 operations: the next page",
			Settings: mapper.StartOptions{Budget: mapper.Budget{Operations: 5000}}}, nil, held,
			"Over budget: paused by its budget of 5000 operations, at", "Enter a new budget"},
		"new budget": {mapper.Status{Phase: mapper.PhaseOverBudget, Error: "paused by its budget of $1: the next page",
			Settings: mapper.StartOptions{Budget: mapper.Budget{Dollars: 11}}}, nil, held,
			"Over budget: paused by its budget of $1", "To continue with its new budget, $11, press Resume."},
		"too many failures": {mapper.Status{Phase: mapper.PhaseTooManyFailures, Error: "1001 failures"}, nil,
			trial, "Too many failures: 1001 failures", "Retry failures"},
		"failed": {mapper.Status{ID: "j", State: mapper.StateFailed, Error: "job j: range " + id + ": broken."}, nil,
			trial, "Failed: broken (range 01234567(" + id + "))", "Mend the cause"},
		"aborted": {mapper.Status{State: mapper.StateAborted, Written: 5}, nil, held, "Aborted", "Undo"},
		"succeeded": {mapper.Status{State: mapper.StateSucceeded, Processed: 5, Created: now,
			Ended: now.Add(2 * time.Minute)}, nil, good, "Succeeded in 2 min: 5 entities processed", "Nothing"},
		"with failures": {mapper.Status{State: mapper.StateSucceededWithFailures, Processed: 5, Failures: 2,
			Written: 5}, nil, trial, "Succeeded with failures: 2 of 7 entities failed", "If you accept the failures, " +
			"nothing. Otherwise mend the cause, and press Retry failures. To restore what the job has changed, " +
			"press Undo."},
		"with failures of a visit": {mapper.Status{State: mapper.StateSucceededWithFailures, Failures: 2,
			CleanUpAt: now}, nil, trial, "Succeeded with failures: 2 of 2 entities failed", "press Retry failures."},
		"with failures, cleaned up": {mapper.Status{State: mapper.StateSucceededWithFailures, Failures: 2,
			CleanedUp: true}, nil, trial, "Succeeded with failures: 2 of 2", "can't be retried"},
		"undone": {mapper.Status{State: mapper.StateSucceeded, Processed: 5, UndoneBy: "u"}, nil, held,
			"Succeeded: 5 entities processed. The job [u] undoes it, or has undone it", "See the page"},
		"rehearsal": {mapper.Status{State: mapper.StateSucceeded, Mapper: "rehearsal:m", Processed: 5, Written: 3}, nil,
			good, "Succeeded: the rehearsal would write 3 of 5 entities, and wrote nothing", "preview"},
		"undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(9, 0)}, nil, good,
			"Succeeded: 9 entities restored", "Nothing"},
		"half an undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(9, 1)}, nil,
			held, "Succeeded: 9 entities restored, 1 not restored", "keys and reasons"},
		"no undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(0, 60_000)}, nil,
			trial, "Succeeded, but nothing was restored: 60,000 entities were left unchanged",
			"keys and reasons"},
		"undo with failures": {mapper.Status{State: mapper.StateSucceededWithFailures, Mapper: "undo:m", Failures: 1,
			Counters: counted(9, 0)}, nil, held, "Succeeded with failures: 9 entities restored", "Retry failures"},
		"rehearsal of an undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "rehearsal:undo:m",
			Counters: counted(9, 0)}, nil, good, "Succeeded: it would restore 9 entities", "undo the job itself"},
	} {
		switch test.status.Phase {
		case "":
			test.status.Phase = mapper.PhaseEnded
		case mapper.PhaseDraining, mapper.PhasePaused, mapper.PhaseOverBudget, mapper.PhaseTooManyFailures:
			test.status.State = mapper.StatePaused
		default:
			test.status.State = mapper.StateRunning
		}
		s := &status{Status: &test.status, Error: test.status.Error, Bottleneck: test.status.Bottleneck,
			Counters: test.status.Counters}
		got := standingOf(s, test.history, now)
		if got.Tone != test.tone || !strings.HasPrefix(got.said(), test.text) ||
			!strings.Contains(got.Next, test.next) {
			t.Errorf("%s: %s %q, %q, want %s %q, %q", name, got.Tone, got.said(), got.Next, test.tone, test.text,
				test.next)
		}
		badge := operator.Standing(s.State, s.Phase)
		if says := operator.PhaseOf(s.State, s.Phase); !strings.HasPrefix(strings.ToLower(got.said()), says) ||
			!strings.HasSuffix(badge, says) ||
			badge != "queued" && !strings.HasPrefix(badge, string(s.State)) {
			t.Errorf("%s: the badge says %q, and the text %q", name, badge, got.said())
		}
	}
}

// TestUndone checks the text about a job that another job undoes. The text starts with the badge. If
// the undo has restored entities, the badge of the job's own state has no colour.
func TestUndone(t *testing.T) {
	t.Parallel()
	undo := func(restored, left int64) mapper.Status {
		return mapper.Status{ID: "u", State: mapper.StateSucceeded, Phase: mapper.PhaseEnded, Mapper: "undo:m",
			Counters: map[string]int64{"restored": restored, "left": left}}
	}
	cleaned := undo(9, 3)
	cleaned.CleanedUp = true
	again := undo(0, 3) // an earlier undo, which was aborted, has restored the others
	again.Counters["already"] = 9
	const before = "Succeeded: 5 entities processed. "
	for _, test := range []struct {
		undo             mapper.Status
		tone, text, next string
		badge, left      string
		past             bool
	}{
		{undo(9, 0), good, "Undone by the job [u]: 9 entities restored, 0 not restored", "Nothing.", "undone", "",
			true},
		{undo(9, 3), held,
			"Partly undone by the job [u]: 9 entities restored, 3 not restored. Example: /A,1: it was changed",
			"keys and reasons", "partly undone", "u", true},
		{cleaned, held, "Partly undone by the job [u]: 9 entities restored, 3 not restored", "was cleaned up",
			"partly undone", "", true},
		{undo(0, 3), trial, "Not undone by the job [u]: 3 entities were left unchanged. Example: /A,1: it was changed",
			"keys and reasons",
			"not undone", "u", false},
		{again, held, "Partly undone by the job [u]: 0 entities restored, 3 not restored, 9 already as before. " +
			"Example: /A,1: it was changed", "keys and reasons", "partly undone", "u", true},
		{mapper.Status{State: mapper.StateRunning, Phase: mapper.PhaseQueued,
			Progress: mapper.Progress{FractionMin: 0.5, Fraction: 0.5, FractionMax: 0.5}}, held,
			"Being undone by the job [u], which is queued: 50%", "Wait", "being undone", "", false},
		{mapper.Status{State: mapper.StateRunning, Phase: mapper.PhaseProcessing,
			Progress: mapper.Progress{FractionMin: 0.5, Fraction: 0.5, FractionMax: 0.5},
			Counters: map[string]int64{"removed": 1}}, held,
			"Being undone by the job [u], which is running: 50%", "Wait", "being undone", "", true},
		{mapper.Status{State: mapper.StateFailed, Phase: mapper.PhaseEnded}, trial,
			before + "The job [u], which undoes it, has failed", "See the page of the undo", "", "", false},
		{mapper.Status{State: mapper.StateAborted, Phase: mapper.PhaseEnded,
			Counters: map[string]int64{"restored": 1}}, trial,
			before + "The job [u], which undoes it, was aborted", "See the page of the undo", "", "", true},
	} {
		s := &status{Status: &mapper.Status{ID: "j", State: mapper.StateSucceeded, Phase: mapper.PhaseEnded,
			Processed: 5, UndoneBy: "u"}, Undo: &test.undo}
		if s.Left() != "" {
			s.Worst = "/A,1: it was changed"
		}
		got := standingOf(s, nil, time.Now())
		if got.Tone != test.tone || got.said() != test.text || !strings.Contains(got.Next, test.next) ||
			s.Undone() != test.badge || s.Left() != test.left || s.Past() != test.past {
			t.Errorf("%s %q, %q, %q, %q, %v, want %+v", got.Tone, got.said(), got.Next, s.Undone(), s.Left(), s.Past(),
				test)
		}
	}
}

// TestUndoneUndo checks the text about an undo that another undo undoes. The first undo has left an
// entity unchanged.
func TestUndoneUndo(t *testing.T) {
	t.Parallel()
	first := func(by string) *mapper.Status {
		return &mapper.Status{ID: "u", State: mapper.StateSucceeded, Phase: mapper.PhaseEnded, Mapper: "undo:m",
			Counters: map[string]int64{"restored": 9, "left": 1}, UndoneBy: by}
	}
	for _, test := range []struct {
		s           *status
		badge, text string
		past        bool
	}{
		{&status{Status: first("")}, "partly restored", "Succeeded: 9 entities restored, 1 not restored", true},
		{&status{Status: first("v"), Undo: &mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m",
			Counters: map[string]int64{"restored": 9}}}, "undone",
			"Undone by the job [v]: 9 entities restored, 0 not restored", true},
		{&status{Status: first("v"), Undo: &mapper.Status{State: mapper.StateAborted, Mapper: "undo:m"}}, "",
			"Succeeded: 9 entities restored, 1 not restored. The job [v], which undoes it, was aborted", false},
	} {
		if got := standingOf(test.s, nil, time.Now()); got.said() != test.text || test.s.Undone() != test.badge ||
			test.s.Past() != test.past {
			t.Errorf("%q, %q, %v, want %q, %q", test.s.Undone(), got.said(), test.s.Past(), test.badge, test.text)
		}
	}
}

// TestWorst checks that the text about a job with failures has an example of the most frequent
// cause.
func TestWorst(t *testing.T) {
	t.Parallel()
	for _, state := range []mapper.State{mapper.StateRunning, mapper.StateSucceededWithFailures} {
		s := &status{Status: &mapper.Status{ID: "j", State: state, Phase: mapper.PhaseProcessing, Failures: 2},
			Worst: "account 97 is closed."}
		got := standingOf(s, nil, time.Now())
		if !strings.Contains(got.said(), "failed. Example: account 97 is closed") {
			t.Errorf("%s: %q", state, got.said())
		}
	}
}

// TestBar checks that a progress bar is not drawn as full if the bounds of the progress are
// unknown.
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

// TestDrawnEnds checks the texts at the ends of a strip: they are the ends of the job's key space,
// even if the ranges are only a sample.
func TestDrawnEnds(t *testing.T) {
	t.Parallel()
	seen := []ranged{{Range: picture.Range{ID: "a", Entities: 5}, Start: "/A,5", End: "/A,9"}}
	for sample, want := range map[bool][2]string{true: {"the first key", "the last key"}, false: {"/A,5", "/A,9"}} {
		p := &picture.Picture{Estimated: sample, Ranges: []picture.Range{seen[0].Range}}
		if s := draw("j", p, seen, picture.ByState, mapper.Progress{}); s.First != want[0] || s.Last != want[1] {
			t.Errorf("sample %v: from %q to %q", sample, s.First, s.Last)
		}
	}
}

// TestSharesAgree checks that the percentages of a strip's legend add up to 100. Done and failed
// ranges together must have the percentage of the job's progress bar, even if they are very small.
func TestSharesAgree(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	states := []picture.State{picture.Pending, picture.Running, picture.Done, picture.Slow, picture.Failed}
	for range 200 {
		p := &picture.Picture{}
		have := make(map[bool]bool) // whether there are done ranges, and open ones
		for range 2 + rng.IntN(400) {
			r := picture.Range{State: states[rng.IntN(5)], Entities: 1 + rng.Int64N(500), Weight: 1}
			if r.State == picture.Failed {
				r.Alone, r.Entities = true, 1
			}
			if r.State != picture.Pending && r.State != picture.Running {
				r.Done = time.Unix(1, 0)
			}
			have[r.Done.IsZero()] = true
			p.Ranges = append(p.Ranges, r)
		}
		if !have[true] || !have[false] {
			continue
		}
		progress := mapper.Progress{Fraction: 0.01 + 0.98*rng.Float64()}
		classes, names := p.Classes(picture.ByState)
		shares := sharesOf(p, classes, len(names), progress)
		open := shares[0] + shares[1]
		done := shares[2] + shares[3] + shares[4] + shares[failures]
		if want := operator.Percent(progress); open+done != 100 || !strings.HasPrefix(want, fmt.Sprintf("%d%%", done)) {
			t.Fatalf("%v: %d%% are open, and %d%% done: the bar says %s", shares, open, done, want)
		}
	}
}

// TestChart checks that a chart has a separate path for the moments whose pages are unfinished, and
// a rounded number at the top of its axis.
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

// TestNextBudget checks which budget the form for a new one has at first.
func TestNextBudget(t *testing.T) {
	over := func(so, total float64) mapper.Status {
		return mapper.Status{Phase: mapper.PhaseOverBudget, Error: "paused by its budget of $1: the next page",
			Settings: mapper.StartOptions{Budget: mapper.Budget{Dollars: 1}}, Dollars: so, DollarsTotal: total}
	}
	runs := over(0.5, 9)
	runs.Phase = mapper.PhaseProcessing
	for name, c := range map[string]struct {
		s    mapper.Status
		want string
	}{
		"no budget":         {mapper.Status{DollarsTotal: 9}, ""},
		"runs":              {runs, "1"},
		"short":             {over(1, 3.51), "3.2"},
		"short by a little": {over(0.0084, 1.0306), "1.3"},
		"short by much":     {over(1, 1001), "1300"},
		"enough":            {over(1, 1.5), "1"},
		"unknown":           {over(1, -1), "1"},
	} {
		if got := (&status{Status: &c.s}).NextBudget(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
