package mapper_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestConcurrentStarts starts one job five times at once, while responses are
// lost.
func TestConcurrentStarts(t *testing.T) {
	t.Parallel()
	seed := testflag.Seed(t)
	for i := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			f := lost(seed+i, 0.4, "Commit", "CreateTask")
			w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
			keys := names(300)
			w.putAccounts(keys)
			f.Resume()
			var wg sync.WaitGroup
			var started atomic.Int64
			for range 5 {
				wg.Go(func() {
					// Whoever gets an error tries again, as an operator would.
					for range 20 {
						job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
							&mapper.StartOptions{ID: "once", PageSize: 50})
						if err == nil {
							started.Add(1)
							if job.ID != "once" {
								t.Errorf("job %q", job.ID)
							}
							return
						}
					}
				})
			}
			wg.Wait()
			if started.Load() != 5 {
				t.Errorf("%d of 5 starts succeeded", started.Load())
			}
			w.wait(w.engine.Job("once"))
			f.Pause()
			checkLost(t, f)
			w.wantBalances(keys, 10)
			if jobs := records(t, w.client); len(jobs) != 1 {
				t.Errorf("there are %d jobs", len(jobs))
			}
		})
	}
}

// TestStartAgain starts a job again: while it runs, after its end, and with
// other arguments.
func TestStartAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		other := mapper.Visit("other", func(context.Context, *mapper.Entity[account], credit) error { return nil })
		w := newWorld(t, setting{}, addCredit, other)
		keys := names(300)
		w.putAccounts(keys)
		o := &mapper.StartOptions{ID: "once", PageSize: 50}
		w.start(10, o)
		w.wait(w.start(10, o))
		w.wait(w.start(10, o))
		w.wantBalances(keys, 10)

		refused := func(name string, _ *mapper.Job, err error) {
			if !errors.Is(err, mapper.ErrIDTaken) {
				t.Errorf("%s: %v, want ErrIDTaken", name, err)
			}
		}
		job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{11}, o)
		refused("other params", job, err)
		job, err = addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Other"}, credit{10}, o)
		refused("another kind", job, err)
		job, err = addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account", Namespace: "n"}, credit{10}, o)
		refused("another namespace", job, err)
		job, err = other.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
		refused("another mapper", job, err)

		if _, err := w.engine.StartByName(t.Context(), "add-credit", mapper.Query{Kind: "Account"},
			[]byte(` { "Amount" : 10 } `), o); err != nil {
			t.Errorf("the same by name: %v", err)
		}
		time.Sleep(time.Hour)
		w.wantBalances(keys, 10)
	})
}

// TestStartRevivesTheRoot checks that starting a job again brings back the task
// of its root if it was lost, though its name is still taken.
func TestStartRevivesTheRoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(300)
		w.putAccounts(keys)
		// A handler that swallows the first task: to the queue it is done.
		swallowed := false
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !swallowed {
				swallowed = true
				return
			}
			w.engine.Handler().ServeHTTP(rw, r)
		})
		o := &mapper.StartOptions{ID: "once", PageSize: 50}
		job := w.start(10, o)
		time.Sleep(time.Minute) // before the first sweep
		if status, err := job.Status(t.Context()); err != nil || status.State != mapper.StateRunning ||
			status.OpenRanges != 1 {
			t.Errorf("without its task the job is %+v, %v", status, err)
		}
		w.wait(w.start(10, o))
		w.wantBalances(keys, 10)
	})
}

// TestStartWithoutLookups starts jobs while the database does not answer: a new one, and one that
// is there. Neither is said to have other arguments.
func TestStartWithoutLookups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := emulator.NewFaults(1, emulator.Fault{Kind: emulator.LoseCall, Methods: []string{"Lookup"},
			Code: codes.PermissionDenied})
		f.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
		w.putAccounts(names(100))
		o := &mapper.StartOptions{ID: "once"}
		w.wait(w.start(10, o))
		f.Resume()
		for _, id := range []string{"once", "new"} {
			_, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
				&mapper.StartOptions{ID: id})
			if status.Code(err) != codes.PermissionDenied || errors.Is(err, mapper.ErrIDTaken) {
				t.Errorf("start of %q: %v, want PermissionDenied", id, err)
			}
		}
		f.Pause()
		w.start(10, o)
	})
}

// TestBadStartCallsNothing starts jobs with bad arguments: that needs no database to find out.
func TestBadStartCallsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		before := w.emulator.Usage()
		for _, start := range []func() (*mapper.Job, error){
			func() (*mapper.Job, error) {
				return addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{PageSize: -1})
			},
			func() (*mapper.Job, error) {
				return w.engine.StartByName(t.Context(), "add-credit", mapper.Query{Kind: "Account"},
					[]byte(`{"Bogus":1}`), nil)
			},
			func() (*mapper.Job, error) {
				return addCredit.Start(t.Context(), w.engine, mapper.Query{}, credit{10}, nil)
			},
		} {
			if _, err := start(); !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("error %v, want ErrArguments", err)
			}
		}
		if used := w.emulator.Usage().Sub(before); len(used.RPCs) > 0 {
			t.Errorf("calls were made: %v", used.RPCs)
		}
	})
}

// TestWithoutAnswers asks for all that can be asked for while the database is down: the error says
// so, and long before the client would give up.
func TestWithoutAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := emulator.NewFaults(1,
			emulator.Fault{Kind: emulator.LoseCall, Methods: []string{"Lookup", "RunQuery", "RunAggregationQuery",
				"BeginTransaction", "Commit"}, Code: codes.Unavailable})
		f.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
		w.putAccounts(names(100))
		q := mapper.Query{Kind: "Account"}
		job := w.start(10, nil)
		w.wait(job)
		f.Resume()
		for name, ask := range map[string]func(context.Context) error{
			"Start": func(ctx context.Context) error {
				_, err := addCredit.Start(ctx, w.engine, q, credit{10}, &mapper.StartOptions{ID: "j"})
				return err
			},
			"Plan": func(ctx context.Context) error {
				_, err := addCredit.Plan(ctx, w.engine, q, nil)
				return err
			},
			"Splits": func(ctx context.Context) error {
				_, err := mapper.Splits(ctx, w.client, q, 8, nil)
				return err
			},
			"Jobs": func(ctx context.Context) error {
				_, _, err := w.engine.JobsPage(ctx, nil, "")
				return err
			},
			"Status": func(ctx context.Context) error {
				_, err := job.Status(ctx)
				return err
			},
			"Failures": func(ctx context.Context) error {
				_, _, err := job.FailuresPage(ctx, "")
				return err
			},
			"Verify": func(ctx context.Context) error {
				_, err := job.Verify(ctx, nil)
				return err
			},
			"Pause":   job.Pause,
			"Resume":  job.Resume,
			"Abort":   job.Abort,
			"Retry":   func(ctx context.Context) error { return job.Retry(ctx, nil) },
			"SetRate": func(ctx context.Context) error { return job.SetRate(ctx, mapper.Rate{EntitiesPerSecond: 1}) },
			"CleanUp": func(ctx context.Context) error { return job.CleanUp(ctx, nil) },
			"Revive":  w.engine.ReviveJobs,
		} {
			begun := time.Now()
			err := ask(t.Context())
			if took := time.Since(begun); err == nil ||
				strings.Count(err.Error(), "the database does not answer (it is ") != 1 || took > 30*time.Second {
				t.Errorf("%s after %v: %v", name, took, err)
			}
		}
		f.Pause()
	})
}

// TestStartWithoutCommits starts a job while nothing can be committed: the error is that, and not
// that there is no such job.
func TestStartWithoutCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := emulator.NewFaults(1, emulator.Fault{Kind: emulator.LoseCall, Methods: []string{"Commit"},
			Code: codes.PermissionDenied})
		f.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
		f.Resume()
		for _, o := range []*mapper.StartOptions{{AllowEmpty: true}, {AllowEmpty: true, ID: "once"}} {
			_, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
			if status.Code(err) != codes.PermissionDenied || errors.Is(err, mapper.ErrNoSuchJob) {
				t.Errorf("%v, want PermissionDenied", err)
			}
		}
		f.Pause()
	})
}
