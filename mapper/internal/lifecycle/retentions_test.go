package lifecycle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

const aDay = 24 * time.Hour

// due changes the record of an ended job so that its retention is over.
func due(j *record.Job) { j.Retain, j.Ended = time.Hour, time.Now().Add(-2*time.Hour) }

// TestRetentionTasks checks when the task for an automatic clean-up is due. This is at the end of
// the retention, but not later than the queue allows, and soon if the clean-up is overdue. In a
// chain, each task must be later than the last.
func TestRetentionTasks(t *testing.T) {
	for _, c := range []struct {
		name   string
		retain time.Duration // the retention, counted from now
		after  time.Duration // when the chain's last task was due, counted from now
		want   time.Duration // when the next task is due, counted from now; negative: there is no task
	}{
		{"in an hour", time.Hour, 0, time.Hour + time.Second},
		{"in 29 days", 29 * aDay, 0, 29*aDay + time.Second},
		{"later than the queue allows", 29*aDay + time.Second, 0, 29 * aDay},
		{"much later", 100 * aDay, 0, 29 * aDay},
		{"the task comes before it is due, as the queue's clock is ahead", time.Minute, time.Minute + time.Second,
			2*time.Minute + time.Second},
		{"the task comes early, and another one is later", time.Minute, 30 * time.Second, time.Minute + time.Second},
		{"a task of the future", time.Minute, time.Hour, time.Hour + time.Minute},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			now := time.Now() // a time at the start of a day, and thus of a minute
			j := w.stored(w.endedJob("j", "m"), func(j *record.Job) { j.Retain, j.Ended = c.retain, now })
			w.must(w.deliver(w.Context(), j, "retain", body.Job{Tick: now.Add(c.after).Unix()}, 0))
			all := w.tasks("retain")
			if len(all) != 1 || all[0].at.Sub(now) != c.want || all[0].job.Tick != all[0].at.Unix() {
				w.Errorf("%s: the tasks are %+v at %v, want one in %v", c.name, all, now, c.want)
			}
			w.purge()
		})
	}
}

// TestOverdueRetention checks when the task for an overdue job is due. It must be after the next
// full minute, because the name for the job's own time may be taken.
func TestOverdueRetention(t *testing.T) {
	for _, overdue := range []time.Duration{time.Second, time.Hour} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			now := time.Now()
			j := w.stored(w.endedJob("j", "m"), func(j *record.Job) {
				j.Retain, j.Ended = time.Hour, now.Add(-time.Hour-overdue)
			})
			w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0))
			if all := w.tasks("retain"); len(all) != 1 || all[0].at.Sub(now) != 2*time.Minute {
				w.Errorf("%v overdue: the tasks are %+v", overdue, all)
			}
			w.purge()
		})
	}
}

// TestRetentionDecides delivers the task of an automatic clean-up to jobs that it must not clean
// up.
func TestRetentionDecides(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *trialWorld, j *record.Job)
		hook   func(w *trialWorld, j *record.Job) // called before the transaction
		cleans bool
		tasks  int // number of new tasks
	}{
		{"it is due", nil, nil, true, 0},
		{"it runs", func(_ *trialWorld, j *record.Job) { j.State = record.Running }, nil, false, 0},
		{"it is not retained", func(_ *trialWorld, j *record.Job) { j.Retain = 0 }, nil, false, 0},
		{"it is retained for longer", func(_ *trialWorld, j *record.Job) { j.Retain = 3 * time.Hour }, nil, false, 1},
		{"it is being cleaned up", func(_ *trialWorld, j *record.Job) { j.Cleaning = `{"failures":true}` }, nil, true,
			1},
		{"it was cleaned up", func(_ *trialWorld, j *record.Job) { j.Retire(time.Now()) }, nil, false, 0},
		{"somebody retains it for longer meanwhile", nil, func(w *trialWorld, j *record.Job) {
			w.stored(j, func(j *record.Job) { j.Retain = 3 * time.Hour })
		}, false, 0},
		{"it is being cleaned up in another way meanwhile", nil, func(w *trialWorld, j *record.Job) {
			w.must(w.CleanUp(w.Context(), j.Ref(), lifecycle.CleanUp{}))
		}, true, 1},
		{"an undo needs its records", func(w *trialWorld, j *record.Job) {
			undo := w.NewJob("undo-j", "undo:m")
			undo.State = record.Paused
			undo.Params = []byte(`{"job":"j","incarnation":"` + j.Incarnation + `"}`)
			w.put(record.JobKey(undo.ID), undo)
			j.Undo = undo.ID
		}, nil, false, 1},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.endedJob("j", "m"), func(j *record.Job) {
				due(j)
				if c.change != nil {
					c.change(w, j)
				}
			})
			ctx := w.Context()
			if c.hook != nil {
				ctx = under(ctx, nth(1, "BeginTransaction", func() { c.hook(w, j) }))
			}
			w.must(w.deliver(ctx, j, "retain", body.Job{}, 0))
			now := w.Job("j")
			if cleans := now.Cleaning != ""; cleans != c.cleans || len(w.tasks("retain")) != c.tasks {
				w.Errorf("%s: it is cleaned up: %v, and later tasks are %+v", c.name, cleans, w.tasks("retain"))
			}
			if c.name == "it is due" && (!now.Retired || !now.CleanedAt.Equal(time.Now())) {
				w.Errorf("it was retired: %v, at %v", now.Retired, now.CleanedAt)
			}
			if c.tasks > 0 && c.name == "an undo needs its records" && time.Until(w.tasks("retain")[0].at) != aDay {
				w.Errorf("it is tried again at %v", w.tasks("retain")[0].at)
			}
			w.purge()
		})
	}
}

// TestRetiredMeanwhile lets an operator clean up a job just before the automatic clean-up. The
// record must then say that the retention has done it, so that it is not cleaned up again.
func TestRetiredMeanwhile(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.stored(w.endedJob("j", "m"), due)
		ctx := under(w.Context(), nth(1, "BeginTransaction", func() {
			w.must(w.CleanUp(w.Context(), j.Ref(), lifecycle.CleanUp{IncludeFailures: true}))
		}))
		w.must(w.deliver(ctx, j, "retain", body.Job{}, 0))
		if now := w.Job("j"); !now.Retired || now.Cleaning == "" {
			w.Errorf("retired %v, cleaning %q", now.Retired, now.Cleaning)
		}
		w.purge()
	})
}

// TestForeseen checks that the task of the automatic clean-up is enqueued before the commit that
// ends the job.
func TestForeseen(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(w *trialWorld) *record.Job
		do     func(w *trialWorld, j *record.Job) error
		tasks  int
		err    error
	}{
		{"abort", func(w *trialWorld) *record.Job {
			return w.stored(w.running("j", nil), func(j *record.Job) { j.Retain = time.Hour })
		}, func(w *trialWorld, j *record.Job) error { return w.Abort(w.Context(), j.Ref()) }, 1, nil},
		{"abort a job that is aborted", func(w *trialWorld) *record.Job {
			return w.stored(w.aborted("j"), func(j *record.Job) { j.Retain = time.Hour })
		}, func(w *trialWorld, j *record.Job) error { return w.Abort(w.Context(), j.Ref()) }, 0, nil},
		{"abort a job that has succeeded", func(w *trialWorld) *record.Job { return w.endedJob("j", "m") },
			func(w *trialWorld, j *record.Job) error { return w.Abort(w.Context(), j.Ref()) }, 0, record.ErrState},
		{"retain", func(w *trialWorld) *record.Job { return w.endedJob("j", "m") },
			func(w *trialWorld, j *record.Job) error { return w.Retain(w.Context(), j.Ref(), time.Hour) }, 1, nil},
		{"retain a job whose records are gone", func(w *trialWorld) *record.Job {
			return w.stored(w.endedJob("j", "m"), func(j *record.Job) { j.Retire(time.Now()) })
		}, func(w *trialWorld, j *record.Job) error { return w.Retain(w.Context(), j.Ref(), time.Hour) }, 0,
			record.ErrState},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := c.before(w)
			w.purge()
			if err := c.do(w, j); !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				w.Errorf("%s: %v", c.name, err)
			}
			if all := w.tasks("retain"); len(all) != c.tasks {
				w.Errorf("%s: the tasks are %+v", c.name, all)
			}
			w.purge()
		})
	}
}
