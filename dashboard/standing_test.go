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

// said returns the text of a standing, with links to ranges in brackets.
func (s standing) said() string {
	var b strings.Builder
	for _, p := range s.Text {
		if b.WriteString(p.Text); p.Range != "" {
			b.WriteString("(" + p.Range + ")")
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
			"Nothing to do."},
		"starting": {mapper.Status{Phase: mapper.PhaseStarting, Created: now.Add(-time.Second)}, nil, good,
			"Starting: no page is done yet", "Nothing to do."},
		"starting for long": {mapper.Status{Phase: mapper.PhaseStarting, Created: now.Add(-5 * time.Minute)}, nil, held,
			"Starting: no page is done yet, and it was started 5 min ago", "unless this lasts"},
		"queued": {mapper.Status{Phase: mapper.PhaseQueued, Processed: 5, Bottleneck: "its tasks wait"}, nil, held,
			"Queued: its tasks wait", "other jobs"},
		"a service": {mapper.Status{ID: "j", Phase: mapper.PhaseProcessing, Processed: 5,
			Error: "pages wait: job j: range " + id + ": refused"}, nil, held,
			"Running at 0 entities/s, with trouble: pages wait: range 01234567(" + id + "): refused", "continues when"},
		"a rate": {mapper.Status{Phase: mapper.PhaseRateLimited, Processed: 5, Bottleneck: "its rate is 5"}, nil, good,
			"Rate limited at 0 entities/s: its rate is 5", "rate limit"},
		"below its rate": {mapper.Status{Phase: mapper.PhaseProcessing, Processed: 5, Bottleneck: "its rate is 5"}, nil,
			good, "Running at 0 entities/s: its rate is 5", "rate limit"},
		"slowed": {mapper.Status{Phase: mapper.PhaseSlowed, Bottleneck: "5 a second"}, nil, held, "Slowed: 5 a second",
			"the service"},
		"retrying": {mapper.Status{Phase: mapper.PhaseRetrying, Bottleneck: "5 left"}, nil, held, "Retrying: 5 left",
			"when they are due"},
		"stuck": {mapper.Status{Phase: mapper.PhaseStuck, Error: "the queue q is paused"}, nil, trial,
			"Stuck: the queue q is paused", "Mend"},
		"finishing": {mapper.Status{Phase: mapper.PhaseFinishing, Bottleneck: "all is done"}, nil, good,
			"Finishing: all is done", "Nothing"},
		"failing": {mapper.Status{Phase: mapper.PhaseProcessing, Failures: 1,
			Settings: mapper.StartOptions{FailureLimit: 1000}}, nil, held,
			"Running at 0 entities/s. It has 1 failure; above 1,000 it pauses", "causes"},
		"failing, and queued": {mapper.Status{Phase: mapper.PhaseQueued, Failures: 2, Bottleneck: "it waits"}, nil,
			held, "Queued: it waits. It has 2 failures", "other jobs"},
		"paused": {mapper.Status{Phase: mapper.PhasePaused}, ann, held, "Paused by ann: lunch", "Resume"},

		"paused by nobody known": {mapper.Status{Phase: mapper.PhasePaused}, ann[:1], held, "Paused", "Resume"},
		"draining": {mapper.Status{Phase: mapper.PhaseDraining, Bottleneck: "paused by ann; pages finish"}, ann, held,
			"Draining: paused by ann: lunch; pages finish", "Wait"},
		"budget": {mapper.Status{Phase: mapper.PhaseOverBudget, Error: "paused by its budget of $1"}, nil, held,
			"Over budget: paused by its budget of $1", "the same amount again"},
		"too many failures": {mapper.Status{Phase: mapper.PhaseTooManyFailures, Error: "1001 failures"}, nil,
			trial, "Too many failures: 1001 failures", "retry"},
		"failed": {mapper.Status{ID: "j", State: mapper.StateFailed, Error: "job j: range " + id + ": broken."}, nil,
			trial, "Failed: range 01234567(" + id + "): broken", "Mend the cause"},
		"aborted": {mapper.Status{State: mapper.StateAborted, Written: 5}, nil, held, "Aborted", "Undo"},
		"succeeded": {mapper.Status{State: mapper.StateSucceeded, Processed: 5, Created: now,
			Ended: now.Add(2 * time.Minute)}, nil, good, "Succeeded in 2 min: 5 entities processed", "Nothing"},
		"with failures": {mapper.Status{State: mapper.StateSucceededWithFailures, Processed: 5, Failures: 2,
			Written: 5}, nil, trial, "Succeeded with failures: 2 of 7 entities failed", "If you accept them, nothing " +
			"is left to do: the job has ended, and the failed entities are unchanged. Otherwise see their causes, " +
			"mend them, and retry the failures. Undo restores what the job has changed. Its records stay until they " +
			"are cleaned up."},
		"with failures of a visit": {mapper.Status{State: mapper.StateSucceededWithFailures, Failures: 2,
			CleanUpAt: now}, nil, trial, "Succeeded with failures: 2 of 2 entities failed", "retry the failures."},
		"with failures, cleaned up": {mapper.Status{State: mapper.StateSucceededWithFailures, Failures: 2,
			CleanedUp: true}, nil, trial, "Succeeded with failures: 2 of 2", "can't be retried"},
		"undone": {mapper.Status{State: mapper.StateSucceeded, Processed: 5, UndoneBy: "u"}, nil, held,
			"Succeeded: 5 entities processed. The job u undoes it, or has undone it", "on its page"},
		"rehearsal": {mapper.Status{State: mapper.StateSucceeded, Mapper: "rehearsal:m", Processed: 5, Written: 3}, nil,
			good, "Succeeded: the rehearsal would write 3 of 5 entities, and wrote nothing", "preview"},
		"undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(9, 0)}, nil, good,
			"Succeeded: 9 entities restored", "Nothing"},
		"half an undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(9, 1)}, nil,
			held, "Succeeded: 9 entities restored", "why"},
		"no undo": {mapper.Status{State: mapper.StateSucceeded, Mapper: "undo:m", Counters: counted(0, 60_000)}, nil,
			trial, "Succeeded, but nothing was restored: 0 entities restored", "why"},
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
			!strings.HasSuffix(badge, says) || !strings.HasPrefix(badge, string(s.State)) {
			t.Errorf("%s: the badge says %q, and the text %q", name, badge, got.said())
		}
	}
}

// TestUndone checks the text about a job that another job undoes.
func TestUndone(t *testing.T) {
	t.Parallel()
	ended := mapper.Status{State: mapper.StateSucceeded, Phase: mapper.PhaseEnded, Mapper: "undo:m",
		Counters: map[string]int64{"restored": 9}}
	left := ended
	left.Counters = map[string]int64{"restored": 9, "left": 3}
	for _, test := range []struct {
		undo             mapper.Status
		tone, text, next string
		badge            string
	}{
		{ended, good, "Undone by the job u: 9 entities restored, 0 new ones deleted, 0 not restored",
			"Nothing to do.", "undone"},
		{left, held, "Undone by the job u: 9 entities restored, 0 new ones deleted, 3 not restored",
			"why", "undone"},
		{mapper.Status{State: mapper.StateRunning, Phase: mapper.PhaseQueued,
			Progress: mapper.Progress{FractionMin: 0.5, Fraction: 0.5, FractionMax: 0.5}}, held,
			"The job u undoes it, and is queued: 50%", "Wait", "being undone"},
		{mapper.Status{State: mapper.StateFailed, Phase: mapper.PhaseEnded}, trial,
			"The job u, which undoes it, has failed", "See that job", ""},
	} {
		s := &status{Status: &mapper.Status{ID: "j", State: mapper.StateSucceeded, Phase: mapper.PhaseEnded,
			Processed: 5, UndoneBy: "u"}, Undo: &test.undo}
		got := standingOf(s, nil, time.Now())
		if want := "Succeeded: 5 entities processed. " + test.text; got.Tone != test.tone || got.said() != want ||
			!strings.Contains(got.Next, test.next) || s.Undone() != test.badge {
			t.Errorf("%s %q, %q, %q, want %s %q, %q, %q", got.Tone, got.said(), got.Next, s.Undone(), test.tone, want,
				test.next, test.badge)
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
