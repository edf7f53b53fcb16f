package mapper_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// failing7 fails for good on the accounts whose names end with 77.
var failing77 = mapper.Update("failing-77", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
	if a.Key.Name[len(a.Key.Name)-2:] == "77" {
		return mapper.Permanent(errors.New("no"))
	}
	a.Value.Balance += 10
	return nil
})

// count returns how many entities of a kind there are with a property set.
func (w *world) count(kind, property string) (n int) {
	w.Helper()
	var all []datastore.PropertyList
	if _, err := w.client.GetAll(w.Context(), datastore.NewQuery(kind), &all); err != nil {
		w.Fatal(err)
	}
	for _, list := range all {
		for _, p := range list {
			if p.Name == property {
				n++
			}
		}
	}
	return n
}

// TestCleanUp cleans up a job's records in every way: its status stays, its
// failures until they are asked for, and its ID until its own record is gone.
func TestCleanUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(3000))
		o := &mapper.StartOptions{ID: "j", PageSize: 10}
		before := over(w, failing77, o)
		job := w.engine.Job("j")
		ranges := w.count(mapper.RangeKind, "job")
		tidy := func(c *mapper.CleanUpOptions) {
			t.Helper()
			if err := job.CleanUp(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			w.lose("/mapper/cleanup") // the sweep does it, too
			time.Sleep(time.Hour)
		}
		if before.Failures != 30 {
			t.Fatalf("status %+v", before)
		}

		tidy(&mapper.CleanUpOptions{Expire: 24 * time.Hour})
		if all, expire := w.count(mapper.RangeKind, "job"), w.count(mapper.RangeKind, "expires"); all != ranges || expire != all-30 {
			t.Errorf("%d of %d records expire", expire, all)
		}
		tidy(nil)
		if n := w.count(mapper.RangeKind, "job"); n != 30 {
			t.Errorf("%d records are left of 30 failures", n)
		}
		after := w.status(job)
		if after.State != before.State || after.Processed != before.Processed || after.Tasks != before.Tasks || !after.Ended.Equal(before.Ended) {
			t.Errorf("status %+v, before %+v", after, before)
		}
		if failures, _, err := job.Failures(t.Context(), ""); err != nil || len(failures) != 30 {
			t.Errorf("%d failures, %v", len(failures), err)
		}
		if _, err := job.Verify(t.Context()); !errors.Is(err, mapper.ErrState) {
			t.Errorf("verify: %v", err)
		}
		if err := job.Retry(t.Context()); !errors.Is(err, mapper.ErrState) {
			t.Errorf("retry: %v", err)
		}
		if s := over(w, failing77, o); !s.Ended.Equal(before.Ended) {
			t.Errorf("the same start ran again: %+v", s)
		}

		tidy(&mapper.CleanUpOptions{Failures: true})
		if n := w.count(mapper.RangeKind, "job"); n != 0 {
			t.Errorf("%d records are left", n)
		}
		tidy(&mapper.CleanUpOptions{Job: true, Expire: time.Hour})
		if n := w.count(mapper.JobKind, "expires"); n != 1 {
			t.Errorf("%d records of jobs expire", n)
		}
		tidy(&mapper.CleanUpOptions{Job: true})
		if err := job.CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("a job that is gone: %v", err)
		}
		// Its ID is free, and none of its names is in the way.
		again := over(w, failing77, o)
		if again.Processed != before.Processed || again.Ended.Sub(again.Created) > time.Minute {
			t.Errorf("the next job of that ID: %+v", again)
		}
	})
}

// TestCleanUpOfOtherStates refuses to clean up what has not ended, and keeps the
// numbers of what was aborted.
func TestCleanUpOfOtherStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit)
		w.putAccounts(names(1000))
		job := w.startSlow()
		time.Sleep(time.Second)
		if err := job.CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrState) {
			t.Errorf("of a job that runs: %v", err)
		}
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := job.CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrState) {
			t.Errorf("of a paused job: %v", err)
		}
		if n := w.count(mapper.RangeKind, "expires") + w.count(mapper.JobKind, "expires"); n > 0 {
			t.Errorf("%d records of a paused job expire", n)
		}
		if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{Expire: -1}); !errors.Is(err, mapper.ErrArguments) {
			t.Errorf("a negative time: %v", err)
		}
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := job.CleanUp(t.Context(), nil); !errors.Is(err, mapper.ErrState) {
			t.Errorf("of a job with pages under way: %v", err)
		}
		time.Sleep(time.Hour)
		before := w.status(job)
		if err := job.CleanUp(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if after := w.status(job); after.State != mapper.Aborted || after.Processed == 0 || after.Processed != before.Processed {
			t.Errorf("status %+v, before %+v", after, before)
		}
		if n := w.count(mapper.RangeKind, "job"); n > 0 {
			t.Errorf("%d records are left", n)
		}
	})
}
