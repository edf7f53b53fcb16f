package mapper_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// TestReady has an engine be ready while its database answers and it takes deliveries. However
// often it is asked, it asks the database once a second.
func TestReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := emulator.NewFaults(1, emulator.Fault{Kind: emulator.LoseCall, Share: 1, Code: codes.PermissionDenied})
		away.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: away}}, addCredit)
		before := w.emulator.Usage().Reads
		for range 1000 {
			if err := w.engine.CheckReady(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if reads := w.emulator.Usage().Reads - before; reads > 1 {
			t.Errorf("1,000 calls cost %d reads", reads)
		}
		time.Sleep(2 * time.Second)
		away.Resume()
		if err := w.engine.CheckReady(t.Context()); err == nil || !strings.Contains(err.Error(), "PermissionDenied") {
			t.Errorf("the database is away: %v", err)
		}
		away.Pause()
		time.Sleep(2 * time.Second)
		if err := w.engine.CheckReady(t.Context()); err != nil {
			t.Errorf("the database is back: %v", err)
		}
		if err := w.engine.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.engine.CheckReady(t.Context()); err == nil || !strings.Contains(err.Error(), "about to end") {
			t.Errorf("it drains: %v", err)
		}
		if err := (*mapper.Engine)(nil).CheckReady(t.Context()); err == nil {
			t.Error("no engine is ready")
		}
	})
}
