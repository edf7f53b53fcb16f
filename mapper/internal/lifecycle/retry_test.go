package lifecycle

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// TestReopen checks that only the ranges of failures are reopened, and only while the job's retry
// is under way.
func TestReopen(t *testing.T) {
	e, err := emulator.Start(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	client, err := e.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	st := store.New(client)
	rt := &Jobs{Store: st}
	now := time.Now().UTC().Truncate(time.Microsecond)
	retries := record.Job{
		ID: "j", Incarnation: "0123456789abcdef01234567", State: record.Running, Retrying: true, Epoch: 4,
	}
	failed := record.Range{
		Job: retries.ID, Incarnation: retries.Incarnation, ID: retries.Root(), State: record.Done, Failed: retries.ID,
		Error: "no", Generation: 7,
	}
	for name, test := range map[string]struct {
		change func(j *record.Job, r *record.Range) // changes both after the failure was read
		opens  bool
	}{
		"nothing has changed": {func(*record.Job, *record.Range) {}, true},
		"the retry has ended": {func(j *record.Job, _ *record.Range) { j.Retrying, j.Epoch = false, 5 }, false},
		"another retry is on": {func(j *record.Job, _ *record.Range) { j.Epoch = 6 }, false},
		"the job has ended":   {func(j *record.Job, _ *record.Range) { j.State = record.Failed }, false},
		"it is open again": {func(_ *record.Job, r *record.Range) {
			r.State, r.Failed, r.Open = record.Pending, "", "j"
		}, false},
		"it is open and named": {func(_ *record.Job, r *record.Range) { r.State, r.Open = record.Pending, "j" }, false},
		"it is done":           {func(_ *record.Job, r *record.Range) { r.Failed, r.Error = "", "" }, false},
	} {
		job, r := retries, failed
		test.change(&job, &r)
		if _, err := client.Put(t.Context(), record.JobKey(job.ID), &job); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(t.Context(), r.Key(), &r); err != nil {
			t.Fatal(err)
		}
		seen, seenJob := failed, retries
		if err := rt.Reopen(t.Context(), &seenJob, &seen); err != nil && !errors.Is(err, store.ErrNothing) {
			t.Fatal(err)
		}
		is, err := st.LoadRange(t.Context(), job.Ref(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if opened := is.Generation != 7; opened != test.opens {
			t.Errorf("%s: it is opened: %v", name, opened)
		}
		if test.opens && (is.State != record.Pending || is.Failed != "" || is.Created.Before(now)) {
			t.Errorf("%s: %+v", name, is)
		}
	}
}

// jobsOn returns the jobs of an embedded database, and a client of it.
func jobsOn(t *testing.T, e *emulator.Emulator) (*Jobs, *datastore.Client) {
	t.Helper()
	client, err := e.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &Jobs{Store: store.New(client)}, client
}

// TestAbandonOpen abandons some of a job's open ranges. The result must be the ID of a remaining
// one.
func TestAbandonOpen(t *testing.T) {
	e := emulator.ForTest(t, nil)
	js, client := jobsOn(t, e)
	job := record.Job{ID: "j", Incarnation: "0123456789abcdef01234567"}
	for i := range int64(sweepRanges + 1) {
		r := job.RootRange()
		r.ID = record.RangeID(r.ID, i)
		if _, err := client.Mutate(t.Context(), r.Insert()); err != nil {
			t.Fatal(err)
		}
	}
	for _, remains := range []bool{true, false} {
		left, err := js.abandonOpen(t.Context(), job.Ref(), sweepRanges)
		if err != nil || (left != "") != remains {
			t.Errorf("%q remains, %v", left, err)
		}
		open, err := js.Store.FirstMarked(t.Context(), "open", job.Ref(), "", 10)
		if err != nil || remains != (len(open) == 1 && open[0].ID == left) {
			t.Errorf("%d are open, %v", len(open), err)
		}
	}
}

// TestAbandonDamaged abandons the open ranges of a job. One of the records is damaged: it is done,
// but still open. The call must end, and this record must stay done.
func TestAbandonDamaged(t *testing.T) {
	var commits atomic.Int64
	e := emulator.ForTest(t, &emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
		handler grpc.UnaryHandler) (any, error) {
		if _, ok := req.(*datastorepb.CommitRequest); ok {
			commits.Add(int64(len(req.(*datastorepb.CommitRequest).Mutations)))
		}
		return handler(ctx, req)
	}})
	js, client := jobsOn(t, e)
	job := record.Job{ID: "j", Incarnation: "0123456789abcdef01234567"}
	for i, state := range []record.RangeState{record.Done, record.Pending, record.Abandoned} {
		r := job.RootRange()
		r.ID, r.State = record.RangeID(r.ID, int64(i)), state
		if _, err := client.Mutate(t.Context(), r.Insert()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), testflag.Patience)
	defer cancel()
	if left, err := js.abandonOpen(ctx, job.Ref(), math.MaxInt); err != nil || left != "" {
		t.Errorf("%q remains, %v", left, err)
	}
	for i, want := range []record.RangeState{record.Done, record.Abandoned, record.Abandoned} {
		r, err := js.Store.LoadRange(t.Context(), job.Ref(), record.RangeID(job.RootRange().ID, int64(i)))
		if err != nil || r.State != want || r.Open != "" {
			t.Errorf("record %d: %+v, %v, want %s", i, r, err, want)
		}
		before := commits.Load()
		if err := js.abandon(t.Context(), r.Key()); err != nil || commits.Load() != before {
			t.Errorf("record %d is not open, and is written again: %v", i, err)
		}
	}
}
