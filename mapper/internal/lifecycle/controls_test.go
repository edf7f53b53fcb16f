package lifecycle_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// inState returns a check that a job has a state.
func inState(s record.JobState) func(*trialWorld, *record.Job) error {
	return is(string(s), func(j *record.Job) bool { return j.State == s })
}

// failing returns a job that has a failure. A retry would succeed.
func (w *trialWorld) failing(id string) *record.Job {
	w.Helper()
	w.Change(func() { w.fails[2] = errBad })
	j := w.ended(id, nil)
	w.Change(func() { clear(w.fails) })
	return j
}

func (w *trialWorld) paused(id string) *record.Job {
	w.Helper()
	return w.stored(w.running(id, nil), func(j *record.Job) { _, err := j.Pause(); w.must(err) })
}

// aborted returns an aborted job with an open range.
func (w *trialWorld) aborted(id string) *record.Job {
	w.Helper()
	return w.stored(w.running(id, nil), func(j *record.Job) { _, err := j.Abort(time.Now()); w.must(err) })
}

func (w *trialWorld) causeOf(j *record.Job) string {
	w.Helper()
	for _, r := range w.Records(j) {
		if r.Failed != "" {
			return r.Cause()
		}
	}
	return ""
}

// TestControlsFail makes the calls of each operation fail, one at a time (see tryAll).
func TestControlsFail(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
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
		}, helps: []string{"BeginTransaction", "Commit"}}, // without these calls, Start finds the existing job
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

// TestHistory checks a job's history and the log after operations. Each change must be there once,
// with the operator and the reason.
func TestHistory(t *testing.T) {
	const cause = "its failures of one cause are retried"
	for _, c := range []struct {
		name string
		do   func(ctx context.Context, w *trialWorld, j *record.Job) error
		want string
		to   record.JobState
	}{
		{"pause", func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Pause(ctx, j.Ref()) },
			"paused", record.Paused},
		{"resume", func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Resume(ctx, j.Ref()) },
			"resumed", record.Running},
		{"retry", func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Retry(ctx, j.Ref(), "") },
			"its failures are retried", record.Running},
		{"retry a cause", func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Retry(ctx, j.Ref(), "bad")
		}, cause, record.Running},
		{"abort", func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Abort(ctx, j.Ref()) },
			"aborted", record.Aborted},
		{"retain", func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Retain(ctx, j.Ref(), 48*time.Hour)
		}, "its records are kept for 2 days", record.Running},
		{"do not retain", func(ctx context.Context, w *trialWorld, j *record.Job) error {
			w.stored(j, func(j *record.Job) { j.Retain = time.Hour })
			return w.Retain(ctx, j.Ref(), 0)
		}, "its records are kept until somebody cleans them up", record.Running},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.running("j", nil)
			ctx := observe.WithWhy(observe.WithBy(w.Context(), "ann"), "because")
			w.must(c.do(ctx, w, j))
			acts, err := w.Job("j").History.Acts()
			if err != nil || len(acts) != 2 {
				w.Fatalf("%s: %+v, %v", c.name, acts, err)
			}
			if a := acts[1]; a.What != c.want || a.By != "ann" || a.Why != "because" || a.To != c.to ||
				!a.At.Equal(time.Now()) {
				w.Errorf("%s: %+v", c.name, a)
			}
			w.purge()
		})
	}
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		w.must(w.Pause(w.Context(), j.Ref()))
		w.must(w.Retain(w.Context(), j.Ref(), time.Hour))
		var log lines
		w.Observer.Log = log.logger()
		w.must(w.Pause(w.Context(), j.Ref()))
		w.must(w.Retain(w.Context(), j.Ref(), time.Hour))
		if acts, err := w.Job("j").History.Acts(); err != nil || len(acts) != 3 || log.String() != "" {
			w.Errorf("what changes nothing is in the history %+v, %v, and in the log %q", acts, err, log.String())
		}
	})
}

// TestLimits checks how many failures a job may have after it continues.
func TestLimits(t *testing.T) {
	resume := func(w *trialWorld, j *record.Job) error { return w.Resume(w.Context(), j.Ref()) }
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		do     func(w *trialWorld, j *record.Job) error
		want   int64 // the failure limit
	}{
		{"the limit has paused it", func(j *record.Job) { j.State, j.Limited = record.Paused, true }, resume, 12 + 5},
		{"somebody has paused it", func(j *record.Job) { j.State = record.Paused }, resume, 7},
		{"all failures are retried", func(*record.Job) {}, func(w *trialWorld, j *record.Job) error {
			return w.Retry(w.Context(), j.Ref(), "")
		}, 5},
		{"failures of one cause are retried", func(*record.Job) {}, func(w *trialWorld, j *record.Job) error {
			return w.Retry(w.Context(), j.Ref(), "bad")
		}, 12 + 5},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.running("j", nil), func(j *record.Job) { j.Limit, j.LimitStep = 7, 5; c.change(j) })
			w.failures(j, 12)
			if err := c.do(w, j); err != nil || w.Job("j").Limit != c.want {
				w.Errorf("%s: %v, the limit is %d, want %d", c.name, err, w.Job("j").Limit, c.want)
			}
			w.purge()
		})
	}
}
