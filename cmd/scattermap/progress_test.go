package main

import (
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// TestProgressText checks the text of a progress whose bounds are known: they are rounded outwards.
// Unknown values are called unknown.
func TestProgressText(t *testing.T) {
	for want, p := range map[string]mapper.Progress{
		"50%; about 100 s": {FractionMin: .5, Fraction: .5, FractionMax: .5, TimeLeftMin: 99600 * time.Millisecond,
			TimeLeft: 99600 * time.Millisecond, TimeLeftMax: 99600 * time.Millisecond},
		"42%, between 30% and 61%; about 5 min, between 2 min and 3 h": {FractionMin: .301, Fraction: .42,
			FractionMax: .602,
			TimeLeftMin: 2 * time.Minute, TimeLeft: 5 * time.Minute, TimeLeftMax: 3 * time.Hour},
		"3%, between 0% and 100%; 84 s or more": {Fraction: .03, FractionMax: 1, TimeLeftMin: 84 * time.Second,
			TimeLeft: 100 * time.Hour, TimeLeftMax: -1},
		"4%, between 0% and 100%; not known": {Fraction: .04, FractionMax: 1, TimeLeft: 100 * time.Hour,
			TimeLeftMax: -1},
		"not known; not known":     {FractionMax: 1, TimeLeftMin: -1, TimeLeft: -1, TimeLeftMax: -1},
		"not known; 5 min or more": {FractionMax: 1, TimeLeftMin: 5 * time.Minute, TimeLeft: -1, TimeLeftMax: -1},
	} {
		if got := operator.Percent(p) + "; " + operator.Takes(p, ""); got != want {
			t.Errorf("%+v is %q, want %q", p, got, want)
		}
	}
	const slow = "about 6 min at the present speed"
	p := mapper.Progress{EntitiesPerSecond: 18, TimeLeftMin: 22 * time.Second, TimeLeft: 6 * time.Minute,
		TimeLeftMax: -1}
	for phase, want := range map[mapper.Phase]string{
		mapper.PhaseSlowed: slow, mapper.PhaseGivingWay: slow,
		mapper.PhaseQueued: "22 s or more", mapper.PhaseStuck: "22 s or more",
	} {
		if got := operator.Takes(p, phase); got != want {
			t.Errorf("%s: %q, want %q", phase, got, want)
		}
	}
}

// TestPlainLines shows statuses that follow each other within a second. A bottleneck that differs
// only in its numbers, such as the time since the last page, is no reason for another line.
func TestPlainLines(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	show, _ := plainLines(&out)
	for _, why := range []string{"no page was done for 59s", "no page was done for 1m0s", "no page was done for 1h2m3s",
		"the queue is paused", "the queue has 5 tasks", "the queue has 17 tasks", "an entity is tried again"} {
		show(&mapper.Status{ID: "j", State: mapper.StateRunning, Bottleneck: why})
	}
	// each attempt changes the phase from retrying to processing for a moment
	for _, phase := range []mapper.Phase{mapper.PhaseStarting, mapper.PhaseProcessing, mapper.PhaseRetrying,
		mapper.PhaseProcessing, mapper.PhaseRetrying, mapper.PhaseProcessing} {
		show(&mapper.Status{ID: "j", State: mapper.StateRunning, Phase: phase, Bottleneck: "an entity is tried again"})
	}
	if n := strings.Count(out.String(), "\n"); n != 7 {
		t.Errorf("%d lines, want 7:\n%s", n, out.String())
	}
}
