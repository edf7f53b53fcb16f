package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A forgetting is a mapper's function Forget that a test provides.
type forgetting func(ctx context.Context, j *record.Job, sum record.Totals) error

func (f *forgetting) definition() *function.Definition {
	return &function.Definition{Forget: func(ctx context.Context, _ *function.Attempt, j *record.Job,
		sum record.Totals) error {
		return (*f)(ctx, j, sum)
	}}
}

// TestForgetSees checks what the function Forget sees: a job that has ended, and whose records are
// deleted.
func TestForgetSees(t *testing.T) {
	var f forgetting
	inTrial(t, f.definition(), func(w *trialWorld) {
		calls := 0
		f = func(_ context.Context, j *record.Job, sum record.Totals) error {
			calls++
			c, err := j.DecodeClosing()
			if err != nil || c.Ranges != 1 || c.Alone != 0 || c.Failures != 0 || len(c.Salt) < 10 {
				w.Errorf("its summary is %+v, %v", c, err)
			}
			now := w.Job("j")
			w.want(record.Running, "it is about to end", now.Cleaning == "", now.Cleaned, len(w.Records(j)) == 0)
			if j.State != record.Succeeded || sum.Processed != 4 {
				w.Errorf("it sees a job that is %s, with %d entities", j.State, sum.Processed)
			}
			return nil
		}
		j := w.allDone("j")
		w.must(w.deliver(w.Context(), j, "finalize", body.Job{}, 0))
		w.must(w.deliver(w.Context(), j, "finalize", body.Job{}, 1))
		now := w.Job("j")
		if calls != 1 || now.State != record.Succeeded || !now.Finalizes || now.Finalized != now.Epoch {
			w.Errorf("after %d calls it is %+v", calls, now)
		}
	})
}

// TestForgetFailures ends a job that has a failure, and whose mapper has a finalizer and a function
// Forget. The job must keep its records, and the finalizer must run.
func TestForgetFailures(t *testing.T) {
	for _, fails := range []bool{false, true} {
		forgot, done := 0, 0
		m := &function.Definition{
			Forget: func(context.Context, *function.Attempt, *record.Job, record.Totals) error { forgot++; return nil },
			OnDone: func(context.Context, *function.Attempt, *record.Job, record.Totals) error { done++; return nil },
		}
		inTrial(t, m, func(w *trialWorld) {
			if fails {
				w.fails[2] = errBad
			}
			j := w.ended("j", nil)
			if kept := len(w.Records(j)) > 0; kept != fails || (forgot == 1) == fails || (done == 1) != fails {
				w.Errorf("with failures: %v: records are kept: %v; %d times forgotten, %d times finalized", fails, kept,
					forgot, done)
			}
		})
	}
}

// TestForgetErrors runs a function Forget that returns errors. A permanent error must fail the job.
// After any other error, the function must run again.
func TestForgetErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		f     forgetting
		want  record.JobState
		error string
	}{
		{"temporary", func(context.Context, *record.Job, record.Totals) error { return errBad }, record.Running,
			"the finalizer failed, and is tried again: bad"},
		{"permanent", func(context.Context, *record.Job, record.Totals) error { return fault.Permanent(errBad) },
			record.Failed, "the finalizer failed: bad"},
		{"a panic", func(context.Context, *record.Job, record.Totals) error { panic("ouch") }, record.Running, "ouch"},
		{"an exit", func(context.Context, *record.Job, record.Totals) error { runtime.Goexit(); return nil },
			record.Running, "the finalizer failed, and is tried again"},
		{"no end", func(context.Context, *record.Job, record.Totals) error { time.Sleep(15 * time.Minute); return nil },
			record.Running, "it took more than 5m0s"},
		{"others wait", func(context.Context, *record.Job, record.Totals) error {
			return fmt.Errorf("3 jobs: %w", lifecycle.ErrWaits)
		}, record.Running, "waits to end: 3 jobs: records of the subject are being cleaned up"},
	} {
		for _, try := range []int{0, 1} {
			f := c.f
			inTrial(t, f.definition(), func(w *trialWorld) {
				j := w.allDone("j")
				err := w.deliver(w.Context(), j, "finalize", body.Job{}, try)
				now := w.Job("j")
				again := c.want == record.Running && c.name != "others wait"
				if (err != nil) != again || now.State != c.want || !strings.Contains(now.Error, c.error) ||
					len(now.Totals) == 0 {
					w.Errorf("%s, attempt %d: %v; it is %s: %s", c.name, try, err, now.State, now.Error)
				}
				if now.State == record.Running && now.Begun != "" {
					w.Errorf("%s, attempt %d: its mark is left", c.name, try)
				}
				time.Sleep(15 * time.Minute) // by then, the function that took too long has ended
				synctest.Wait()
				f = func(context.Context, *record.Job, record.Totals) error { return nil }
				if now.State == record.Failed {
					w.must(w.Resume(w.Context(), j.Ref()))
				}
				w.must(w.Revive(w.Context()))
				w.passes(10 * time.Minute)
				w.want(record.Succeeded, c.name, !w.Job("j").Erased.IsZero())
			})
		}
	}
}

// TestFinalizerExits runs a finalizer that calls runtime.Goexit.
func TestFinalizerExits(t *testing.T) {
	m := &function.Definition{OnDone: func(context.Context, *function.Attempt, *record.Job, record.Totals) error {
		runtime.Goexit()
		return nil
	}}
	inTrial(t, m, func(w *trialWorld) {
		err := w.deliver(w.Context(), w.allDone("j"), "finalize", body.Job{}, 0)
		w.want(record.Running, "it exits", err != nil, w.Job("j").Error != "")
		w.must(w.Abort(w.Context(), record.Ref{ID: "j"}))
	})
}

// TestForgetInterrupted lets an operator change the job while the function Forget runs. His change
// must stay, and the end of the function must have no effect.
func TestForgetInterrupted(t *testing.T) {
	var f forgetting
	pause := func(w *trialWorld, ref record.Ref) error { return w.Pause(w.Context(), ref) }
	resume := func(w *trialWorld, ref record.Ref) error { return w.Resume(w.Context(), ref) }
	abort := func(w *trialWorld, ref record.Ref) error { return w.Abort(w.Context(), ref) }
	silent := func(j *record.Job) bool { return j.Error == "" }
	for _, c := range []struct {
		name string
		act  func(w *trialWorld, ref record.Ref) error
		fn   error // the error that Forget returns
		want record.JobState
		is   func(j *record.Job) bool
	}{
		{"pause", pause, nil, record.Paused, nil},
		{"pause, and it fails", pause, errBad, record.Paused, silent},
		{"pause, and it waits", pause, lifecycle.ErrWaits, record.Paused, silent},
		{"resume, and it fails", resume, errBad, record.Running, silent},
		{"resume, and it waits", resume, lifecycle.ErrWaits, record.Running, silent},
		{"resume", resume, nil, record.Running, nil},
		{"abort", abort, nil, record.Aborted, nil},
		{"the summary is lost", func(w *trialWorld, ref record.Ref) error {
			w.stored(w.Job(ref.ID), func(j *record.Job) { j.Closing = nil })
			return nil
		}, nil, record.Running, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTrial(t, f.definition(), func(w *trialWorld) {
				j := w.allDone("j")
				f = func(context.Context, *record.Job, record.Totals) error {
					w.must(c.act(w, j.Ref()))
					return c.fn
				}
				_ = w.deliver(w.Context(), j, "finalize", body.Job{}, 0)
				now := w.Job("j")
				erased := c.want == record.Aborted
				if now.State != c.want || now.Erased.IsZero() == erased || c.is != nil && !c.is(now) {
					w.Errorf("it is %s: %q, erased %v", now.State, now.Error, now.Erased)
				}
				f = func(context.Context, *record.Job, record.Totals) error { return nil }
			})
		})
	}
}

// TestFinalizerDeaths delivers the task that runs a finalizer. According to the job's record, the
// finalizer may have killed processes.
func TestFinalizerDeaths(t *testing.T) {
	for _, c := range []struct {
		deaths int
		in     time.Duration // time until the deaths count
		want   record.JobState
		runs   int32
	}{
		{record.MaxDeaths - 1, 0, record.Succeeded, 1},
		{record.MaxDeaths, 0, record.Failed, 0},
		{record.MaxDeaths, time.Minute, record.Running, 0},
	} {
		var runs atomic.Int32
		m := &function.Definition{OnDone: func(context.Context, *function.Attempt, *record.Job, record.Totals) error {
			runs.Add(1)
			return nil
		}}
		inTrial(t, m, func(w *trialWorld) {
			j := w.stored(w.allDone("j"), func(j *record.Job) {
				for i := range c.deaths {
					j.Deaths = append(j.Deaths, fmt.Sprint("d", i))
					j.DeathsCountAt = append(j.DeathsCountAt, time.Now().Add(c.in))
				}
			})
			err := w.deliver(w.Context(), j, "finalize", body.Job{}, 3)
			now := w.Job("j")
			if (err != nil) != (c.want == record.Running) || now.State != c.want || runs.Load() != c.runs {
				w.Errorf("%d deaths, which count in %v: %v, it is %s after %d runs: %s", c.deaths, c.in, err, now.State,
					runs.Load(), now.Error)
			}
			if now.State == record.Running && now.Begun != "" {
				w.Error("its mark is left")
			}
			if now.State == record.Failed && (!strings.Contains(now.Error, "died 5 times") || len(now.Totals) == 0) {
				w.Errorf("%q, totals %d", now.Error, len(now.Totals))
			}
		})
	}
}

// TestFinalizerCompany checks when a finalizer may run at the same time as other tasks. It may in
// its first delivery, unless it is suspected of having killed a process.
func TestFinalizerCompany(t *testing.T) {
	for _, c := range []struct {
		name    string
		try     int
		solo    bool
		company bool
	}{{"first", 0, false, true}, {"second", 1, false, false}, {"suspected", 0, true, false}} {
		inTrial(t, &function.Definition{OnDone: putsAtEnd}, func(w *trialWorld) {
			j := w.stored(w.allDone("j"), func(j *record.Job) { j.Solo = c.solo })
			place, err := w.Gate.Enter(w.Context(), false)
			w.must(err)
			go func() {
				if err := w.deliver(w.Context(), j, "finalize", body.Job{}, c.try); err != nil {
					w.Error(err)
				}
			}()
			synctest.Wait()
			if ended := w.Job("j").Over(); ended != c.company {
				w.Errorf("%s: it has ended beside other work: %v", c.name, ended)
			}
			place.Leave()
			synctest.Wait()
			if now := w.Job("j"); now.State != record.Succeeded || now.Begun != "" {
				w.Errorf("%s: it is %s", c.name, now.State)
			}
		})
	}
}

// TestFinalizerMark checks the job's record while its finalizer runs. From the second delivery on,
// it must have the delivery's crash mark (record.CrashMark), and the reason why the finalizer runs
// again.
func TestFinalizerMark(t *testing.T) {
	var w *trialWorld
	var seen *record.Job
	m := &function.Definition{OnDone: func(context.Context, *function.Attempt, *record.Job, record.Totals) error {
		seen = w.Job("j")
		return nil
	}}
	for _, try := range []int{0, 1} {
		inTrial(t, m, func(tw *trialWorld) {
			w = tw
			w.must(w.deliver(w.Context(), w.allDone("j"), "finalize", body.Job{}, try))
			if marked := seen.Begun != "" && seen.BegunQuiet && seen.SeenTask != "" && seen.BegunAt.Equal(time.Now()) &&
				seen.Error != ""; marked != (try > 0) || seen.SeenTry != int64(try) {
				w.Errorf("attempt %d: the mark is %+v, and the error %q", try, seen.Suspicion, seen.Error)
			}
		})
	}
}

// TestFinalizerRefused makes the database refuse what the end of a job reads. This is no error of
// the finalizer, so the job must stay running.
func TestFinalizerRefused(t *testing.T) {
	inTrial(t, &function.Definition{OnDone: putsAtEnd}, func(w *trialWorld) {
		j := w.allDone("j")
		lookups := 0
		err := w.deliver(under(w.Context(), func(method string, call func() error) error {
			if method == "Lookup" {
				if lookups++; lookups == 2 {
					return status.Error(codes.InvalidArgument, "refused")
				}
			}
			return call()
		}), j, "finalize", body.Job{}, 0)
		w.want(record.Running, "a lookup was refused", err != nil, w.Job("j").Error == "")
		w.must(w.Abort(w.Context(), j.Ref()))
	})
}

// TestFinalizerTooLate lets a finalizer that must run exclusively wait until its delivery's time is
// over.
func TestFinalizerTooLate(t *testing.T) {
	inTrial(t, &function.Definition{OnDone: putsAtEnd}, func(w *trialWorld) {
		j := w.allDone("j")
		place, err := w.Gate.Enter(w.Context(), false)
		w.must(err)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		err = w.deliver(ctx, j, "finalize", body.Job{}, 1)
		w.want(record.Running, "others were at work", err != nil, w.Job("j").Begun == "")
		place.Leave()
		w.must(w.Abort(w.Context(), j.Ref()))
	})
}

// TestForgetGone ends a job whose records are deleted, in a build whose mapper no longer has a
// function Forget.
func TestForgetGone(t *testing.T) {
	inTrial(t, &function.Definition{OnDone: putsAtEnd}, func(w *trialWorld) {
		j := w.stored(w.allDone("j"), func(j *record.Job) {
			sum := record.Totals{Processed: 4}
			w.must(j.Close(record.Closing{Ranges: 1}, &sum, `{"failures":true}`))
		})
		w.must(w.deliver(w.Context(), j, "finalize", body.Job{}, 0))
		w.want(record.Succeeded, "it has no function Forget", len(w.Records(j)) == 0)
		if err := hasPut(w, j); err != nil {
			w.Error(err)
		}
	})
}

// TestClosedMeanwhile stores the totals of a job whose record has changed since its records were
// added up. The first summary of the job must stay, and a job that is being retried must not end.
func TestClosedMeanwhile(t *testing.T) {
	sum := record.Totals{Processed: 4}
	for _, c := range []struct {
		name      string
		meanwhile func(*record.Job)
		ends      bool
	}{
		{"another delivery has closed it", func(j *record.Job) {
			if err := j.Close(record.Closing{Ranges: 77}, &sum, `{"failures":true}`); err != nil {
				t.Error(err)
			}
		}, true},
		{"another delivery has also deleted its records", func(j *record.Job) {
			if err := j.Close(record.Closing{Ranges: 77}, &sum, `{"failures":true}`); err != nil {
				t.Error(err)
			}
			j.Cleaning, j.Cleaned = "", true
		}, true},
		{"its failures are retried", func(j *record.Job) { j.Retrying = true }, false},
	} {
		var f forgetting
		inTrial(t, f.definition(), func(w *trialWorld) {
			called, first := false, true
			f = func(_ context.Context, j *record.Job, _ record.Totals) error {
				called = true
				if closing, err := j.DecodeClosing(); err != nil || closing.Ranges != 77 {
					w.Errorf("%s: the summary is %+v, %v", c.name, closing, err)
				}
				return nil
			}
			j := w.allDone("j")
			w.must(w.deliver(under(w.Context(), func(method string, call func() error) error {
				if method == "Commit" && first {
					first = false
					w.stored(w.Job("j"), c.meanwhile)
				}
				return call()
			}), j, "finalize", body.Job{}, 0))
			if state := w.Job("j").State; called != c.ends || (state == record.Succeeded) != c.ends {
				w.Errorf("%s: the function is called: %v, and the job is %s", c.name, called, state)
			}
			if !c.ends {
				w.must(w.Abort(w.Context(), j.Ref()))
			}
		})
	}
}

// TestAbortClosed aborts a job whose records were added up. It must keep the totals, and a second
// abort must change nothing.
func TestAbortClosed(t *testing.T) {
	var f forgetting = func(context.Context, *record.Job, record.Totals) error { return nil }
	inTrial(t, f.definition(), func(w *trialWorld) {
		j := w.stored(w.allDone("j"), func(j *record.Job) {
			sum := record.Totals{Processed: 4}
			w.must(j.Close(record.Closing{Ranges: 1}, &sum, `{"failures":true}`))
		})
		w.must(w.Abort(w.Context(), j.Ref()))
		now := w.Job("j")
		if sum, err := now.RecordedTotals(); err != nil || sum.Processed != 4 || now.State != record.Aborted {
			w.Errorf("the job is %s, with the totals %+v, %v", now.State, sum, err)
		}
		w.must(w.Abort(w.Context(), j.Ref()))
		if again := w.Job("j"); !bytes.Equal(again.History, now.History) {
			w.Errorf("a second abort adds to the history %s: %s", now.History, again.History)
		}
	})
}

// TestForgetWaits runs a function Forget that has to wait, in several deliveries. They must enqueue
// only one task for a minute later, and write the job's record only once.
func TestForgetWaits(t *testing.T) {
	f := forgetting(func(context.Context, *record.Job, record.Totals) error { return lifecycle.ErrWaits })
	inTrial(t, f.definition(), func(w *trialWorld) {
		j := w.allDone("j")
		now := time.Now()
		w.must(w.deliver(w.Context(), j, "finalize", body.Job{}, 0))
		commits := 0
		w.must(w.deliver(under(w.Context(), nth(0, "Commit", func() { commits++ })), j, "finalize", body.Job{}, 0))
		w.stored(j, func(j *record.Job) { j.Generation++ })
		w.must(w.deliver(w.Context(), j, "finalize", body.Job{}, 0))
		all := w.tasks("finalize")
		if len(all) != 1 || all[0].at.Sub(now.Truncate(30*time.Second)) != time.Minute || commits != 0 {
			w.Errorf("the tasks are %+v, after %v, and %d commits", all, now, commits)
		}
		w.must(w.Abort(w.Context(), j.Ref()))
		w.purge()
	})
}

// TestMarkRemoved lets a finalizer fail while the database does not answer. The delivery must
// remove its crash mark (record.CrashMark) later. If the job is deleted meanwhile, the delivery
// must end at once.
func TestMarkRemoved(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		var away atomic.Bool
		var w *trialWorld
		m := &function.Definition{OnDone: func(context.Context, *function.Attempt, *record.Job, record.Totals) error {
			if away.Store(true); deleted {
				away.Store(false)
				w.must(w.Client.Delete(w.Context(), record.JobKey("j")))
			}
			return errBad
		}}
		inTrial(t, m, func(tw *trialWorld) {
			w = tw
			j := w.allDone("j")
			ctx := under(w.Context(), func(method string, call func() error) error {
				if away.Load() {
					return status.Error(codes.Unavailable, "out of reach")
				}
				return call()
			})
			time.AfterFunc(3*time.Minute, func() { away.Store(false) })
			begun := time.Now()
			if err := w.deliver(ctx, j, "finalize", body.Job{}, 1); (err == nil) != deleted {
				w.Error(err)
			}
			took := time.Since(begun)
			if deleted {
				if took > time.Minute {
					w.Errorf("it took %v, though the job is deleted", took)
				}
				return
			}
			if now := w.Job("j"); now.Begun != "" || took < 3*time.Minute || took > 4*time.Minute {
				w.Errorf("after %v its mark is %q", took, now.Begun)
			}
			w.must(w.Abort(w.Context(), j.Ref()))
		})
	}
}

// TestInsist checks when removing a crash mark (record.CrashMark) is tried again: after longer and
// longer waits, for ten minutes.
func TestInsist(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		var at []time.Duration
		begun := time.Now()
		w.Insist(w.Context(), func(context.Context) error {
			at = append(at, time.Since(begun)/time.Second)
			return errBad
		})
		if got := fmt.Sprint(at[:8]); got != fmt.Sprint([]time.Duration{0, 1, 3, 7, 15, 31, 61, 91}) {
			w.Errorf("it was tried at %v", at)
		}
		if took := time.Since(begun); took != 10*time.Minute {
			w.Errorf("it took %v", took)
		}
		n := 0
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		w.Insist(ctx, func(ctx context.Context) error { n++; return ctx.Err() })
		if n != 1 {
			w.Errorf("%d tries, after the delivery was canceled", n)
		}
	})
}

// TestJustInTime deletes a job's records in almost all of the time that a delivery has. No further
// task must be enqueued if nothing remains.
func TestJustInTime(t *testing.T) {
	f := forgetting(func(context.Context, *record.Job, record.Totals) error { return nil })
	inTrial(t, f.definition(), func(w *trialWorld) {
		j := w.allDone("j")
		quarter := w.Queue.DispatchDeadline() / 4
		slow := under(w.Context(), nth(2, "Commit", func() { time.Sleep(quarter) }))
		w.must(w.deliver(slow, j, "finalize", body.Job{}, 0))
		w.want(record.Succeeded, "it was in time", len(w.tasks("cleanup")) == 0)
		k := w.allDone("k")
		// the query after the last record
		late := under(w.Context(), nth(4, "RunQuery", func() { time.Sleep(2 * quarter) }))
		w.must(w.deliver(late, k, "finalize", body.Job{}, 0))
		if now := w.Job("k"); now.State != record.Succeeded || len(w.tasks("cleanup")) > 0 {
			w.Errorf("nothing was left to delete, and it is %s", now.State)
		}
	})
}

// TestSlowClosing deletes a job's records so slowly that other tasks must continue. It does the
// same in a process that drains.
func TestSlowClosing(t *testing.T) {
	for _, drains := range []bool{false, true} {
		var f forgetting = func(context.Context, *record.Job, record.Totals) error { return nil }
		inTrial(t, f.definition(), func(w *trialWorld) {
			j := w.allDone("j")
			commits := 0
			err := w.deliver(under(w.Context(), func(method string, call func() error) error {
				if method == "Commit" {
					if commits++; commits == 2 && drains { // the first commit stores the totals
						go func() { _, _ = w.Gate.Drain(context.Background()) }()
					} else if commits == 2 {
						time.Sleep(3 * time.Minute)
					}
				}
				return call()
			}), j, "finalize", body.Job{}, 0)
			w.must(err)
			now := w.Job("j")
			first := body.Job{Tick: 17 * tickOf(w, now)}.Task(now, "cleanup", time.Time{})
			task, err := w.Queue.Exists(w.Context(), first)
			if err != nil || !task || now.State != record.Running || now.Cleaning == "" {
				w.Errorf("drains %v: it is %s, cleaning %q; a task goes on: %v, %v", drains, now.State, now.Cleaning,
					task, err)
			}
			if !drains {
				w.must(w.Revive(w.Context()))
				if err := endsWell(w, j); err != nil {
					w.Error(err)
				}
			}
		})
	}
}

// TestClosedTotals fails to end a job whose totals can't be read.
func TestClosedTotals(t *testing.T) {
	called := false
	var f forgetting = func(context.Context, *record.Job, record.Totals) error { called = true; return nil }
	inTrial(t, f.definition(), func(w *trialWorld) {
		j := w.stored(w.allDone("j"), func(j *record.Job) {
			j.Closing, j.Totals, j.Cleaned = []byte(`{}`), []byte("{"), true
		})
		err := w.deliver(w.Context(), j, "finalize", body.Job{}, 0)
		if err == nil || called {
			w.Errorf("%v, called %v", err, called)
		}
		if err := errors.Join(inState(record.Running)(w, j), w.Abort(w.Context(), j.Ref())); err != nil {
			w.Error(err)
		}
		if now := w.Job("j"); len(now.Totals) > 0 || !strings.Contains(string(now.Params), "erased") {
			w.Errorf("the aborted job has the totals %q and the parameters %s, want neither", now.Totals, now.Params)
		}
	})
}
