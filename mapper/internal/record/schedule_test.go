package record

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestTicks makes sequences of decisions, and checks what a schedule then knows about each tick,
// the planned time of a run. Ticks are whole hours, and "2 queued" means that tick 2 waits.
func TestTicks(t *testing.T) {
	hour := func(n int) time.Time { return rounded.Add(time.Duration(n) * time.Hour) }
	queue := func(n int, job string) func(*Schedule) {
		return func(s *Schedule) { s.Queue(hour(n), []byte("{}"), []string{"slot"}, job) }
	}
	start := func(n int, job string) func(*Schedule) { return func(s *Schedule) { s.Start(hour(n), job) } }
	skip := func(n int, job string) func(*Schedule) { return func(s *Schedule) { s.Skip(hour(n), job) } }
	refuse := func(n int) func(*Schedule) { return func(s *Schedule) { s.Refuse(hour(n)) } }
	for name, c := range map[string]struct {
		steps []func(*Schedule)
		past  string // outcomes of the ticks 1 to 4
		last  int    // the last tick on which there was a decision
		waits int    // the tick that waits; 0: none
		run   string
	}{
		"nothing": {nil, "- - - -", 0, 0, ""},
		"a run":   {[]func(*Schedule){start(1, "a")}, "started:a - - -", 1, 0, "a"},
		"a tick is skipped": {[]func(*Schedule){start(1, "a"), skip(2, "a")}, "started:a skipped:a - -", 2, 0,
			"a"},
		"a tick waits": {[]func(*Schedule){start(1, "a"), queue(2, "a")}, "started:a queued:a - -", 2, 2, "a"},
		"a tick waits, and starts": {[]func(*Schedule){start(1, "a"), queue(2, "a"), start(2, "b")},
			"started:a started:b - -", 2, 0, "b"},
		"a tick waits, and a later one is skipped": {[]func(*Schedule){start(1, "a"), queue(2, "a"), skip(3, "a")},
			"started:a queued:a skipped:a -", 3, 2, "a"},
		"a tick waits after that, and starts": {
			[]func(*Schedule){start(1, "a"), queue(2, "a"), skip(3, "a"), start(2, "b")},
			"started:a started:b skipped:a -", 3, 0, "b"},
		"a later tick waits in its place": {[]func(*Schedule){start(1, "a"), queue(2, "a"), queue(3, "a")},
			"started:a skipped:a queued:a -", 3, 3, "a"},
		"a later tick starts in its place": {[]func(*Schedule){start(1, "a"), queue(2, "a"), start(3, "c")},
			"started:a skipped:c started:c -", 3, 0, "c"},
		"an earlier tick starts beside it": {[]func(*Schedule){queue(3, "a"), start(2, "b")},
			"- started:b queued:a -", 3, 3, "b"},
		"a tick waits, and is refused": {[]func(*Schedule){start(1, "a"), queue(2, "a"), refuse(2)},
			"started:a refused:a - -", 2, 0, "a"},
		"a decision is changed": {[]func(*Schedule){skip(1, "a"), start(1, "b")}, "started:b - - -", 1, 0, "b"},
	} {
		s := new(Schedule)
		for _, step := range c.steps {
			step(s)
		}
		var got []string
		for n := 1; n <= 4; n++ {
			past, known := s.Became(hour(n))
			switch {
			case !known:
				got = append(got, "-")
			case !past.At.Equal(hour(n)):
				t.Errorf("%s: tick %d has the time %v", name, n, past.At)
			default:
				got = append(got, past.Outcome+":"+past.Job)
			}
			if s.Has(hour(n)) != (n == c.waits) {
				t.Errorf("%s: tick %d waits: %v", name, n, s.Has(hour(n)))
			}
		}
		if text := strings.Join(got, " "); text != c.past {
			t.Errorf("%s: %s, want %s", name, text, c.past)
		}
		if last := (hour(c.last)); c.last > 0 && !s.Tick.Equal(last) || s.Run != c.run {
			t.Errorf("%s: the last tick %v, run %q", name, s.Tick, s.Run)
		}
		if c.last > 0 && s.Outcome != strings.Split(strings.Fields(c.past)[c.last-1], ":")[0] {
			t.Errorf("%s: the last outcome is %q", name, s.Outcome)
		}
		if waits := c.waits > 0; len(s.Queued) > 0 != waits || len(s.Slots) > 0 != waits || s.Waits.IsZero() == waits {
			t.Errorf("%s: %s waits for %q until %v", name, s.Queued, s.Slots, s.Waits)
		}
	}
}

// TestPastTicks checks that a schedule's record keeps the decisions on the last ticks (planned
// times of runs). The last tick must also be known if another build has decided on it.
func TestPastTicks(t *testing.T) {
	s := new(Schedule)
	for n := range 2 * mostPast {
		s.Start(rounded.Add(time.Duration(n)*time.Hour), fmt.Sprint("run-", n))
	}
	if n := len(s.past()); n != mostPast {
		t.Errorf("%d are remembered", n)
	}
	for n, want := range map[int]bool{0: false, mostPast - 1: false, mostPast: true, 2*mostPast - 1: true} {
		if past, known := s.Became(rounded.Add(time.Duration(n) * time.Hour)); known != want ||
			known && past.Job != fmt.Sprint("run-", n) {
			t.Errorf("tick %d: %+v, known %v", n, past, known)
		}
	}
	old := &Schedule{Tick: rounded, Outcome: TickSkipped, Run: "a", Past: []byte(`[{"at":5}]`)}
	if past, known := old.Became(rounded); !known || past.Outcome != TickSkipped || past.Job != "a" {
		t.Errorf("the last tick of another build: %+v, %v", past, known)
	}
	if _, known := old.Became(time.Time{}); known {
		t.Error("a tick that is unknown is known")
	}
	if old = new(Schedule); old.Has(time.Time{}) {
		t.Error("a schedule without ticks has one that waits")
	}
}
