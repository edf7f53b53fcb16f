package mapper_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
)

// TestOldTick has a tick that waits be stored under the names of settings of before, too, for
// processes of a build that knows no others; and one that such a build has stored start its run.
func TestOldTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{queue: few(4)}, slowCredit), t.Context()
		w.putAccounts(names(500))
		s := mapper.NewSchedule("nightly", slowCredit, mapper.OverlapQueue)
		bridge.Tick(w.engine, s.Name())
		tick := func(n int) *mapper.TickResult {
			got, err := s.Tick(ctx, w.engine, minute(n), mapper.Query{Kind: "Account"}, credit{1},
				&mapper.StartOptions{PageSize: 20, ExpectedWorkers: 7, EntityTimeout: 5 * time.Second})
			w.must(err)
			return got
		}
		first := tick(0).Job
		w.wantTick(tick(1), mapper.TickQueued, first.ID)

		var all []datastore.PropertyList
		keys, err := w.client.GetAll(ctx, datastore.NewQuery("ScattermapSchedule"), &all)
		w.must(err)
		old := 0
		for i := range all[0] {
			text, ok := all[0][i].Value.([]byte)
			if !ok || !bytes.Contains(text, []byte(`"workers":7`)) ||
				!bytes.Contains(text, []byte(`"timeout_ns":5000000000`)) {
				continue
			}
			text = bytes.Replace(text, []byte(`"expected_workers":7,`), nil, 1)
			all[0][i].Value = bytes.Replace(text, []byte(`"entity_timeout_ns":5000000000,`), nil, 1)
			old++
		}
		if old != 1 {
			t.Fatalf("%d properties have the tick under the names of before: %+v", old, all[0])
		}
		_, err = w.client.Put(ctx, keys[0], &all[0])
		w.must(err)
		w.wait(first)
		w.must(s.Advance(ctx, w.engine))
		run := w.wait(w.engine.Job(s.JobID(minute(1))))
		if o := run.Settings; o.ExpectedWorkers != 7 || o.EntityTimeout != 5*time.Second || o.PageSize != 20 {
			t.Errorf("the settings of the run are %+v", o)
		}
	})
}
