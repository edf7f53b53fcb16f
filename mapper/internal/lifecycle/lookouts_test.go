package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// refusing returns a hook that makes the calls of a method fail with a code.
func refusing(method string, code codes.Code) hook {
	return func(is string, call func() error) error {
		if is == method {
			return status.Error(code, "refused")
		}
		return call()
	}
}

// TestDelivery checks what Delivery returns about a job's tasks.
func TestDelivery(t *testing.T) {
	const idle = 30 * time.Second
	lost := func(w *trialWorld, _ *record.Job, _ *record.Range) { w.purge() }
	for _, c := range []struct {
		name   string
		age    time.Duration
		change func(w *trialWorld, j *record.Job, r *record.Range) // called before Delivery
		hook   hook
		wants  string // a part of the complaint; empty: there is none
		waits  bool
		others int       // the number of other jobs; -1: unknown
		named  [3]string // the IDs of some of them
	}{
		{name: "a task that is due", age: idle, waits: true},
		{name: "a task that waits while the queue is paused", age: idle + time.Microsecond, wants: "is paused",
			others: -1},
		{name: "the queue does not say whether it is paused", age: time.Minute,
			hook: refusing("GetQueue", codes.PermissionDenied), waits: true},
		{name: "the queue does not answer", age: time.Minute, hook: refusing("GetTask", codes.PermissionDenied),
			others: -1},
		{name: "a lost task, just now", age: idle, change: lost,
			others: -1},
		{name: "a lost task", age: idle + time.Second,
			change: lost,
			wants: "is not in the queue, and was not carried out: has projects/test/locations/here/queues/mapper " +
				"been purged, or does something other than the handler answer at http://worker/?", others: -1},
		{name: "a task that is lost for five minutes", age: 5 * time.Minute,
			change: lost, wants: "carried out: has", others: -1},
		{name: "a task that is lost for longer", age: 5*time.Minute + time.Second,
			change: lost,
			wants:  "no sweep has enqueued it again, which resuming the job does: ", others: -1},
		{name: "a full sweep is about to look for it", age: time.Minute, change: func(w *trialWorld, j *record.Job,
			_ *record.Range) {
			w.purge()
			w.must(w.Queue.Enqueue(w.Context(), body.Job{All: true}.Task(j, "sweep", time.Time{})))
		}, others: -1},
		{name: "the queue does not say whether a full sweep is there", age: time.Minute,
			change: lost,
			hook:   failThird("GetTask"), others: -1},
		{name: "it is done meanwhile", age: time.Minute, change: func(w *trialWorld, _ *record.Job, r *record.Range) {
			w.purge()
			w.changed(r, func(r *record.Range) { r.State = record.Done })
		}, others: -1},
		{name: "it has another task meanwhile", age: time.Minute, change: func(w *trialWorld, _ *record.Job,
			r *record.Range) {
			w.purge()
			w.changed(r, func(r *record.Range) { r.Generation++ })
		}, others: -1},
		{name: "it is due later meanwhile", age: time.Minute, change: func(w *trialWorld, _ *record.Job,
			r *record.Range) {
			w.purge()
			w.changed(r, func(r *record.Range) { r.NotBefore = time.Now() })
		}, others: -1},
		{name: "it is deleted meanwhile", age: time.Minute, change: func(w *trialWorld, _ *record.Job,
			r *record.Range) {
			w.purge()
			w.must(w.Client.Delete(w.Context(), r.Key()))
		}, others: -1},
		{name: "the database does not answer", age: time.Minute,
			change: lost,
			hook:   refusing("Lookup", codes.PermissionDenied), others: -1},
		{name: "beside other jobs", age: idle, change: func(w *trialWorld, _ *record.Job, _ *record.Range) {
			w.running("k", nil)
			w.running("l", nil)
		}, waits: true, others: 2, named: [3]string{"l", "k"}},
		{name: "beside many jobs", age: idle, change: func(w *trialWorld, _ *record.Job, _ *record.Range) {
			for id := range strings.SplitSeq("abcdefghikl", "") {
				w.running(id, nil)
			}
		}, waits: true, others: estimate.ManyOthers, named: [3]string{"l", "k", "i"}},
		{name: "beside jobs that are not known", age: idle, hook: refusing("RunQuery", codes.PermissionDenied),
			waits: true, others: -1},
		{name: "a task that is not due", age: 0, others: -1},
		{name: "a paused job", age: time.Minute, change: func(_ *trialWorld, j *record.Job, _ *record.Range) {
			j.State = record.Paused
		}, others: 0},
		{name: "a job of another queue", age: time.Minute, change: func(_ *trialWorld, j *record.Job, _ *record.Range) {
			j.Queue = "other"
		}, others: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTrial(t, new(function.Definition), func(w *trialWorld) {
				j := w.running("j", nil)
				r := w.Records(j)[j.Root()]
				time.Sleep(c.age)
				if c.change != nil {
					c.change(w, j, r)
				}
				ctx := w.Context()
				if c.hook != nil {
					ctx = under(ctx, c.hook)
				}
				q := w.Delivery(ctx, j, r)
				if (q.Complaint == "") != (c.wants == "") || !strings.Contains(q.Complaint, c.wants) ||
					q.Waits != c.waits {
					w.Errorf("%+v, want %q, waits %v", q, c.wants, c.waits)
				}
				others := c.others
				if others < 0 {
					others = estimate.Unknown
				}
				if q.Others != others || q.Named != c.named || (q.Name == "") != (c.name == "a paused job" ||
					c.name == "a job of another queue") {
					w.Errorf("%+v, want %d others, %q", q, others, c.named)
				}
				w.purge()
			})
		})
	}
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		jobs := *w.World.Jobs
		jobs.Queue = nil
		if q := jobs.Delivery(w.Context(), j, nil); q != (estimate.Queue{}) {
			w.Errorf("without a queue: %+v", q)
		}
		// with a new generation, its tasks have new names
		j = w.stored(w.allDone("k"), func(j *record.Job) { j.Generation++ })
		time.Sleep(time.Hour)
		if q := w.Delivery(w.Context(), j, nil); q.Complaint != "" || q.Waits {
			w.Errorf("nothing waits: %+v", q)
		}
		w.must(w.Complete(w.Context(), j, false))
		time.Sleep(10 * time.Second)
		if q := w.Delivery(w.Context(), j, nil); q.Complaint != "" || q.Waits {
			w.Errorf("the end of the job waits, and no range: %+v", q)
		}
		time.Sleep(time.Minute)
		if q := w.Delivery(w.Context(), j, nil); !strings.Contains(q.Complaint, "is paused") {
			w.Errorf("the end of the job waits in a paused queue: %+v", q)
		}
		w.purge()
	})
}

// TestTriedDelivery looks at a task that was delivered once, and is being retried. Delivery must
// say neither that it waits for other jobs, nor that the queue is paused.
func TestTriedDelivery(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		w.Change(func() { w.works = false })
		j := w.running("j", nil)
		w.passes(50 * time.Millisecond)
		for _, wait := range []time.Duration{10 * time.Second, time.Minute} {
			time.Sleep(wait)
			if q := w.Delivery(w.Context(), j, w.Records(j)[j.Root()]); q.Complaint != "" || q.Waits {
				w.Errorf("after %v: %+v", wait, q)
			}
		}
		w.purge()
	})
}

// failThird returns a hook that makes the third and all later calls of a method fail.
func failThird(method string) hook {
	var calls atomic.Int32
	return func(is string, call func() error) error {
		if is == method && calls.Add(1) > 2 {
			return status.Error(codes.PermissionDenied, "refused")
		}
		return call()
	}
}

// changed changes the stored record of a range.
func (w *trialWorld) changed(r *record.Range, change func(*record.Range)) {
	w.Helper()
	now := *r
	change(&now)
	_, err := w.Client.Mutate(w.Context(), now.Update())
	w.must(err)
}

// TestLooks looks at a job whose tasks can't be delivered.
func TestLooks(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		time.Sleep(time.Minute)
		if says := w.Look(w.Context(), j); !strings.Contains(says, "is paused") {
			w.Errorf("%q", says)
		}
		end := body.Job{}.Task(j, "finalize", time.Time{})
		// this task waits, too, but Delivery can't know whether it should exist
		w.must(w.Queue.Enqueue(w.Context(), end))
		time.Sleep(time.Minute)
		if says := w.Look(under(w.Context(), refusing("RunQuery", codes.PermissionDenied)), j); says != "" {
			w.Errorf("the database does not answer: %q", says)
		}
		w.purge()
	})
}

// TestLookLater checks when a process looks at the queue some time after a start: only if it does
// not drain, and the job still runs.
func TestLookLater(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(w *trialWorld, j *record.Job)
		want   bool // whether the log has a complaint
	}{
		{"it runs", func(*trialWorld, *record.Job) {}, true},
		{"it is paused", func(w *trialWorld, j *record.Job) { w.must(w.Pause(w.Context(), j.Ref())) }, false},
		{"the process drains", func(w *trialWorld, _ *record.Job) { _, _ = w.Gate.Drain(w.Context()) }, false},
		{"it is deleted", func(w *trialWorld, j *record.Job) {
			w.must(w.Client.Delete(w.Context(), record.JobKey(j.ID)))
		}, false},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			var log lines
			w.Observer.Log = log.logger()
			j := w.running("j", nil)
			c.before(w, j)
			time.Sleep(89 * time.Second)
			if text := log.String(); strings.Contains(text, "is paused") {
				w.Errorf("%s: too early: %s", c.name, text)
			}
			time.Sleep(time.Minute)
			if text := log.String(); strings.Contains(text, "is paused") != c.want {
				w.Errorf("%s: %q", c.name, text)
			}
			if now, err := w.Store.LoadJob(w.Context(), j.Ref()); err == nil {
				w.LookLater(w.stored(now, func(j *record.Job) { j.State = record.Aborted }))
			}
		})
	}
}

// TestLookAfterResume checks that a process also looks some time after a resume.
func TestLookAfterResume(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.paused("j")
		time.Sleep(time.Hour)
		var log lines
		w.Observer.Log = log.logger()
		w.must(w.Resume(w.Context(), j.Ref()))
		w.must(w.deliver(w.Context(), w.Job("j"), "sweep", body.Job{All: true}, 0))
		time.Sleep(2 * time.Minute)
		if text := log.String(); !strings.Contains(text, "is paused") {
			w.Errorf("%q", text)
		}
		w.purge()
	})
}

// TestConcurrency checks the result if the process may not read the queue's settings.
func TestConcurrency(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		for code, wrong := range map[codes.Code]bool{codes.PermissionDenied: false, codes.Unimplemented: false,
			codes.NotFound: true} {
			n, err := lifecycle.Concurrency(under(w.Context(), refusing("GetQueue", code)), w.World.Jobs.Queue)
			if n != 0 || (err != nil) != wrong {
				w.Errorf("%v: %d, %v", code, n, err)
			}
		}
		src := source.New(w.hooked, nil)
		w.running("j", nil)
		w.put(testworld.Key(1), &testworld.Thing{N: 1})
		found, err := w.FindOut(w.Context(), src, query.Query{Kind: "K"}, "none", true, false)
		if err != nil || found.Existing != nil || found.Database(new(record.Job)) != nil {
			w.Errorf("a new ID: %+v, %v, %v", found, err, found.Database(new(record.Job)))
		}
		for method, code := range map[string]codes.Code{"Lookup": codes.PermissionDenied, "GetQueue": codes.NotFound,
			"RunQuery": codes.PermissionDenied, "RunAggregationQuery": codes.PermissionDenied} {
			ctx := under(w.Context(), refusing(method, code))
			found, err := w.FindOut(ctx, src, query.Query{Kind: "K"}, "j", true, false)
			switch {
			case method == "GetQueue":
				if err == nil {
					w.Errorf("%s fails, and nobody says so", method)
				}
			case err != nil || found.Database(new(record.Job)) == nil:
				w.Errorf("%s fails: %v, %v", method, err, found.Database(new(record.Job)))
			case method == "Lookup" && found.Existing != nil:
				w.Errorf("a job was found without a lookup")
			}
		}
		w.purge()
	})
}

// TestAwaits waits for jobs that end or are paused, also while calls fail.
func TestAwaits(t *testing.T) {
	none := func(record.Ref) error { return nil }
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		ends   bool
	}{
		{"it has ended", func(j *record.Job) { j.State = record.Failed }, true},
		{"its failure limit has paused it", func(j *record.Job) { j.State, j.Limited = record.Paused, true }, true},
		{"its budget has paused it", func(j *record.Job) { j.State, j.OverBudget = record.Paused, true }, true},
		{"somebody has paused it", func(j *record.Job) { j.State = record.Paused }, false},
		{"it runs, and had reached a limit", func(j *record.Job) { j.Limited, j.OverBudget = true, true }, false},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.running("j", nil), c.change)
			ctx, cancel := context.WithTimeout(w.Context(), 5*time.Minute)
			defer cancel()
			begun := time.Now()
			err := w.Await(ctx, j.Ref(), none)
			if (err == nil) != c.ends || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("%s: %v", c.name, err)
			}
			if took := time.Since(begun); took != map[bool]time.Duration{true: 0, false: 5 * time.Minute}[c.ends] {
				w.Errorf("%s: after %v", c.name, took)
			}
			w.purge()
		})
	}
}

// TestAwaitErrors waits for a job while the database does not answer. Await must fail after a
// minute of errors, but not before the fifth error. If the database refuses the call, it must fail
// at once.
func TestAwaitErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails func(calls int, since time.Duration) bool
		slow  time.Duration // duration of each failing call
		code  codes.Code
		took  time.Duration // the least duration of the wait, which may be up to 3 s longer; 0: it ends at once
		calls int           // the number of calls; 0: any number
		err   bool
	}{
		{"refused", func(int, time.Duration) bool { return true }, 0, codes.PermissionDenied, 0, 1, true},
		{"out of reach", func(int, time.Duration) bool { return true }, 0, codes.DataLoss, time.Minute, 0, true},
		{"out of reach for less than a minute", func(_ int, since time.Duration) bool {
			return since < 55*time.Second
		}, 0, codes.DataLoss, 55 * time.Second, 0, false},
		{"out of reach, with an answer in between", func(_ int, since time.Duration) bool {
			return since < 45*time.Second || 50*time.Second < since && since < 100*time.Second
		}, 0, codes.DataLoss, 100 * time.Second, 0, false},
		{"slow", func(calls int, _ time.Duration) bool { return calls <= 4 }, 40 * time.Second, codes.DataLoss,
			160 * time.Second, 0, false},
		{"slow, five times", func(calls int, _ time.Duration) bool { return calls <= 5 }, 40 * time.Second,
			codes.DataLoss, 200 * time.Second, 5, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTrial(t, new(function.Definition), func(w *trialWorld) {
				j := w.running("j", nil)
				begun, calls := time.Now(), 0
				ctx := under(w.Context(), func(method string, call func() error) error {
					if method != "Lookup" {
						return call()
					}
					if calls++; c.fails(calls, time.Since(begun)) {
						time.Sleep(c.slow)
						return status.Error(c.code, "no answer")
					}
					if time.Since(begun) < c.took {
						return call()
					}
					w.stored(j, func(j *record.Job) { j.State = record.Aborted })
					return call()
				})
				err := w.Await(ctx, j.Ref(), func(record.Ref) error { return nil })
				took := time.Since(begun)
				if (err != nil) != c.err || took < c.took || took > c.took+9*time.Second ||
					c.calls > 0 && calls != c.calls {
					w.Errorf("%v after %v and %d calls", err, took, calls)
				}
				w.purge()
			})
		})
	}
}

// TestAwaitLooks checks that Await asks the queue once a minute, and only while the job runs. It
// must not wait for a later job with the same ID.
func TestAwaitLooks(t *testing.T) {
	for _, paused := range []bool{false, true} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.running("j", nil)
			if paused {
				j = w.stored(j, func(j *record.Job) { j.State = record.Paused })
			}
			var looks atomic.Int32
			ctx, cancel := context.WithTimeout(w.Context(), 10*time.Minute+30*time.Second)
			defer cancel()
			err := w.Await(under(ctx, nth(0, "RunQuery", func() { looks.Add(1) })), record.Ref{ID: j.ID},
				func(record.Ref) error { return nil })
			// each time, there is one query for open ranges, and possibly one for other jobs
			if n := looks.Load(); !errors.Is(err, context.DeadlineExceeded) || paused && n > 0 ||
				!paused && (n < 9 || n > 11) {
				w.Errorf("paused %v: %v, after %d looks", paused, err, n)
			}
			time.AfterFunc(time.Minute, func() {
				w.stored(j, func(j *record.Job) { j.Incarnate(99); j.State = record.Aborted })
			})
			begun := time.Now()
			err = w.Await(w.Context(), record.Ref{ID: j.ID}, func(record.Ref) error { return errBad })
			if took := time.Since(begun); !errors.Is(err, record.ErrNoSuchJob) || took > 65*time.Second {
				w.Errorf("another job has the ID: %v after %v", err, took)
			}
			w.purge()
		})
	}
}

// TestAwaitWakes checks that Await notices at once if the same process changes the job's state.
func TestAwaitWakes(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.running("j", nil)
		begun := time.Now()
		time.AfterFunc(30*time.Minute, func() { w.must(w.Abort(w.Context(), j.Ref())) })
		err := w.Await(w.Context(), j.Ref(), func(record.Ref) error { return nil })
		if took := time.Since(begun); err != nil || took != 30*time.Minute {
			w.Errorf("%v after %v", err, took)
		}
		w.purge()
		_, err = w.Tasks.GetQueue(w.Context(), &cloudtaskspb.GetQueueRequest{Name: w.Queue.Name()})
		w.must(err)
	})
}
