package dashboard

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// TestGlanceStays lets a job end, whose state the list does not know: the undo of a listed job, on
// another page. The list must show its end as early as for any job. After that, it must not read the
// job again for a minute.
func TestGlanceStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		state, reads := mapper.StateRunning, 0
		look := func() mapper.State {
			g, err := keptBy(t.Context(), &c, "j", func(g glance) time.Duration { return g.stays(freshness, true) },
				func(context.Context) (glance, error) {
					reads++
					return glance{status: &mapper.Status{State: state}}, nil
				})
			if err != nil {
				t.Fatal(err)
			}
			return g.status.State
		}
		look()
		state = mapper.StateSucceeded
		time.Sleep(freshness)
		if got := look(); got != state {
			t.Errorf("the list says %s", got)
		}
		if time.Sleep(endedFresh - freshness); look() != state || reads != 2 {
			t.Errorf("%d reads", reads)
		}
		if got := (glance{status: &mapper.Status{State: state}}).stays(freshness, false); got != freshness {
			t.Errorf("an ended job that was resumed: its state stays for %v", got)
		}
	})
}
