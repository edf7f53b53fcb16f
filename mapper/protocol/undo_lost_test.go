package protocol_test

import (
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestUndoLost deletes a record of an undo, so that the undo fails. When the undo is cleaned up, it
// can no longer continue. So the undone job must be cleaned up, too.
func TestUndoLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{queue: few(2)}, setOwner), t.Context()
		w.putAccounts(names(100))
		job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "done", PageSize: 5, Retain: 10 * day})
		w.must(err)
		w.wait(job)
		undo, err := job.Undo(ctx, &mapper.UndoOptions{PageSize: 1, ExpectedWorkers: 1, Retain: 10 * day,
			Rate: mapper.Rate{EntitiesPerSecond: 2}})
		w.must(err)
		time.Sleep(3 * time.Second)
		w.must(undo.Pause(ctx))
		time.Sleep(time.Minute)
		w.must(w.client.Delete(ctx, w.doneRange(undo)))
		w.must(undo.Resume(ctx))
		if s, err := undo.Wait(ctx); err != nil || s.State != mapper.StateFailed {
			t.Fatalf("%+v, %v", s, err)
		}
		for range 60 {
			time.Sleep(day)
			w.must(w.engine.ReviveJobs(ctx))
		}
		if s := w.status(undo); !s.CleanedUp {
			t.Errorf("the undo still has its records: %+v", s)
		}
		if s := w.status(job); !s.CleanedUp || w.ranges("done") > 0 {
			t.Errorf("the job has %d records, and was due at %v", w.ranges("done"), s.CleanUpAt)
		}
	})
}

// doneRange returns the key of the record of a range of the job that is done.
func (w *world) doneRange(job *mapper.Job) *datastore.Key {
	w.Helper()
	keys := w.keysOf("." + job.ID + ".")
	all := make([]datastore.PropertyList, len(keys))
	w.must(w.client.GetMulti(w.Context(), keys, all))
	for i := range keys {
		if state, _ := propertyOf(all[i], "state").(string); state == string(record.Done) {
			return keys[i]
		}
	}
	w.Fatalf("%s has no range that is done", job.ID)
	return nil
}
