package picture

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestLookAtSample checks that a range of a large job counts as being processed. The sampled pages
// were done minutes ago, but the newest open range says that a page was done just now.
func TestLookAtSample(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	begun := now.Add(-10 * time.Hour)
	job := &record.Job{State: record.Running, Created: begun, Workers: 1, PageTime: int64(time.Second)}
	done := &record.Range{State: record.Done, Processed: 500, Ran: time.Second, Created: begun,
		Done: now.Add(-5 * time.Minute)}
	open := &record.Range{State: record.Pending, Created: now.Add(-time.Second)}
	for scale, want := range map[float64]bool{1: false, 400: true} {
		s := samples{done: sample{[]*record.Range{done}, scale}, open: sample{[]*record.Range{open}, 1}}
		if got := s.look(job, estimate.Queue{}, now).AtWork()(open); got != want {
			t.Errorf("each page stands for %v: at work %v, want %v", scale, got, want)
		}
	}
}
