package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestLargeSweep sweeps a job with more open ranges than one task checks. Another task must
// continue with the next range, and only the last task may check whether the job is complete.
func TestLargeSweep(t *testing.T) {
	t.Parallel()
	const perSweep = 500
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		w.ranges(j, perSweep, nil) // and the root is open, too
		time.Sleep(time.Hour)
		w.purge()
		w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0))
		next := slices.DeleteFunc(w.tasks("sweep"), func(s waiting) bool { return s.job.After == "" })
		if n := len(w.tasks("range")); n != perSweep || len(w.tasks("sweep")) != 2 || len(next) != 1 ||
			next[0].job.Tick != 1 {
			w.Fatalf("%d tasks of ranges, and the sweeps %+v", n, w.tasks("sweep"))
		}
		w.must(w.deliver(w.Context(), j, "sweep", next[0].job, 0))
		if n := len(w.tasks("range")); n != perSweep+1 || len(w.tasks("sweep")) != 2 || len(w.tasks("finalize")) > 0 {
			w.Errorf("%d tasks of ranges, and the sweeps %+v", n, w.tasks("sweep"))
		}
		for _, r := range w.Records(j) {
			r.State, r.Open = record.Done, ""
			_, err := w.Client.Mutate(w.Context(), r.Update())
			w.must(err)
		}
		w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 2}, 0))
		if n := len(w.tasks("finalize")); n != 1 {
			w.Errorf("%d tasks end the job", n)
		}
		w.must(w.Abort(w.Context(), j.Ref()))
		w.purge()
	})
}

// TestSweepAges checks for which ranges a sweep enqueues lost tasks: for ranges that are at least a
// minute old. For a younger range, the delivery that recorded it may be about to enqueue the task.
// A full sweep does so for all ranges.
func TestSweepAges(t *testing.T) {
	for _, c := range []struct {
		age  time.Duration
		all  bool
		want int // number of tasks
	}{{time.Minute - time.Microsecond, false, 0}, {time.Minute, false, 1}, {time.Second, true, 1}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.running("j", nil)
			w.purge()
			time.Sleep(c.age)
			w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1, All: c.all}, 0))
			if n := len(w.tasks("range")); n != c.want {
				w.Errorf("after %v, all %v: %d tasks, want %d", c.age, c.all, n, c.want)
			}
		})
	}
}

// TestSweepCalms checks that a sweep removes the job's text Trouble only if no range is being
// retried.
func TestSweepCalms(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *record.Range)
		calm   bool
	}{
		{"nothing", func(*record.Range) {}, true},
		{"a range is retried", func(r *record.Range) { r.Refusals = 1 }, false},
		{"a range was retried before the last resume", func(r *record.Range) { r.Refusals, r.RefusedIn = 1, 7 }, true},
		{"a range waits for a service", func(r *record.Range) { r.LaterFrom = time.Now() }, false},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.running("j", nil), func(j *record.Job) { j.Trouble = "it is tried again" })
			r := w.Records(j)[j.Root()]
			c.change(r)
			_, err := w.Client.Mutate(w.Context(), r.Update())
			w.must(err)
			w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0))
			if now := w.Job("j"); (now.Trouble == "") != c.calm {
				w.Errorf("%s: its trouble is %q", c.name, now.Trouble)
			}
		})
	}
	for name, other := range map[string]func(j *record.Job){
		"paused":            func(j *record.Job) { j.State = record.Paused },
		"with a new cause":  func(j *record.Job) { j.Trouble = "something else" },
		"without a trouble": func(j *record.Job) { j.Trouble = "" },
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.running("j", nil), func(j *record.Job) { j.Trouble = "it is tried again" })
			ctx := under(w.Context(), nth(1, "BeginTransaction", func() { other(w.stored(j, other)) }))
			_ = w.deliver(ctx, j, "sweep", body.Job{Tick: 1}, 0)
			want := *j
			other(&want)
			if now := w.Job("j"); now.Trouble != want.Trouble {
				w.Errorf("%s meanwhile: its trouble is %q", name, now.Trouble)
			}
		})
	}
}

// TestEnqueueAgain changes a range before its lost task is replaced. The range must then get no
// task.
func TestEnqueueAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *trialWorld, r *record.Range)
		want   int // number of tasks
	}{
		{"nothing", func(*trialWorld, *record.Range) {}, 1},
		{"it is done", func(w *trialWorld, r *record.Range) { r.State, r.Open = record.Done, "" }, 0},
		{"it is abandoned", func(w *trialWorld, r *record.Range) { r.State, r.Open = record.Abandoned, "" }, 0},
		{"it has had another task, and is done", func(w *trialWorld, r *record.Range) {
			r.State, r.Open, r.Generation = record.Done, "", 5
		}, 0},
		{"it has another task", func(w *trialWorld, r *record.Range) { r.Generation = 5 }, 1},
		{"it is deleted", nil, 0},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.purged("j")
			r := w.Records(j)[j.Root()]
			w.must(w.EnqueueAgain(under(w.Context(), nth(1, "BeginTransaction", func() {
				if c.change == nil {
					w.must(w.Client.Delete(w.Context(), r.Key()))
					return
				}
				now := w.Records(j)[r.ID]
				c.change(w, now)
				_, err := w.Client.Mutate(w.Context(), now.Update())
				w.must(err)
			})), j, r))
			all := w.tasks("range")
			if len(all) != c.want {
				w.Fatalf("%s: %d tasks, want %d", c.name, len(all), c.want)
			}
			now, there := w.Records(j)[r.ID]
			if there && len(all) > 0 && (all[0].of.Generation != now.Generation || now.Generation == 0) {
				w.Errorf("%s: the task is of generation %d, and the range of %d", c.name, all[0].of.Generation,
					now.Generation)
			}
			if there && now.Lost != (c.name == "nothing") {
				w.Errorf("%s: its task was lost: %v", c.name, now.Lost)
			}
			w.purge()
		})
	}
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		r := w.Records(j)[j.Root()]
		w.must(w.EnqueueAgain(w.Context(), j, r))
		if all := w.tasks("range"); len(all) != 1 || all[0].of.Generation != 0 {
			w.Errorf("a range that has its task gets another one: %+v", all)
		}
		err := w.EnqueueAgain(under(w.Context(), func(method string, call func() error) error {
			if method == "GetTask" {
				return status.Error(codes.Unavailable, "out of reach")
			}
			return call()
		}), j, r)
		if now := w.Records(j)[r.ID]; err == nil || now.Generation != 0 {
			w.Errorf("a queue that does not answer: %v; its task is taken for lost: %v", err, now.Lost)
		}
	})
}

// TestRetryPages retries as many failures as one task reopens, and one more.
func TestRetryPages(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const perTask = 100
	for _, c := range []struct {
		n     int
		cause string
		open  int  // number of open ranges after the first task
		next  int  // number of tasks that continue
		goes  bool // whether the retry is still under way
	}{{perTask - 1, "", perTask - 1, 0, false}, {perTask, "", perTask, 1, true}, {perTask + 1, "", perTask, 1, true},
		{perTask + 1, "other", 0, 1, true}, {3, "bad", 3, 0, false}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.allDone("j"), func(j *record.Job) { j.Retrying, j.RetryOf = true, c.cause })
			w.failures(j, c.n)
			w.must(w.deliver(w.Context(), j, "replay", body.Job{}, 0))
			open, err := w.Store.FirstMarked(w.Context(), "open", j.Ref(), "", 1000)
			w.must(err)
			replays, sweeps, now := w.tasks("replay"), w.tasks("sweep"), w.Job("j")
			if len(open) != c.open || len(replays) != c.next || len(sweeps) != 1-c.next || now.Retrying != c.goes ||
				(now.Epoch > j.Epoch) == c.goes {
				w.Errorf("%d failures, retried for %q: %d open, %d tasks and %d sweeps go on; retrying %v, epoch %d",
					c.n, c.cause, len(open), len(replays), len(sweeps), now.Retrying, now.Epoch)
			}
			if c.next > 0 {
				w.must(w.deliver(w.Context(), j, "replay", replays[0].job, 0))
				open, err = w.Store.FirstMarked(w.Context(), "open", j.Ref(), "", 1000)
				if w.must(err); w.Job("j").Retrying || c.cause == "" && len(open) != c.n {
					w.Errorf("%d failures: after the second task %d are open, retrying %v", c.n, len(open),
						w.Job("j").Retrying)
				}
			}
			w.purge()
			w.must(w.Client.Delete(w.Context(), record.JobKey("j")))
		})
	}
}

// TestLateRetry delivers late tasks of a retry: the retry has ended, or the job's epoch was raised
// meanwhile. They must have no effect.
func TestLateRetry(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		sweeps int
	}{
		{"it has ended", func(j *record.Job) { j.Retrying, j.Epoch = false, j.Epoch+1 }, 1},
		{"it has ended, and the job was resumed", func(j *record.Job) { j.Retrying, j.Epoch = false, j.Epoch+2 }, 0},
		{"it has ended, and the job is paused", func(j *record.Job) {
			j.Retrying, j.Epoch, j.State = false, j.Epoch+1, record.Paused
		}, 0},
		{"another one goes on", func(j *record.Job) { j.Epoch++ }, 0},
		{"none goes on", func(j *record.Job) { j.Retrying = false }, 0},
	} {
		for _, path := range []string{"replay", "sweep"} {
			inTrial(t, new(function.Definition), func(w *trialWorld) {
				j := w.retrying("j")
				w.stored(j, c.change)
				late := body.Job{Tick: 1}
				if path == "sweep" {
					late.After = j.Root()
				}
				w.must(w.deliver(w.Context(), j, path, late, 0))
				sweeps := c.sweeps
				if c.name == "none goes on" && path == "sweep" {
					return // an ordinary sweep
				}
				if all := w.tasks("sweep"); len(all) != sweeps || len(all) > 0 && !all[0].job.All {
					w.Errorf("%s: a %s leaves the sweeps %+v, want %d", c.name, path, all, sweeps)
				}
				open, err := w.Store.FirstMarked(w.Context(), "open", j.Ref(), "", 10)
				if err != nil || len(open) > 0 {
					w.Errorf("%s: a %s opens %d ranges, %v", c.name, path, len(open), err)
				}
				w.purge()
			})
		}
	}
}

// TestReviveQueues revives jobs of this queue, of another queue of the engine, and of a third
// queue.
func TestReviveQueues(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		other := w.beside()
		w.Beside = []*lifecycle.Jobs{other}
		w.Revived = func(context.Context) error { return errBad }
		w.ended("due", nil)
		w.running("here", nil)
		there := w.stored(w.running("there", nil), func(j *record.Job) { j.Queue = record.Owner(other.Queue.Name()) })
		w.stored(w.running("far", nil), func(j *record.Job) { j.Queue = "projects/p/locations/l/queues/q" })
		due := w.stored(w.Job("due"), func(j *record.Job) {
			j.Queue, j.Retain, j.Ended = there.Queue, time.Hour, time.Now().Add(-2*time.Hour)
		})
		w.purge()
		if err := w.Revive(w.Context()); !errors.Is(err, errBad) {
			w.Errorf("%v does not have the error of what is called at the end", err)
		}
		if all := w.tasks(""); len(all) != 1 || all[0].job.Job != "here" {
			w.Errorf("the tasks here are %+v", all)
		}
		for path, task := range map[string]body.Job{"sweep": {Tick: tickOf(w, there)},
			"retain": {Tick: time.Now().Truncate(24 * time.Hour).Unix()}} {
			j := map[string]*record.Job{"sweep": there, "retain": due}[path]
			if is, err := other.Queue.Exists(w.Context(), task.Task(j, path, time.Time{})); err != nil || !is {
				w.Errorf("a %s is in the other queue: %v, %v", path, is, err)
			}
		}
		w.purge()
		w.Revived = nil
		if err := w.Revive(w.Context()); err != nil { // the name of the sweep is taken
			w.Error(err)
		}
		if all := w.tasks("sweep"); len(all) != 1 {
			w.Errorf("after a purge the tasks are %+v", all)
		}
		w.purge()
	})
}

// TestUndoAbandons abandons more open ranges than one query returns. Meanwhile, one of them is
// done.
func TestUndoAbandons(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.aborted("j")
		w.ranges(j, 500, nil)
		first, err := w.Store.FirstMarked(w.Context(), "open", j.Ref(), "", 500)
		w.must(err)
		last := first[499]
		w.must(w.Undo(under(w.Context(), nth(2, "BeginTransaction", func() {
			last.State, last.Open = record.Done, ""
			_, err := w.Client.Mutate(w.Context(), last.Update())
			w.must(err)
		})), j, "undo-j"))
		for _, r := range w.Records(j) {
			if (r.State != record.Abandoned) != (r.ID == last.ID) || r.Open != "" {
				w.Errorf("range %s is %s, and open: %q", r.ID, r.State, r.Open)
			}
		}
	})
}
