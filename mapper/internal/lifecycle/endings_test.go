package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// putsAtEnd is a finalizer that puts an entity.
func putsAtEnd(_ context.Context, a *function.Attempt, j *record.Job, sum record.Totals) error {
	a.Put(datastore.NameKey("End", j.ID, nil), &testworld.Thing{N: sum.Processed})
	return nil
}

// hasPut checks that putsAtEnd has taken effect.
func hasPut(w *trialWorld, j *record.Job) error {
	w.Helper()
	var is testworld.Thing
	err := w.Client.Get(w.Context(), datastore.NameKey("End", j.ID, nil), &is)
	if err != nil || is.N != 4 {
		return fmt.Errorf("the finalizer has put %d; %w", is.N, err)
	}
	if now := w.Job(j.ID); now.Over() && (!now.Finalizes || now.Finalized != now.Epoch) {
		return fmt.Errorf("its finalizer took effect in epoch %d, and it is epoch %d", now.Finalized, now.Epoch)
	}
	return endsWell(w, j)
}

// finalizes returns the do of an act: a delivery of the task that ends a job, as the given attempt.
func finalizes(retries int) func(context.Context, *trialWorld, *record.Job) error {
	return func(ctx context.Context, w *trialWorld, j *record.Job) error {
		return w.deliver(ctx, j, "finalize", body.Job{}, retries)
	}
}

// unmarked returns a check that calls another check. Then it makes sure that no crash mark
// (record.CrashMark) and no death of the finalizer remains.
func unmarked(check func(*trialWorld, *record.Job) error) func(*trialWorld, *record.Job) error {
	return func(w *trialWorld, j *record.Job) error {
		w.Helper()
		return errors.Join(check(w, j), is("without a mark", func(j *record.Job) bool {
			return j.Begun == "" && len(j.Deaths) == 0
		})(w, j))
	}
}

// TestEndingsFail makes the calls of the tasks that end jobs fail, one at a time (see tryAll).
func TestEndingsFail(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	tryAll(t, new(function.Definition), []act{
		{name: "no finalizer", before: (*trialWorld).allDone, do: finalizes(0), loses: true},
		{name: "the task is enqueued, of a job with a draft", before: func(w *trialWorld, id string) *record.Job {
			return w.stored(w.allDone(id), func(j *record.Job) { j.Drafted = true })
		}, do: func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Complete(ctx, j, true) },
			helps: []string{"GetTask"}},
		{name: "the task is enqueued", before: (*trialWorld).allDone,
			do: func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Complete(ctx, j, true) },
			// Without permission to ask the queue, a process treats the task as lost.
			helps: []string{"GetTask"}, loses: true},
		{name: "many records", before: func(w *trialWorld, id string) *record.Job {
			w.Change(func() { w.Portion.Records = 1 })
			return w.allDone(id)
		}, do: finalizes(0), loses: true},
	})
	tryAll(t, &function.Definition{OnDone: putsAtEnd}, []act{
		{name: "a finalizer", before: (*trialWorld).allDone, do: finalizes(0), after: hasPut, loses: true},
		{name: "a finalizer that is tried again", before: (*trialWorld).allDone, do: finalizes(1),
			after: unmarked(hasPut), loses: true},
	})
	waits := forgetting(func(context.Context, *record.Job, record.Totals) error { return lifecycle.ErrWaits })
	tryAll(t, waits.definition(), []act{
		{name: "records of others are being deleted", before: (*trialWorld).allDone, do: finalizes(1),
			after: unmarked(func(w *trialWorld, j *record.Job) error {
				if len(w.tasks("finalize")) == 0 {
					return errors.New("no task goes on")
				}
				w.purge()
				return nil
			})},
	})
	forgets := forgetting(func(context.Context, *record.Job, record.Totals) error { return nil })
	tryAll(t, forgets.definition(), []act{
		{name: "records that are deleted", before: (*trialWorld).allDone, do: finalizes(0), after: hasForgotten,
			loses: true},
		{name: "records that are deleted, again", before: (*trialWorld).allDone, do: finalizes(1),
			after: unmarked(hasForgotten)},
	})
}

// hasForgotten checks that a job has succeeded and has deleted its records.
func hasForgotten(w *trialWorld, j *record.Job) error {
	w.Helper()
	if all := w.Records(j); len(all) > 0 {
		w.Errorf("%d records are left", len(all))
	}
	if err := endsWell(w, j); err != nil {
		return err
	}
	return is("erased", func(j *record.Job) bool {
		return !j.Erased.IsZero() && j.Cleaned && j.Cleaning == "" && len(j.Closing) == 0
	})(w, j)
}

// versioned reads a job's record together with its version.
func (w *trialWorld) versioned(id string) *record.Job {
	w.Helper()
	j := &record.Job{ID: id}
	stored, err := source.New(w.hooked, nil).Stored(w.Context())([]*datastore.Key{record.JobKey(id)}, j)
	w.must(err)
	j.Version = stored[0].Version
	return j
}

// TestEndSmall ends small jobs in one commit. All other jobs must be left to the task that ends
// jobs.
func TestEndSmall(t *testing.T) {
	for _, c := range []struct {
		name   string
		m      *function.Definition
		before func(w *trialWorld, j *record.Job) // called before the job's record is read
		after  func(w *trialWorld, j *record.Job) // called after the job's record is read
		ends   bool
	}{
		{name: "a small job", ends: true},
		{name: "a job with a finalizer", m: &function.Definition{OnDone: putsAtEnd}},
		{name: "a job that deletes its records", m: &function.Definition{Forget: putsAtEnd}},
		{name: "a mapper that is gone", before: func(w *trialWorld, _ *record.Job) { delete(w.Mappers, "m") }},
		{name: "another queue", after: func(_ *trialWorld, j *record.Job) { j.Queue = "other" }},
		{name: "an unknown version", after: func(_ *trialWorld, j *record.Job) { j.Version = 0 }},
		{name: "a change meanwhile", after: func(w *trialWorld, j *record.Job) {
			w.stored(j, func(j *record.Job) { j.Trouble = "new" })
		}},
		{name: "a pause meanwhile", after: func(w *trialWorld, j *record.Job) {
			w.must(w.Pause(w.Context(), j.Ref()))
		}},
		{name: "a job that is deleted meanwhile", after: func(w *trialWorld, j *record.Job) {
			w.must(w.Client.Delete(w.Context(), record.JobKey(j.ID)))
		}},
		{name: "an open range", before: func(w *trialWorld, j *record.Job) {
			_, err := w.Client.Mutate(w.Context(), w.Records(j)[j.Root()].Child(w.Records(j)[j.Root()].Piece(),
				time.Now()).Insert())
			w.must(err)
		}},
		{name: "records that do not add up", before: func(w *trialWorld, j *record.Job) {
			r := w.Records(j)[j.Root()]
			r.Processed++
			_, err := w.Client.Mutate(w.Context(), r.Update())
			w.must(err)
		}},
		{name: "records that are added up with drafts", before: func(w *trialWorld, _ *record.Job) {
			w.Portion.Records = 100
		}},
		{name: "a process that drains", after: func(w *trialWorld, _ *record.Job) {
			_, _ = w.Gate.Drain(w.Context())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := c.m
			if m == nil {
				m = new(function.Definition)
			}
			inTrial(t, m, func(w *trialWorld) {
				j := w.allDone("j")
				if c.before != nil {
					c.before(w, j)
				}
				j = w.versioned("j")
				if c.after != nil {
					c.after(w, j)
				}
				if ended := w.EndSmall(w.Context(), j); ended != c.ends {
					w.Errorf("it has ended: %v, want %v", ended, c.ends)
				}
				if !w.Gate.IsDraining() {
					w.empty()
				}
				now, err := w.Store.LoadJob(w.Context(), j.Ref())
				if c.name != "a job that is deleted meanwhile" && (err != nil || now.Over() != c.ends) {
					w.Errorf("the job is %s, %v", now.State, err)
				}
				if !c.ends {
					return
				}
				acts, err := now.History.Acts()
				if err != nil || len(acts) == 0 || acts[len(acts)-1].To != record.Succeeded {
					w.Errorf("its history is %+v, %v, and has to end with its success", acts, err)
				}
			})
		})
	}
}

// TestEndSmallCalls makes the calls fail that end a small job. If only the answer to the commit is
// lost, the job must have ended nevertheless.
func TestEndSmallCalls(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		for at := range 3 {
			for _, lose := range []bool{false, true} {
				j := w.allDone(fmt.Sprintf("j-%d-%t", at, lose))
				tr := &trial{at: at, lose: lose}
				ended := w.EndSmall(under(w.Context(), tr.hook), w.versioned(j.ID))
				want := tr.method == "" || tr.method == "Commit" && lose
				if ended != want || w.Job(j.ID).Over() != want {
					w.Errorf("call %d, %s, fails (answer lost: %v): it has ended: %v, and is %s", at, tr.method,
						lose, ended, w.Job(j.ID).State)
				}
			}
		}
	})
}

// TestComplete checks when Complete enqueues the task that ends a job.
func TestComplete(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *trialWorld, j *record.Job)
		sweep  bool
		want   bool // whether the queue has a task afterwards
	}{
		{"all ranges are done", func(*trialWorld, *record.Job) {}, false, true},
		{"the task is lost, and a delivery looks", func(w *trialWorld, j *record.Job) {
			w.must(w.Complete(w.Context(), j, false))
			w.purge()
		}, false, false},
		{"the task is lost, and a sweep looks", func(w *trialWorld, j *record.Job) {
			w.must(w.Complete(w.Context(), j, false))
			w.purge()
		}, true, true},
		{"the task is there, and a sweep looks", func(w *trialWorld, j *record.Job) {
			w.must(w.Complete(w.Context(), j, false))
		}, true, true},
		{"a range is open", func(w *trialWorld, j *record.Job) {
			w.ranges(j, 1, nil)
		}, true, false},
		{"it is paused", func(_ *trialWorld, j *record.Job) { j.State = record.Paused }, true, false},
		{"a retry goes on", func(_ *trialWorld, j *record.Job) { j.Retrying = true }, true, false},
		{"it was moved", func(_ *trialWorld, j *record.Job) { j.Queue = "other" }, true, false},
		{"its mapper is gone", func(_ *trialWorld, j *record.Job) { j.Mapper = "gone" }, true, false},
		{"it was lost once, and paused meanwhile", func(w *trialWorld, j *record.Job) {
			w.must(w.Complete(w.Context(), j, false))
			w.purge()
			w.stored(j, func(j *record.Job) { j.State = record.Paused })
		}, true, false},
		{"it was lost once, and resumed and paused meanwhile", func(w *trialWorld, j *record.Job) {
			w.must(w.Complete(w.Context(), j, false))
			w.purge()
			w.stored(j, func(j *record.Job) { j.State, j.Generation = record.Paused, j.Generation+1 })
		}, true, false},
		{"it was lost once, and another sweep has noticed", func(w *trialWorld, j *record.Job) {
			w.must(w.Complete(w.Context(), j, false))
			w.purge()
			w.stored(j, func(j *record.Job) { j.Generation++ })
		}, true, true},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.allDone("j")
			w.purge()
			// with a new generation, its tasks have new names
			j = w.stored(j, func(j *record.Job) { j.Generation++ })
			c.change(w, j)
			w.must(w.Complete(w.Context(), j, c.sweep))
			if now := w.Job("j"); c.name == "the task is there, and a sweep looks" && now.Generation != j.Generation {
				w.Error("a task that is there is taken for lost")
			}
			var there bool
			for range 2 { // repeated, because a task in the place of a lost one gets a new name
				exists, err := w.Queue.Exists(w.Context(), body.Job{}.Task(j, "finalize", time.Time{}))
				w.must(err)
				there = there || exists
				j.Generation++
			}
			if there != c.want {
				w.Errorf("%s: a task is there: %v, want %v", c.name, there, c.want)
			}
		})
	}
}

// TestCompleteUnseen ends a job in a process that may not ask the queue. It must treat the earlier
// task as lost, unless the job's record has an error: then the task is being retried.
func TestCompleteUnseen(t *testing.T) {
	blind := refusing("GetTask", codes.PermissionDenied)
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.allDone("j")
		err := w.Complete(under(w.Context(), refusing("GetTask", codes.Unavailable)), j, true)
		if now := w.Job("j"); err == nil || now.Generation != j.Generation {
			w.Errorf("a queue that does not answer: %v, %d new generations", err, now.Generation-j.Generation)
		}
	})
	for _, c := range []struct {
		error string
		want  int64 // the job's generation afterwards
	}{{"", 1}, {"the finalizer failed, and is tried again", 0}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.allDone("j"), func(j *record.Job) { j.Error = c.error })
			was := j.Generation
			w.must(w.Complete(under(w.Context(), blind), j, true))
			if now := w.Job("j"); now.Generation-was != c.want || now.Solo != (c.want > 0) {
				w.Errorf("with the error %q: %d new generations, solo: %v", c.error, now.Generation-was, now.Solo)
			}
		})
	}
}

// TestEndTask delivers the task that ends a job while the job can't end.
func TestEndTask(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		err    bool // whether the task fails, so that the queue delivers it again
		want   record.JobState
	}{
		{"it can end", func(*record.Job) {}, false, record.Succeeded},
		{"it is paused", func(j *record.Job) { j.State = record.Paused }, false, record.Paused},
		{"it goes on in another epoch", func(j *record.Job) { j.Epoch++ }, false, record.Running},
		{"its mapper is gone", func(j *record.Job) { j.Mapper = "gone" }, true, record.Running},
		{"it was started with other parameters", func(j *record.Job) { j.Params = []byte(`{"a":1}`) }, false,
			record.Failed},
		{"it retries failures", func(j *record.Job) { j.Retrying = true }, false, record.Running},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.allDone("j")
			w.stored(j, c.change)
			if err := w.deliver(w.Context(), j, "finalize", body.Job{}, 0); (err != nil) != c.err {
				w.Errorf("%s: %v", c.name, err)
			}
			if now := w.Job("j"); now.State != c.want {
				w.Errorf("%s: the job is %s, want %s: %s", c.name, now.State, c.want, now.Error)
			}
		})
	}
}

// TestEndWithOpenRange delivers the task that ends a job while a range is open.
func TestEndWithOpenRange(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		w.must(w.Complete(w.Context(), j, true))
		w.must(w.deliver(w.Context(), j, "finalize", body.Job{}, 0))
		w.want(record.Running, "a range is open")
	})
}

// TestLargeCounters ends a job whose counters are too large to store. The job must fail, and its
// totals must say why. After a Resume it continues without counters.
func TestLargeCounters(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		w.counts = []byte(`{"a":9223372036854775807}`)
		j := w.failing("j")
		w.must(w.Retry(w.Context(), j.Ref(), ""))
		w.passes(10 * time.Minute)
		w.want(record.Failed, "too large", w.Job("j").CountersLost, strings.Contains(w.Job("j").Error, "int64"),
			len(w.Job("j").Totals) > 0)
		if w.EndSmall(w.Context(), w.versioned("j")) {
			w.Error("it ends again")
		}
		w.must(w.Resume(w.Context(), j.Ref()))
		w.passes(10 * time.Minute)
		w.want(record.Succeeded, "resumed", w.Job("j").CountersDropped)
	})
}

// TestEndSmallRetried checks that a job does not end in one commit while a failure is being
// retried.
func TestEndSmallRetried(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		w.retried("j")
		if w.EndSmall(w.Context(), w.versioned("j")) {
			w.Error("it has ended")
		}
		w.want(record.Running, "a failure is retried")
		w.purge()
	})
}

// TestSmallLargeCounters checks that a job with too large counters does not end in one commit.
func TestSmallLargeCounters(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		w.counts = []byte(`{"a":9223372036854775807}`)
		j := w.failing("j")
		w.must(w.Retry(w.Context(), j.Ref(), ""))
		w.must(w.deliver(w.Context(), w.Job("j"), "replay", body.Job{}, 0))
		w.purge()
		for _, r := range w.Records(j) {
			if r.State == record.Pending {
				w.must(w.hand(w.Context(), body.TaskOf(r, w.Job("j")), w.Queue.Name(), 0))
			}
		}
		if w.EndSmall(w.Context(), w.versioned("j")) {
			w.Error("it has ended")
		}
		w.want(record.Running, "its counters are too large")
	})
}

// TestFinalizerErrors runs finalizers that return errors, and finalizers whose writes fail.
func TestFinalizerErrors(t *testing.T) {
	type large struct {
		Text []byte `datastore:",noindex"`
	}
	for _, c := range []struct {
		name  string
		fn    func(a *function.Attempt) error
		want  record.JobState
		error string // a part of the job's error
	}{
		{"it writes what the database refuses", func(a *function.Attempt) error {
			a.Put(datastore.NameKey("End", "large", nil), &large{make([]byte, 2<<20)})
			return nil
		}, record.Failed, "the database refuses what it writes"},
		{"it inserts what exists", func(a *function.Attempt) error {
			a.Insert(datastore.NameKey("End", "there", nil), &testworld.Thing{})
			return nil
		}, record.Running, ""},
		{"it misuses the attempt", func(a *function.Attempt) error {
			a.Put(nil, &testworld.Thing{})
			return nil
		}, record.Failed, "Put"},
		{"it fails permanently", func(*function.Attempt) error { return fault.Permanent(errBad) }, record.Failed,
			"bad"},
	} {
		m := &function.Definition{OnDone: func(_ context.Context, a *function.Attempt, _ *record.Job,
			_ record.Totals) error {
			return c.fn(a)
		}}
		inTrial(t, m, func(w *trialWorld) {
			_, err := w.Client.Put(w.Context(), datastore.NameKey("End", "there", nil), &testworld.Thing{N: 1})
			w.must(err)
			j := w.allDone("j")
			err = w.deliver(w.Context(), j, "finalize", body.Job{}, 1)
			now := w.Job("j")
			if again := c.want == record.Running; now.State != c.want || !strings.Contains(now.Error, c.error) ||
				(err != nil) != again {
				w.Errorf("%s: it is %s: %q, %v", c.name, now.State, now.Error, err)
			}
			if now.State == record.Running && (now.Begun != "" || len(now.Deaths) > 0) {
				w.Errorf("%s: a mark is left: %+v", c.name, now.Suspicion)
			}
			if now.State == record.Failed && len(now.Totals) == 0 {
				w.Errorf("%s: it has no totals", c.name)
			}
		})
	}
}
