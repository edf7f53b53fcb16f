package mapper

import (
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/oldnames"
)

// TestStoredOptions checks that the settings of a waiting tick are read under the current and the
// old names. Both builds must be able to read the settings that this build stores.
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
