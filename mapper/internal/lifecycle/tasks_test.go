package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// purge deletes all tasks of the queue. Their names can't be used again.
func (w *trialWorld) purge() {
	w.Helper()
	_, err := w.Tasks.PurgeQueue(w.Context(), &cloudtaskspb.PurgeQueueRequest{Name: w.Queue.Name()})
	w.must(err)
}

// delivers returns the do of an act: a delivery of the given task.
func delivers(path string, t body.Job) func(context.Context, *trialWorld, *record.Job) error {
	return func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.deliver(ctx, j, path, t, 0) }
}

// purged returns a running job whose tasks were deleted.
func (w *trialWorld) purged(id string) *record.Job {
	w.Helper()
	j := w.running(id, nil)
	time.Sleep(2 * time.Minute)
	w.purge()
	return j
}

// allDone returns a running job whose ranges are done. No task for its end exists.
func (w *trialWorld) allDone(id string) *record.Job {
	w.Helper()
	j := w.running(id, nil)
	w.doRoot(j)
	w.purge()
	return w.Job(id)
}

// doRoot marks a job's root as done, as its task would.
func (w *trialWorld) doRoot(j *record.Job) {
	w.Helper()
	w.must(w.hand(w.Context(), body.TaskOf(w.Records(j)[j.Root()], j), w.Queue.Name(), 0))
}

// retrying returns a job with a retry under way, and without tasks.
func (w *trialWorld) retrying(id string) *record.Job {
	w.Helper()
	j := w.failing(id)
	w.must(w.Retry(w.Context(), j.Ref(), ""))
	w.purge()
	return w.Job(id)
}

// retried returns a job whose retry has ended. The delivery that ended it has died before it
// enqueued the next sweep. The returned record is from the time of the retry.
func (w *trialWorld) retried(id string) *record.Job {
	w.Helper()
	j := w.retrying(id)
	for _, r := range w.Records(j) {
		if r.Failed != "" {
			w.must(w.Reopen(w.Context(), j, r))
		}
	}
	w.stored(j, func(now *record.Job) { now.EndRetry(j.Epoch) })
	return j
}

// TestSweepsFail makes the calls of sweeps and retries fail, one at a time (see tryAll).
func TestSweepsFail(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	sweep := body.Job{Tick: 1}
	tryAll(t, new(function.Definition), []act{
		{name: "a lost task", before: (*trialWorld).purged, do: delivers("sweep", sweep), loses: true},
		{name: "the lost task of a job's end", before: (*trialWorld).allDone, do: delivers("sweep", sweep),
			helps: []string{"GetTask"}, loses: true},
		{name: "a retry", before: (*trialWorld).retrying, do: delivers("sweep", sweep), loses: true},
		{name: "a task of a retry", before: (*trialWorld).retrying, do: delivers("replay", body.Job{})},
		{name: "a retry that has ended", before: (*trialWorld).retried, do: delivers("replay", body.Job{})},
		{name: "the sweep of a retry that has ended", before: (*trialWorld).retried, do: delivers("sweep", sweep)},
		{name: "a rate whose time is over", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.purged(id), func(j *record.Job) {
				j.Rate, j.RateUntil = []byte(`{"entities":1}`), time.Now().Add(-time.Second)
			})
		}, do: delivers("sweep", sweep), after: func(w *trialWorld, j *record.Job) error {
			return errors.Join(is("without a rate", func(j *record.Job) bool { return len(j.Rate) == 0 })(w, j),
				endsWell(w, j))
		}},
		{name: "a job that had trouble", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.running(id, nil), func(j *record.Job) { j.Trouble = "it is tried again" })
		}, do: delivers("sweep", sweep), after: is("calm", func(j *record.Job) bool { return j.Trouble == "" })},
		{name: "a mapper that is gone", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.running(id, nil), func(j *record.Job) { j.Mapper = "gone" })
		}, do: delivers("sweep", sweep), after: is("waiting for a build", func(j *record.Job) bool {
			return j.Error == "its tasks wait for a build that has the mapper gone"
		})},
		{name: "the guard of a change that is not committed", do: func(ctx context.Context, w *trialWorld,
			j *record.Job) error {
			next := *j
			next.Epoch++
			return w.deliver(ctx, &next, "sweep", body.Job{Guard: 7}, 0)
		}, after: is("in the next epoch", func(j *record.Job) bool { return j.Epoch == 1 })},
		{name: "the guard of a start that is not committed", before: func(w *trialWorld, id string) *record.Job {
			j := w.NewJob(id, "m")
			j.Beside = true
			return j
		}, do: delivers("sweep", body.Job{Guard: 7}), after: func(w *trialWorld, j *record.Job) error {
			if err := w.Store.Create(w.Context(), j, record.First{}, nil); err == nil {
				w.Error("a start that its guard has overtaken takes effect")
			}
			return nil
		}},
		{name: "the sweep of a job that has ended", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.ended(id, nil), func(j *record.Job) { j.Retain = 24 * time.Hour })
		}, do: delivers("sweep", sweep), after: func(w *trialWorld, j *record.Job) error {
			w.passes(25 * time.Hour)
			return is("cleaned up", func(j *record.Job) bool { return j.Retired })(w, j)
		}},
		{name: "revive", before: func(w *trialWorld, id string) *record.Job {
			w.stored(w.ended("due-"+id, nil), due)
			return w.purged(id)
		}, do: delivers("revive", body.Job{}), after: func(w *trialWorld, j *record.Job) error {
			return errors.Join(endsWell(w, j), is("cleaned up", func(j *record.Job) bool { return j.Retired })(w,
				w.Job("due-"+j.ID)))
			// these calls only find out why no task arrives
		}, helps: []string{"RunQuery", "GetTask", "GetTask", "GetTask", "Lookup"}},
	})
}

// cleaning returns an ended job with a clean-up under way, and without tasks.
func (w *trialWorld) cleaning(j *record.Job, how lifecycle.CleanUp) *record.Job {
	w.Helper()
	w.must(w.CleanUp(w.Context(), j.Ref(), how))
	w.purge()
	return w.Job(j.ID)
}

// isClean checks that a job is cleaned up, with its totals.
func isClean(w *trialWorld, j *record.Job) error {
	w.Helper()
	w.must(w.Revive(w.Context()))
	w.passes(10 * time.Minute)
	if all := w.Records(j); len(all) > 0 {
		w.Errorf("%d records are left", len(all))
	}
	return is("cleaned up", func(j *record.Job) bool {
		return j.Cleaning == "" && j.Cleaned && len(j.Totals) > 0 && !j.Drafted
	})(w, j)
}

// TestCleanUpsFail makes the calls of clean-up tasks fail, one at a time (see tryAll).
func TestCleanUpsFail(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	all := lifecycle.CleanUp{IncludeFailures: true}
	aborted := func(w *trialWorld, id string) *record.Job { return w.cleaning(w.aborted(id), all) }
	ended := func(w *trialWorld, id string) *record.Job { return w.cleaning(w.ended(id, nil), all) }
	rootTask := func(ctx context.Context, w *trialWorld, j *record.Job) error {
		digit := j.Root()[0]
		i := int64(digit - '0')
		if digit >= 'a' {
			i = int64(digit-'a') + 10
		}
		return w.deliver(ctx, j, "cleanup", body.Job{Tick: i}, 0)
	}
	// undone returns a job whose undo was aborted, and no longer needs its records.
	undone := func(w *trialWorld, j *record.Job) *record.Job {
		undo := w.NewJob("undo-"+j.ID, "undo:m")
		undo.State = record.Aborted
		undo.Params = fmt.Appendf(nil, `{"job":%q,"incarnation":%q}`, j.ID, j.Incarnation)
		w.put(record.JobKey(undo.ID), undo)
		return w.stored(j, func(j *record.Job) { j.Undo, j.Drafted = undo.ID, true })
	}
	// undo returns the record of an undo that has a batch.
	undo := func(w *trialWorld, id string) *record.Job {
		j := w.endedJob(id, "undo:m")
		key, b := record.NewBatch(j.Ref(), j.Root(), []*datastore.Key{atAnn().Key}, 1, 0)
		w.put(key, b)
		r := j.RootRange()
		r.State, r.Open = record.Done, ""
		w.insert([]*record.Range{r})
		return w.cleaning(j, all)
	}
	tryAll(t, new(function.Definition), []act{
		{name: "add up after an undo", before: func(w *trialWorld, id string) *record.Job {
			return undone(w, aborted(w, id))
		}, do: delivers("cleanup", body.Job{Tick: addUp}), after: isClean,
			most: 20},
		{name: "the sweep after an undo", before: func(w *trialWorld, id string) *record.Job {
			return undone(w, aborted(w, id))
		}, do: delivers("sweep", body.Job{Tick: 1}), after: isClean},
		{name: "delete an undo's", before: undo, do: rootTask, after: isClean},
		{name: "the sweep that deletes an undo's", before: undo, do: delivers("sweep", body.Job{Tick: 1}),
			after: isClean},
		{name: "add up", before: aborted, do: delivers("cleanup", body.Job{Tick: addUp}), after: isClean, loses: true,
			most: 14},
		{name: "delete", before: ended, do: rootTask, after: isClean},
		{name: "expire", before: func(w *trialWorld, id string) *record.Job {
			return w.cleaning(w.ended(id, nil), lifecycle.CleanUp{ExpireAfter: time.Hour})
		}, do: rootTask, after: func(w *trialWorld, j *record.Job) error {
			for _, r := range w.Records(j) {
				if r.Expires.IsZero() {
					w.Errorf("range %s does not expire", r.ID)
				}
			}
			return nil
		}},
		{name: "the sweep of a job without totals", before: aborted, do: delivers("sweep", body.Job{Tick: 1}),
			after: isClean},
		{name: "the sweep that deletes the rest", before: ended, do: delivers("sweep", body.Job{Tick: 1}),
			after: isClean},
		{name: "the last sweep", before: func(w *trialWorld, id string) *record.Job {
			j := ended(w, id)
			w.must(rootTask(w.Context(), w, j))
			return w.stored(j, func(j *record.Job) { j.Retain = 24 * time.Hour })
		}, do: delivers("sweep", body.Job{Tick: 1}), after: isClean, loses: true},
		{name: "the end of a retention", most: 8, before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.ended(id, nil), due)
		}, do: delivers("retain", body.Job{}), after: isClean},
		{name: "a retention that is not over", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.ended(id, nil), func(j *record.Job) { j.Retain = 24 * time.Hour })
		}, do: delivers("retain", body.Job{}), after: func(w *trialWorld, j *record.Job) error {
			w.passes(25 * time.Hour)
			return isClean(w, j)
		}},
	})
}
