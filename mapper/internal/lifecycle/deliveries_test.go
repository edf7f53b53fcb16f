package lifecycle_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// TestForgedTasks delivers invalid bodies, which scattermap did not write, for a job that is about
// to end. The tasks must be dropped without an effect.
func TestForgedTasks(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.allDone("j")
		task := func(id, incarnation, more string) string {
			return fmt.Sprintf(`{"job":%q,"incarnation":%q%s}`, id, incarnation, more)
		}
		for _, forged := range []string{
			"", "null", "[]", "{}", task("", j.Incarnation, ""), task("j", "", ""),
			task("a/b", j.Incarnation, `,"guard":1`), task("new", "short", `,"guard":1`),
			task("j", j.Incarnation, `,"after":"x"`), task("j", j.Incarnation, `,"link":-1`),
			task("j", j.Incarnation, `,"tick":"x"`),
		} {
			for _, path := range []string{"finalize", "sweep", "replay", "cleanup", "retain"} {
				task := tasks.Task{Path: path, Body: []byte(forged)}
				if err := w.hand(w.Context(), task, w.Queue.Name(), 0); err != nil {
					w.Errorf("%s with %s: %v", path, forged, err)
				}
			}
		}
		w.want(record.Running, "forged tasks came")
		if n := w.count(record.RangeKind); n != 1 || len(w.tasks("")) > 0 {
			w.Errorf("%d records, and the tasks %+v", n, w.tasks(""))
		}
		w.must(w.hand(w.Context(), tasks.Task{Path: "finalize", Body: []byte(task("j", j.Incarnation, ""))},
			w.Queue.Name(), 0))
		w.want(record.Succeeded, "its own task came")
	})
}

// TestStrangeTasks delivers the task that ends a job, for a job that does not exist or belongs to
// another queue.
func TestStrangeTasks(t *testing.T) {
	const other = "projects/p/locations/l/queues/q"
	for _, c := range []struct {
		name   string
		change func(w *trialWorld, j *record.Job)
		queue  string // the queue to which the job belongs; empty: this queue
		err    bool   // whether the handler returns an error, so that the task is delivered again
	}{
		{"the job is deleted", func(w *trialWorld, j *record.Job) {
			w.must(w.Client.DeleteMulti(w.Context(), []*datastore.Key{record.JobKey(j.ID), record.RangeKey(j.Ref(),
				j.Root())}))
		}, "", false},
		{"another job has its ID", func(w *trialWorld, j *record.Job) {
			w.stored(j, func(j *record.Job) { j.Incarnate(99) })
		}, "", false},
		{"the job was moved away", func(w *trialWorld, j *record.Job) {
			w.stored(j, func(j *record.Job) { j.Queue = other })
		}, "", false},
		{"the task is for another engine", func(w *trialWorld, j *record.Job) {
			w.stored(j, func(j *record.Job) { j.Queue = other })
		}, other, true},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.allDone("j")
			c.change(w, j)
			queue := c.queue
			if queue == "" {
				queue = w.Queue.Name()
			}
			err := w.hand(w.Context(), body.Job{}.Task(j, "finalize", time.Time{}), queue, 0)
			if (err != nil) != c.err {
				w.Errorf("%s: %v", c.name, err)
			}
			if now, err := w.Store.LoadJob(w.Context(), record.Ref{ID: "j"}); err == nil && now.Over() {
				w.Errorf("%s: it has ended", c.name)
			}
			if c.name == "the job is deleted" {
				j.Epoch++
				// the guard of a change of the job
				w.must(w.deliver(w.Context(), j, "sweep", body.Job{Guard: 1}, 0))
				if n := w.count(record.RangeKind); n > 0 {
					w.Errorf("%d records are there", n)
				}
			}
			if err := w.Client.Delete(w.Context(), record.JobKey(j.ID)); err != nil {
				w.Error(err)
			}
		})
	}
}

// TestGuardsOfMoves delivers guards (sweeps that are enqueued before a commit) for a job of another
// queue. Only the guard of a move to this queue may prevent a move under way.
func TestGuardsOfMoves(t *testing.T) {
	const other = "projects/p/locations/l/queues/q"
	for _, c := range []struct {
		name  string
		owner record.Owner // the job's queue; empty: this queue
		guard uint64
		queue string // the queue of the guard's task, as in the request's header
		want  int64
	}{
		{"a guard in this queue", other, 1, "here", 1},
		{"a guard of an older build", other, 1, "", 1},
		{"a guard in the other queue", other, 1, other, 0},
		{"no guard", other, 0, "here", 0},
		{"a job of this queue", "", 1, "here", 0},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.running("j", nil), func(j *record.Job) {
				if c.owner != "" {
					j.Queue = c.owner
				}
			})
			queue := c.queue
			if queue == "here" {
				queue = w.Queue.Name()
			}
			_ = w.hand(w.Context(), body.Job{Guard: c.guard}.Task(j, "sweep", time.Time{}), queue, 0)
			if now := w.Job("j"); now.RefusedMoves != c.want || now.Queue != j.Queue {
				w.Errorf("%s: it has refused %d moves, want %d", c.name, now.RefusedMoves, c.want)
			}
			w.purge()
		})
	}
}

// TestGuardlessSweep delivers an ordinary sweep of the next epoch. Only a guard, a sweep that is
// enqueued before a commit, may raise the job's epoch. So nothing must happen.
func TestGuardlessSweep(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		next := *j
		next.Epoch++
		w.must(w.deliver(w.Context(), &next, "sweep", body.Job{Tick: 1}, 0))
		if now := w.Job("j"); now.Epoch != j.Epoch {
			w.Errorf("it is in epoch %d", now.Epoch)
		}
		w.purge()
	})
}

// TestDeliverySpans checks that each delivery has a trace span, which ends with the delivery.
func TestDeliverySpans(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		spans := tracetest.NewSpanRecorder()
		observer, err := observe.New(nil, trace.NewTracerProvider(trace.WithSpanProcessor(spans)))
		w.must(err)
		j := w.allDone("j")
		observer.Store, observer.Log, observer.Flaws = w.Observer.Store, w.Observer.Log, w.Observer.Flaws
		w.World.Jobs.Observer = observer
		w.must(w.deliver(w.Context(), j, "finalize", body.Job{}, 0))
		if n := len(spans.Ended()); n != 1 || len(spans.Started()) != 1 {
			w.Errorf("%d of %d spans have ended", n, len(spans.Started()))
		}
	})
}

// TestAsked checks that, if the database does not answer, an interactive call ends with an error
// that names the database.
func TestAsked(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		ctx := under(w.Context(), refusing("Lookup", codes.DeadlineExceeded))
		for asked, jobs := range map[bool]*lifecycle.Jobs{false: w.World.Jobs, true: w.Asked()} {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			err := jobs.Pause(ctx, j.Ref())
			if cancel(); err == nil || strings.Contains(err.Error(), "the database does not answer") != asked {
				w.Errorf("asked %v: %v", asked, err)
			}
		}
		w.purge()
	})
}

// TestFullProcess delivers tasks to a process while an exclusive task runs. They must wait. If the
// delivery's time is over, or the process drains, they must end without an effect.
func TestFullProcess(t *testing.T) {
	closed := func(w *trialWorld) *record.Job {
		return w.stored(w.allDone("j"), func(j *record.Job) {
			sum := record.Totals{Processed: 4}
			w.must(sum.RecordIn(j))
			j.Closing = []byte(`{}`)
		})
	}
	for _, c := range []struct {
		path   string
		before func(w *trialWorld) *record.Job
	}{
		{"sweep", func(w *trialWorld) *record.Job { return w.purged("j") }},
		{"replay", func(w *trialWorld) *record.Job { return w.retrying("j") }},
		{"finalize", func(w *trialWorld) *record.Job { return w.allDone("j") }},
		{"finalize", closed},
		{"retain", func(w *trialWorld) *record.Job {
			return w.stored(w.ended("j", nil), due)
		}},
		{"revive", func(w *trialWorld) *record.Job { return w.purged("j") }},
	} {
		for _, drains := range []bool{false, true} {
			var f forgetting = func(context.Context, *record.Job, record.Totals) error { return nil }
			inTrial(t, f.definition(), func(w *trialWorld) {
				j := c.before(w)
				waiting := len(w.tasks(""))
				place, err := w.Gate.Enter(w.Context(), true)
				w.must(err)
				ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
				defer cancel()
				begun := time.Now()
				if drains {
					time.AfterFunc(time.Second, func() { go func() { _, _ = w.Gate.Drain(context.Background()) }() })
				}
				err = w.deliver(ctx, j, c.path, body.Job{}, 0)
				want, took := "the answer is 500", time.Minute
				if drains {
					want, took = "the answer is 421", time.Second
				}
				if fmt.Sprint(err) != want || time.Since(begun) != took {
					w.Errorf("%s, drains %v: %v, after %v", c.path, drains, err, time.Since(begun))
				}
				now := w.Job("j")
				if now.State != j.State || now.Cleaning != "" || len(w.tasks("")) != waiting {
					w.Errorf("%s, drains %v: it is %s, cleaning %q, with tasks %+v", c.path, drains, now.State,
						now.Cleaning, w.tasks(""))
				}
				if place.Leave(); !drains {
					w.must(w.deliver(w.Context(), j, c.path, body.Job{}, 0))
				}
			})
		}
	}
}

// TestDrained delivers a task to a process that has drained. The answer must make the queue deliver
// it to another process.
func TestDrained(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.allDone("j")
		if _, err := w.Gate.Drain(w.Context()); err != nil {
			w.Error(err)
		}
		if err := w.deliver(w.Context(), j, "finalize", body.Job{}, 0); fmt.Sprint(err) != "the answer is 421" {
			w.Error(err)
		}
		w.want(record.Running, "drained")
	})
}

// TestDrainedRetry retries failures in a sweep, while the process drains. The sweep must stop after
// one page of failures.
func TestDrainedRetry(t *testing.T) {
	t.Parallel()
	for _, drains := range []bool{false, true} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			w.works = true
			j := w.stored(w.allDone("j"), func(j *record.Job) { j.Retrying = true })
			w.failures(j, 250)
			ctx := w.Context()
			if drains {
				ctx = under(ctx, nth(1, "Commit", func() {
					go func() { _, _ = w.Gate.Drain(context.Background()) }()
					time.Sleep(time.Second)
				}))
			}
			w.must(w.deliver(ctx, j, "sweep", body.Job{Tick: 1}, 0))
			open, err := w.Store.FirstMarked(w.Context(), "open", j.Ref(), "", 1000)
			w.must(err)
			if want := map[bool]int{false: 250, true: 100}[drains]; len(open) != want || w.Job("j").Retrying != drains {
				w.Errorf("drains %v: %d are open, want %d; retrying %v", drains, len(open), want, w.Job("j").Retrying)
			}
			w.purge()
			w.must(w.Client.Delete(w.Context(), record.JobKey("j")))
		})
	}
}

// failures stores records of n failures. The job's other records do not count them as children.
func (w *trialWorld) failures(j *record.Job, n int) {
	w.Helper()
	w.ranges(j, n, func(r *record.Range) { r.State, r.Open, r.Failed, r.Error = record.Done, "", j.ID, "bad" })
}

// ranges stores records of n ranges. The job's other records do not count them as children.
func (w *trialWorld) ranges(j *record.Job, n int, change func(*record.Range)) {
	w.Helper()
	all := make([]*record.Range, n)
	for i := range all {
		r := j.RootRange()
		r.ID, r.Start = record.RangeID(j.Root(), int64(i)), atAnn()
		if change != nil {
			change(r)
		}
		all[i] = r
	}
	w.insert(all)
}
