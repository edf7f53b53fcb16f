package mapper

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/oldnames"
)

// TestStoredOptions checks that a waiting tick has its settings, whichever names it was stored
// under, and that both builds find what this one stores.
func TestStoredOptions(t *testing.T) {
	want := StartOptions{DryRun: true, AllowOverlap: true, ExpectedWorkers: 3, EntityTimeout: time.Minute}
	old := oldnames.Start{Rehearse: true, Beside: true, Workers: 3, Timeout: time.Minute}
	for name, stored := range map[string]tickOptions{
		"this build":    {StartOptions: want},
		"an older one":  {Start: old},
		"under both":    newOptions(want),
		"of none":       {},
		"of both, none": newOptions(StartOptions{}),
	} {
		got, set := stored.current(), stored != (tickOptions{})
		if got.DryRun != set || got.AllowOverlap != set || (got.ExpectedWorkers == 3) != set ||
			(got.EntityTimeout == time.Minute) != set {
			t.Errorf("of %s: %+v", name, got)
		}
	}
	if stored := newOptions(want); stored.Start != old {
		t.Errorf("for an older build: %+v", stored.Start)
	}
}
