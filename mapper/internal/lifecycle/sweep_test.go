package lifecycle

import (
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestTicks checks that a sweep enqueues a later sweep, even if this process' clock is slow. A task
// with a forged tick (sweep number) may move the next sweep only by a limited time.
func TestTicks(t *testing.T) {
	j := &record.Job{ID: "j"}
	now := time.Now()
	first, at := nextTick(j, now)
	if !at.After(now) || at.Sub(now) > sweepEvery {
		t.Errorf("at %v the next tick is at %v", now, at)
	}
	for ahead := range int64(20) {
		own := body.Job{Tick: first - 1 + ahead}
		tick, at := nextTick(j, latest(j, now, own))
		if tick <= own.Tick || tick > max(first, own.Tick+1) || !at.After(now) {
			t.Errorf("the sweep of tick %d enqueues tick %d, at %v", own.Tick, tick, at)
		}
	}
	for _, forged := range []int64{-1 << 62, 1 << 62, first + 1000} {
		if tick, _ := nextTick(j, latest(j, now, body.Job{Tick: forged})); tick != first {
			t.Errorf("the forged tick %d leads to %d, not %d", forged, tick, first)
		}
	}
}
