package lifecycle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// A waiting is a task in the queue.
type waiting struct {
	path string
	at   time.Time
	job  body.Job
	of   body.Range
}

// tasks returns the tasks in the queue for a path. An empty path means all tasks.
func (w *trialWorld) tasks(path string) (found []waiting) {
	w.Helper()
	it := w.Tasks.ListTasks(w.Context(), &cloudtaskspb.ListTasksRequest{Parent: w.Queue.Name(),
		ResponseView: cloudtaskspb.Task_FULL})
	for {
		task, err := it.Next()
		if errors.Is(err, iterator.Done) {
			return found
		}
		w.must(err)
		request := task.GetHttpRequest()
		next := waiting{path: request.Url[strings.LastIndex(request.Url, "/")+1:], at: task.ScheduleTime.AsTime()}
		w.must(json.Unmarshal(request.Body, &next.job))
		w.must(json.Unmarshal(request.Body, &next.of))
		if path == "" || next.path == path {
			found = append(found, next)
		}
	}
}

// nth returns a hook that calls f before the n-th call of a method, counted from 1. If n is 0, it
// calls f before each call.
func nth(n int, method string, f func()) hook {
	var mu sync.Mutex
	calls := 0
	return func(is string, call func() error) error {
		if is == method {
			mu.Lock()
			calls++
			now := n == 0 || calls == n
			mu.Unlock()
			if now {
				f()
			}
		}
		return call()
	}
}

// TestStartTasks checks which tasks a start enqueues: a guard, which is a sweep in case the process
// dies, and a task for each range. The first tasks are for idle workers.
func TestStartTasks(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.NewJob("j", "m")
		j.Workers = 2
		incarnation := j.Incarnation
		first := record.First{Pieces: []split.Piece{{}, {}, {}}}
		is, err := w.Start(w.Context(), j, nil, first, nil)
		w.must(err)
		idle := 0
		for _, task := range w.tasks("range") {
			if task.of.Idle {
				idle++
			}
		}
		sweeps := w.tasks("sweep")
		if n := len(w.tasks("range")); n != len(w.Records(is)) || n != 3 || idle != 2 || len(sweeps) != 1 ||
			is.Incarnation != incarnation {
			w.Fatalf("%d tasks of ranges, %d of them for idle workers, and %d sweeps", n, idle, len(sweeps))
		}
		if at := sweeps[0].at; sweeps[0].job.Guard == 0 || at.Before(time.Now().Add(time.Minute)) ||
			at.After(time.Now().Add(3*time.Minute)) {
			w.Errorf("the guard %d comes at %v", sweeps[0].job.Guard, at)
		}
		if h, err := is.History.Acts(); err != nil || len(h) != 1 || h[0].What != "started" {
			w.Errorf("its history is %+v, %v", h, err)
		}
		w.must(w.Abort(w.Context(), is.Ref()))
	})
}

// TestStartAgainTasks starts a job again after its tasks were deleted. Its first ranges must get
// new tasks, but only in the job's first minutes: later, sweeps do this.
func TestStartAgainTasks(t *testing.T) {
	for _, c := range []struct {
		name   string
		age    time.Duration
		change func(j *record.Job)
		want   int // number of tasks for ranges
		guards int
	}{
		{"at once", 0, nil, 3, 1},
		{"a range is done", 0, nil, 2, 1},
		{"the job has deleted a range", 0, nil, 2, 1},
		{"the job has deleted its ranges", 0, nil, 0, 1},
		{"after four minutes", 4 * time.Minute, nil, 3, 1},
		{"later", 4*time.Minute + time.Second, nil, 1, 1},
		{"paused", 0, func(j *record.Job) { j.State = record.Paused }, 0, 0},
	} {
		for _, seen := range []bool{false, true} { // whether the caller has already read the job
			inTrial(t, new(function.Definition), func(w *trialWorld) {
				j := w.NewJob("j", "m")
				w.must(w.Store.Create(w.Context(), j, record.First{Pieces: []split.Piece{{}, {}, {}}}, nil))
				if c.change != nil {
					w.stored(j, c.change)
				}
				if c.name == "a range is done" {
					for _, r := range w.Records(j) {
						if r.ID != j.Root() {
							w.changed(r, func(r *record.Range) { r.State, r.Open = record.Done, "" })
							break
						}
					}
				}
				for _, r := range w.Records(j) {
					if c.name == "the job has deleted its ranges" ||
						c.name == "the job has deleted a range" && r.ID == record.RangeID(j.Root(), 0) {
						w.must(w.Store.Delete(w.Context(), []*datastore.Key{r.Key()}))
					}
				}
				time.Sleep(c.age)
				var existing *record.Job
				if seen {
					existing = w.Job("j")
				}
				is, err := w.Start(w.Context(), w.NewJob("j", "m"), existing, record.First{}, nil)
				if err != nil || is.Incarnation != j.Incarnation {
					w.Fatalf("%s: %v", c.name, err)
				}
				guards := c.guards
				if !seen {
					guards++ // the guard of the second start
				}
				if n, sweeps := len(w.tasks("range")), len(w.tasks("sweep")); n != c.want || sweeps != guards {
					w.Errorf("%s: %d tasks of ranges, want %d; %d guards, want %d", c.name, n, c.want, sweeps, guards)
				}
			})
		}
	}
}

// TestStartRefused starts a job whose ID belongs to an existing job with other arguments, or to one
// that is being deleted.
func TestStartRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job) // changes the existing job
		wants  string              // a part of the error; empty: no error
	}{
		{"another queue", func(j *record.Job) { j.Queue = "projects/p/locations/l/queues/q" }, "another queue"},
		{"erased", func(j *record.Job) { j.Erased = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) },
			"were erased on 2026-11-01"},
		{"cleaned up", func(j *record.Job) { j.State, j.Cleaning = record.Succeeded, `{"failures":true}` }, ""},
		{"deleted", func(j *record.Job) { j.State, j.Cleaning = record.Succeeded, `{"job":true}` }, "is being deleted"},
		{"cleaned up in an unknown way", func(j *record.Job) { j.State, j.Cleaning = record.Succeeded, `{` },
			"can't be read"},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			w.stored(w.running("j", nil), c.change)
			_, err := w.Start(w.Context(), w.NewJob("j", "m"), nil, record.First{}, nil)
			if (err == nil) != (c.wants == "") || err != nil && !strings.Contains(err.Error(), c.wants) {
				w.Errorf("%s: %v, want %q", c.name, err, c.wants)
			}
			w.purge()
		})
	}
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.NewJob("j", "m")
		_, err := w.Start(w.Context(), j, nil, record.First{}, func(*datastore.Transaction) error { return errBad })
		if _, lookup := w.Store.LoadJob(w.Context(), j.Ref()); !errors.Is(err, errBad) ||
			!errors.Is(lookup, record.ErrNoSuchJob) || errors.Is(err, record.ErrNoSuchJob) {
			w.Errorf("a start that its caller refuses: %v; the job: %v", err, lookup)
		}
	})
}

// TestGuardsFirst delivers guards, which are sweeps, before the commits for which they were
// enqueued. Each change must be tried again with a new guard, up to five times.
func TestGuardsFirst(t *testing.T) {
	t.Parallel()
	resume := func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Resume(ctx, j.Ref()) }
	for _, c := range []struct {
		name   string
		before func(w *trialWorld) *record.Job
		do     func(ctx context.Context, w *trialWorld, j *record.Job) error
		guard  func(w *trialWorld, j *record.Job) // the effect of the guard
	}{
		{"start", func(w *trialWorld) *record.Job { return w.NewJob("j", "m") },
			func(ctx context.Context, w *trialWorld, j *record.Job) error {
				_, err := w.Start(ctx, j, nil, record.First{}, nil)
				return err
			}, func(w *trialWorld, j *record.Job) {
				w.must(w.deliver(w.Context(), j, "sweep", body.Job{Guard: 1}, 0))
			}},
		{"resume", func(w *trialWorld) *record.Job { return w.paused("j") }, resume, func(w *trialWorld,
			_ *record.Job) {
			next := w.Job("j")
			next.Epoch++
			w.must(w.deliver(w.Context(), next, "sweep", body.Job{Guard: 1}, 0))
		}},
		{"move", func(w *trialWorld) *record.Job {
			return w.stored(w.running("j", nil), func(j *record.Job) { j.Queue = "projects/p/locations/l/queues/q" })
		}, func(ctx context.Context, w *trialWorld, j *record.Job) error {
			return w.Move(ctx, j.Ref(), func(*record.Job) error { return nil })
		}, func(w *trialWorld, j *record.Job) {
			w.must(w.deliver(w.Context(), w.Job("j"), "sweep", body.Job{Guard: 1}, 0))
		}},
	} {
		for _, n := range []int{1, 0} {
			inTrial(t, new(function.Definition), func(w *trialWorld) {
				j := c.before(w)
				w.purge()
				err := c.do(under(w.Context(), nth(n, "BeginTransaction", func() { c.guard(w, j) })), w, j)
				guards := map[uint64]bool{}
				for _, task := range w.tasks("sweep") {
					if task.job.Guard > 0 {
						guards[task.job.Guard] = true
					}
				}
				if want := map[int]int{1: 2, 0: 5}[n]; len(guards) != want {
					w.Errorf("%s: %d guards, want %d", c.name, len(guards), want)
				}
				if (err == nil) != (n == 1) || err != nil && (!errors.Is(err, record.ErrState) ||
					!strings.Contains(err.Error(), "so try again")) {
					w.Errorf("%s: with %d guards that come first: %v", c.name, n, err)
				}
				if n == 1 {
					if err := endsWell(w, j); err != nil {
						w.Errorf("%s: %v", c.name, err)
					}
				}
			})
		}
	}
}

// TestGuardless checks that a change after which the job needs no tasks enqueues no guard. A guard
// is a sweep in case the process dies after the commit.
func TestGuardless(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.stored(w.ended("j", nil), func(j *record.Job) { j.Queue = "projects/p/locations/l/queues/q" })
		w.must(w.Move(w.Context(), j.Ref(), func(*record.Job) error { return nil }))
		if all := w.tasks(""); len(all) > 0 {
			w.Errorf("a job that has ended gets tasks: %+v", all)
		}
		if now := w.Job("j"); now.Queue != record.Owner(w.Queue.Name()) || now.Epoch != j.Epoch {
			w.Errorf("it belongs to %s, in epoch %d", now.Queue, now.Epoch)
		}
		k := w.running("k", nil)
		w.purge()
		err := w.CleanUp(w.Context(), k.Ref(), lifecycle.CleanUp{})
		if all := w.tasks(""); !errors.Is(err, record.ErrState) || len(all) > 0 {
			w.Errorf("a refused clean-up: %v, with the tasks %+v", err, all)
		}
	})
}

// TestMoves moves a job in each state to this queue.
func TestMoves(t *testing.T) {
	elsewhere := func(j *record.Job) { j.Queue = "projects/p/locations/l/queues/q" }
	for _, c := range []struct {
		name   string
		before func(w *trialWorld) *record.Job
		paths  []string // the paths of the tasks that the job gets
	}{
		{"it is here", func(w *trialWorld) *record.Job { return w.running("j", nil) }, nil},
		{"it runs", func(w *trialWorld) *record.Job { return w.stored(w.running("j", nil), elsewhere) },
			[]string{"sweep", "sweep"}},
		{"it retries failures", func(w *trialWorld) *record.Job { return w.stored(w.retrying("j"), elsewhere) },
			[]string{"replay", "sweep", "sweep"}},
		{"it is paused", func(w *trialWorld) *record.Job { return w.stored(w.paused("j"), elsewhere) }, nil},
		{"it is being cleaned up", func(w *trialWorld) *record.Job {
			return w.stored(w.cleaning(w.aborted("j"), lifecycle.CleanUp{}), elsewhere)
		}, []string{"cleanup", "sweep"}},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := c.before(w)
			w.purge()
			err := w.Move(w.Context(), j.Ref(), func(j *record.Job) error { j.Concurrent = 77; return nil })
			var paths []string
			for _, task := range w.tasks("") {
				paths = append(paths, task.path)
			}
			if slices.Sort(paths); err != nil || !slices.Equal(paths, c.paths) {
				w.Errorf("%s: it has tasks for %v, want %v; %v", c.name, paths, c.paths, err)
			}
			if now := w.Job("j"); (now.Concurrent == 77) != (c.name != "it is here") {
				w.Errorf("%s: %d tasks at once", c.name, now.Concurrent)
			}
			w.purge()
		})
	}
}

// TestLostAnswers makes the commit of a Resume fail, while another client changes the job. Resume
// must succeed only if the job is in the wanted state.
func TestLostAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		other func(j *record.Job)
		ok    bool
	}{
		{"nothing", func(*record.Job) {}, false},
		{"the same", func(j *record.Job) { j.State, j.Epoch, j.Generation = record.Running, 1, 1 }, true},
		{"another epoch", func(j *record.Job) { j.State, j.Epoch, j.Generation = record.Running, 2, 1 }, false},
		{"another generation", func(j *record.Job) { j.State, j.Epoch, j.Generation = record.Running, 1, 2 }, false},
		{"another state", func(j *record.Job) { j.State, j.Epoch, j.Generation = record.Aborted, 1, 1 }, false},
		{"another end", func(j *record.Job) {
			j.State, j.Epoch, j.Generation, j.Ended = record.Running, 1, 1, time.Now()
		}, false},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.paused("j")
			err := w.Resume(under(w.Context(), func(method string, call func() error) error {
				if method == "Commit" {
					w.stored(j, c.other)
					// an error after which the client does not try again
					return status.Error(codes.DataLoss, "lost")
				}
				return call()
			}), j.Ref())
			if (err == nil) != c.ok {
				w.Errorf("%s: %v", c.name, err)
			}
		})
	}
}

// TestLostLookups makes the commit of a Resume fail, and then the read of the job that follows.
func TestLostLookups(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.paused("j")
		lost := false
		err := w.Resume(under(w.Context(), func(method string, call func() error) error {
			if lost = lost || method == "Commit"; lost {
				return status.Error(codes.DataLoss, "lost")
			}
			return call()
		}), j.Ref())
		if status.Code(err) != codes.DataLoss || w.Job("j").State != record.Paused {
			w.Errorf("%v, it is %s", err, w.Job("j").State)
		}
	})
}

// TestOwned checks that no operation changes a job of another queue.
func TestOwned(t *testing.T) {
	for name, do := range map[string]func(w *trialWorld, ref record.Ref) error{
		"pause":  func(w *trialWorld, ref record.Ref) error { return w.Pause(w.Context(), ref) },
		"resume": func(w *trialWorld, ref record.Ref) error { return w.Resume(w.Context(), ref) },
		"abort":  func(w *trialWorld, ref record.Ref) error { return w.Abort(w.Context(), ref) },
		"retry":  func(w *trialWorld, ref record.Ref) error { return w.Retry(w.Context(), ref, "") },
		"retain": func(w *trialWorld, ref record.Ref) error { return w.Retain(w.Context(), ref, time.Hour) },
		"undo":   func(w *trialWorld, ref record.Ref) error { return w.Undo(w.Context(), w.Job(ref.ID), "u") },
		"clean up": func(w *trialWorld, ref record.Ref) error {
			return w.CleanUp(w.Context(), ref, lifecycle.CleanUp{})
		},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.running("j", nil), func(j *record.Job) {
				j.Queue, j.Retain = "projects/p/locations/l/queues/q", 2*time.Hour
			})
			err := do(w, j.Ref())
			if all := w.tasks("retain"); !errors.Is(err, record.ErrOtherQueue) || len(all) > 0 {
				w.Errorf("%s: %v, with the tasks %+v", name, err, all)
			}
			if now := w.Job("j"); fmt.Sprint(now) != fmt.Sprint(j) {
				w.Errorf("%s changes it: %+v", name, now)
			}
			w.purge()
		})
	}
}
