package undo

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestMoments checks at which times an undo looks whether a deleted entity existed again.
func TestMoments(t *testing.T) {
	for _, c := range []struct {
		name           string
		commit, ended  time.Duration // how long ago; ended 0: the job has not ended
		exact, minutes []time.Duration
	}{
		{"the end, and the middle since", 40 * time.Minute, 30 * time.Minute,
			[]time.Duration{30 * time.Minute, 15 * time.Minute}, nil},
		{"the job has not ended", 40 * time.Minute, 0, []time.Duration{20 * time.Minute}, nil},
		{"it has ended before the commit, by the clock of another process", 40 * time.Minute, 41 * time.Minute,
			[]time.Duration{20 * time.Minute}, nil},
		{"it ends in the future, by the clock of another process", 40 * time.Minute, -time.Minute,
			[]time.Duration{20 * time.Minute}, nil},
		{"it ended when the page was committed", 40 * time.Minute, 40 * time.Minute,
			[]time.Duration{20 * time.Minute}, nil},
		{"every microsecond of the middle is kept", 200 * time.Minute, 118 * time.Minute,
			[]time.Duration{59 * time.Minute}, []time.Duration{118 * time.Minute, 117 * time.Minute}},
		{"only minutes are", 200 * time.Minute, 118*time.Minute + 2*time.Microsecond, nil,
			[]time.Duration{119 * time.Minute, 118 * time.Minute, 60 * time.Minute, 59 * time.Minute}},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(24 * time.Hour) // virtual time starts at a whole minute
			u := undoer{history: newHistory()}
			u.history.job = new(record.Job)
			now := time.Now()
			if c.ended != 0 {
				u.history.job.Ended = now.Add(-c.ended)
			}
			looks, err := moments(t.Context(), past{u}, commit{at: now.Add(-c.commit)})
			if err != nil {
				t.Fatal(err)
			}
			var want []time.Time
			for _, d := range append(c.minutes, c.exact...) { // times longer ago are truncated to minutes
				want = append(want, now.Add(-d))
			}
			if !slices.EqualFunc(looks, want, time.Time.Equal) {
				t.Errorf("%s: %v, want %v", c.name, looks, want)
			}
		})
	}
}

// TestLookBetween undoes a deletion, but the database can't serve the states since the page. Its
// clock is late, so it refuses these times as the future.
func TestLookBetween(t *testing.T) {
	inWorld(t, 1, []int64{1}, func(w *world) {
		w.page(0, to{1: gone})
		w.end()
		time.Sleep(time.Minute)
		refused := 0
		w.taps(func(req, _ any, pass func() error) error {
			if readTime(req).After(w.job.Ended) {
				refused++
				return status.Error(codes.InvalidArgument, "the read time is in the future")
			}
			return pass()
		})
		w.wantUndo(0, "1 becomes 1")
		if refused != 1 {
			t.Errorf("%d reads were refused, want 1", refused)
		}
	})
}
