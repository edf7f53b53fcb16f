package record

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestRetention checks which jobs are cleaned up automatically, and when.
func TestRetention(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for name, c := range map[string]struct {
		j       Job
		due     time.Time // zero: never
		entered bool      // whether the job has an entry in the index of automatic clean-ups
	}{
		"a job that has succeeded": {Job{State: Succeeded, Ended: rounded, Retain: month}, rounded.Add(month), true},
		"a job that was aborted":   {Job{State: Aborted, Ended: rounded, Retain: month}, rounded.Add(month), true},
		"a job that is being cleaned up": {Job{State: Succeeded, Ended: rounded, Retain: month, Cleaning: "{}"},
			rounded.Add(month), false},
		"a job that keeps its records":     {Job{State: Succeeded, Ended: rounded}, time.Time{}, false},
		"a job of a nonsensical retention": {Job{State: Succeeded, Ended: rounded, Retain: -1}, time.Time{}, false},
		"a job that was cleaned up": {Job{State: Succeeded, Ended: rounded, Retain: month, Retired: true},
			time.Time{}, false},
		"a job that runs again":          {Job{State: Running, Ended: rounded, Retain: month}, time.Time{}, false},
		"a job that is paused":           {Job{State: Paused, Ended: rounded, Retain: month}, time.Time{}, false},
		"a job of which no end is known": {Job{State: Aborted, Retain: month}, time.Time{}, false},
	} {
		c.j.Queue = "q"
		if got := c.j.DueAt(); !got.Equal(c.due) {
			t.Errorf("%s: due at %v, want %v", name, got, c.due)
		}
		never := c.due.IsZero()
		if c.j.Due(c.due.Add(-1)) || c.j.Due(c.due) == never || c.j.Due(rounded.Add(10*month)) == never {
			t.Errorf("%s: due before, then or later", name)
		}
		c.j.Update()
		if c.j.Retires != "" != c.entered {
			t.Errorf("%s: its entry is %q", name, c.j.Retires)
		}
		for _, now := range []time.Time{c.due.Add(-time.Microsecond), c.due} {
			from, to := RetiringBounds("q", now)
			if in := from <= c.j.Retires && c.j.Retires < to; in != (c.entered && now.Equal(c.due)) {
				t.Errorf("%s: listed at %v: %v", name, now, in)
			}
			if from, to := RetiringBounds("other", now); from <= c.j.Retires && c.j.Retires < to {
				t.Errorf("%s: another queue lists it", name)
			}
		}
	}
}

// TestRetired checks the error for a job whose records are deleted. If this was automatic, the
// error says when and why.
func TestRetired(t *testing.T) {
	j := &Job{State: Succeeded, Retain: 48 * time.Hour, Cleaned: true}
	if err := j.CheckRecords(); err != nil {
		t.Errorf("somebody has cleaned it up: %v", err)
	}
	if err := j.CleanedUp(); !errors.Is(err, ErrState) || strings.Contains(err.Error(), "retention") {
		t.Errorf("somebody has cleaned it up: %v", err)
	}
	j.Retire(noon)
	if !j.Retired || !j.CleanedAt.Equal(rounded) {
		t.Errorf("%+v", j)
	}
	for _, err := range []error{j.CheckRecords(), j.CleanedUp()} {
		if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "2026-11-22, as its retention of 2 days") {
			t.Errorf("its retention has cleaned it up: %v", err)
		}
	}
}

func TestDays(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Hour: "1h0m0s", 24 * time.Hour: "a day", 25 * time.Hour: "25h0m0s", 48 * time.Hour: "2 days",
		36 * time.Hour: "36h0m0s", 720 * time.Hour: "30 days", -24 * time.Hour: "-24h0m0s",
	} {
		if got := Days(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
