package lifecycle_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// inState returns a check of a job's state.
func inState(s record.JobState) func(*trialWorld, *record.Job) error {
	return is(string(s), func(j *record.Job) bool { return j.State == s })
}

// failing returns a job with a failure, which a retry would mend.
func (w *trialWorld) failing(id string) *record.Job {
	w.Helper()
	w.Change(func() { w.fails[2] = errBad })
	j := w.ended(id, nil)
	w.Change(func() { clear(w.fails) })
	return j
}

// paused returns a paused job.
func (w *trialWorld) paused(id string) *record.Job {
	w.Helper()
	return w.stored(w.running(id, nil), func(j *record.Job) { _, err := j.Pause(); w.must(err) })
}

// aborted returns an aborted job with an open range.
func (w *trialWorld) aborted(id string) *record.Job {
	w.Helper()
	return w.stored(w.running(id, nil), func(j *record.Job) { _, err := j.Abort(time.Now()); w.must(err) })
}

// causeOf returns the cause of a job's failures.
func (w *trialWorld) causeOf(j *record.Job) string {
	w.Helper()
	for _, r := range w.Records(j) {
		if r.Failed != "" {
			return r.Cause()
		}
	}
	return ""
}

// TestControlsFail has each call of the operators' controls fail.
func TestControlsFail(t *testing.T) {
	three := record.First{Pieces: []split.Piece{{}, {}, {}}}
	tryAll(t, new(function.Definition), []act{
		{name: "start", before: func(w *trialWorld, id string) *record.Job {
			j := w.NewJob(id, "m")
			j.Beside = true
			return j
		}, do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			_, err := w.Start(ctx, j, nil, record.First{}, func(*datastore.Transaction) error { return nil })
			return err
		}, loses: true},
		{name: "start an ID again, whose tasks are lost", before: func(w *trialWorld, id string) *record.Job {
			j := w.NewJob(id, "m")
			j.Beside = true
			w.must(w.Store.Create(w.Context(), j, three, nil))
			return j
		}, do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			_, err := w.Start(ctx, w.Job(j.ID), nil, three, nil)
			return err
		}, after: func(w *trialWorld, j *record.Job) error {
			for _, r := range w.Records(j) {
				if there, err := w.Queue.Exists(w.Context(), body.TaskOf(r, j)); err != nil || !there {
					w.Errorf("range %s has a task: %v, %v", r.ID, there, err)
				}
			}
			return nil
		}, helps: []string{"BeginTransaction", "Commit"}}, // it finds the job instead
		{name: "pause", do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Pause(ctx, j.Ref())
		}, after: inState(record.Paused), loses: true},
		{name: "resume", before: (*trialWorld).paused, do: func(ctx context.Context, w *trialWorld,
			j *record.Job) error {
			return w.Resume(ctx, j.Ref())
		}, loses: true},
		{name: "resume after a limit", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.running(id, nil), func(j *record.Job) {
				j.State, j.Limited, j.Limit = record.Paused, true, 3
			})
		}, do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Resume(ctx, j.Ref())
		}},
		{name: "resume a retry", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.failing(id), func(j *record.Job) {
				w.must(j.Retry(record.Selection{}, time.Now()))
				_, err := j.Pause()
				w.must(err)
			})
		}, do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Resume(ctx, j.Ref())
		}},
		{name: "abort", before: func(w *trialWorld, id string) *record.Job {
			return w.running(id, func(j *record.Job) { j.Retain = 24 * time.Hour })
		}, do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Abort(ctx, j.Ref())
		}, after: inState(record.Aborted), loses: true},
		{name: "retry", before: (*trialWorld).failing, do: func(ctx context.Context, w *trialWorld,
			j *record.Job) error {
			return w.Retry(ctx, j.Ref(), "")
		}, loses: true},
		{name: "retry a cause", before: (*trialWorld).failing,
			do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
				return w.Retry(ctx, j.Ref(), w.causeOf(j))
			}},
		{name: "clean up", before: func(w *trialWorld, id string) *record.Job { return w.ended(id, nil) },
			do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
				return w.CleanUp(ctx, j.Ref(), lifecycle.CleanUp{IncludeJob: true, ExpireAfter: time.Hour})
			}, after: func(w *trialWorld, j *record.Job) error {
				w.passes(30 * time.Minute)
				return is("cleaned up", func(j *record.Job) bool {
					return j.Cleaning == "" && !j.Expires.IsZero()
				})(w, j)
			}, loses: true, most: 8},
		{name: "retain", before: func(w *trialWorld, id string) *record.Job { return w.ended(id, nil) },
			do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
				return w.Retain(ctx, j.Ref(), 24*time.Hour)
			}, after: func(w *trialWorld, j *record.Job) error {
				w.passes(25 * time.Hour)
				return is("cleaned up", func(j *record.Job) bool { return j.Retired && j.Cleaning == "" })(w, j)
			}, loses: true},
		{name: "undo", before: (*trialWorld).aborted, do: func(ctx context.Context, w *trialWorld,
			j *record.Job) error {
			return w.Undo(ctx, w.Job(j.ID), "undo-"+j.ID)
		}, after: func(w *trialWorld, j *record.Job) error {
			for _, r := range w.Records(j) {
				if r.State != record.Abandoned || r.Open != "" {
					w.Errorf("range %s is %s, and open: %q", r.ID, r.State, r.Open)
				}
			}
			return is("undone", func(now *record.Job) bool { return now.Undo == "undo-"+j.ID })(w, j)
		}, loses: true},
		{name: "end a rate", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.running(id, nil), func(j *record.Job) {
				j.Rate, j.RateUntil = []byte(`{"entities":1}`), time.Now().Add(-time.Second)
			})
		}, do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			_, err := w.EndRate(ctx, w.Job(j.ID))
			return err
		}, after: is("without a rate", func(j *record.Job) bool { return len(j.Rate) == 0 && j.RateUntil.IsZero() })},
		{name: "fail", do: func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Fail(ctx, w.Job(j.ID), errBad)
		}, after: inState(record.Failed), loses: true},
	})
}
