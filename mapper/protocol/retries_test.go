package protocol_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestOutage runs a Visit that calls a service which is unavailable for an hour. The job must
// continue when the service is available again.
func TestOutage(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Hour)
		m := mapper.Visit("call", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(5 * time.Millisecond)
			if time.Now().Before(back) {
				return errors.New("connection refused")
			}
			a.Count("called", 1)
			return nil
		})
		const n = 5000
		w := newWorld(t, setting{queue: few(10)}, m)
		w.putAccounts(names(n))
		s := over(w, m, nil)
		if s.State != mapper.StateSucceeded || s.Counters["called"] != n || s.Failures > 0 {
			t.Errorf("the job ended as %q, with %d of %d, %d failures: %s", s.State, s.Counters["called"], n,
				s.Failures,
				s.Error)
		}
		if late := s.Ended.Sub(back); late > 20*time.Minute {
			t.Errorf("it ended %v after the service was back", late)
		}
	})
}

// TestRetries lets one entity fail in three jobs. They have retries of their own, the mapper's
// retries, and the default of Update or Visit. The test checks the number and times of the
// attempts.
func TestRetries(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, test := range []struct {
		name    string
		visit   bool
		mapper  mapper.RetryPolicy
		job     mapper.RetryPolicy
		want    int
		between []time.Duration // the time between attempts
	}{
		{name: "of an Update", want: 5, between: []time.Duration{1, 4, 16, 64}},
		{name: "of a Visit", visit: true, want: 10, between: []time.Duration{1, 4, 16, 64, 256, 1024, 1024, 1024,
			1024}},
		{name: "of the mapper", visit: true, mapper: mapper.RetryPolicy{MaxAttempts: 3, MinBackoff: 10 * time.Second,
			MaxBackoff: 15 * time.Second}, want: 3, between: []time.Duration{10, 15}},
		{name: "of the job", mapper: mapper.RetryPolicy{MaxAttempts: 9, MinBackoff: time.Minute},
			job:  mapper.RetryPolicy{MaxAttempts: 2},
			want: 2, between: []time.Duration{60}},
		{name: "no second attempt", job: mapper.RetryPolicy{MaxAttempts: 1}, want: 1},
		{name: "a first wait above the usual maximum", job: mapper.RetryPolicy{MaxAttempts: 3, MinBackoff: time.Hour},
			want:    3,
			between: []time.Duration{3600, 3600}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var tries []time.Time
				fn := func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
					if a.Key.Name != "user-0000003" {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					tries = append(tries, time.Now())
					return errors.New("broken")
				}
				m := mapper.Update("broken", fn).WithRetryPolicy(test.mapper)
				if test.visit {
					m = mapper.Visit("broken", fn).WithRetryPolicy(test.mapper)
				}
				w := newWorld(t, setting{}, m)
				w.putAccounts(names(100))
				s := over(w, m, &mapper.StartOptions{Retries: test.job})
				if s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || len(tries) != test.want {
					t.Fatalf("%d attempts, want %d; %+v", len(tries), test.want, s)
				}
				for i, want := range test.between {
					if d := tries[i+1].Sub(tries[i]); d < want*time.Second || d > want*time.Second+5*time.Second {
						t.Errorf("attempt %d came %v after the one before, want %ds", i+2, d, want)
					}
				}
			})
		})
	}
}

// TestBadRetries checks that impossible retries are refused in the options of a job and of an
// engine.
func TestBadRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("m", func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })
		w := newWorld(t, setting{}, m)
		for want, r := range map[string]mapper.RetryPolicy{
			"MaxAttempts has to be in [1, 100], it is 101":     {MaxAttempts: 101},
			"MaxAttempts has to be in [1, 100], it is -1":      {MaxAttempts: -1},
			"MinBackoff has to be in (0, 168h0m0s], it is -1s": {MinBackoff: -time.Second},
			"MinBackoff, 2s, it is 1s": {MinBackoff: 2 * time.Second,
				MaxBackoff: time.Second},
		} {
			_, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{Retries: r})
			if !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), "StartOptions.Retries."+want) {
				t.Errorf("%+v: %v", r, err)
			}
			bad := mapper.Update("bad", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
				return nil
			}).WithRetryPolicy(r)
			if _, err := mapper.NewEngine(w.client, w.queue,
				&mapper.EngineOptions{Mappers: []mapper.AnyMapper{bad}}); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v", r, err)
			}
		}
	})
}

// TestServiceLimit runs a Visit without a Rate that calls a service. The service refuses more than
// 100 calls a second. The refusals must slow the job down, so that it ends, and most of its calls
// are accepted.
func TestServiceLimit(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 100.0
		n := testflag.Size(t, 3000, 3000, 10_000)
		var mu sync.Mutex
		tokens, at, calls, refused := limit/10, time.Now(), 0, 0
		m := mapper.Visit("call", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			calls++
			tokens, at = min(limit/10, tokens+limit*time.Since(at).Seconds()), time.Now()
			if tokens < 1 {
				refused++
				return errors.New("429 too many requests")
			}
			tokens--
			a.Count("called", 1)
			return nil
		})
		w := newWorld(t, setting{queue: few(10), log: io.Discard}, m)
		w.putAccounts(names(n))
		s := over(w, m, nil)
		takes := s.Ended.Sub(s.Created)
		t.Logf("%d calls, %d refused, %v, %d tasks, %d pages", calls, refused, takes, s.Tasks, s.Pages)
		if s.State != mapper.StateSucceeded || s.Counters["called"] != int64(n) {
			t.Errorf("status %+v", s)
		}
		if ideal := time.Duration(n) * time.Second / limit; takes > 2*ideal {
			t.Errorf("it took %v, at %v calls a second %v would do", takes, limit, ideal)
		}
		if refused > n/5 {
			t.Errorf("%d of %d calls were refused", refused, calls)
		}
	})
}

// TestRetryAfter lets one entity, and then whole pages, return an error that says when to try
// again.
func TestRetryAfter(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var tries []time.Time
			busy, first := time.Now().Add(90*time.Minute), "user-0000003"
			if all { // its page ends before the first entity
				first = "user-0000000"
			}
			m := mapper.Visit("busy", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				if time.Now().Before(busy) && (all || a.Key.Name == first) {
					if a.Key.Name == first {
						mu.Lock()
						tries = append(tries, time.Now())
						mu.Unlock()
					}
					return mapper.RetryAfter(errors.New("the service is busy"), 25*time.Minute)
				}
				a.Count("seen", 1)
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.handler = repeat(w.engine.Handler())
			w.putAccounts(names(100))
			s := over(w, m, nil)
			if s.State != mapper.StateSucceeded || s.Counters["seen"] != 100 || s.Ended.Before(busy) ||
				s.Ended.After(busy.Add(28*time.Minute)) {
				t.Errorf("status %+v, busy until %v", s, busy)
			}
			// Concurrent deliveries of one task count as one attempt. The failing function slows
			// each of them down.
			for i, begun := 1, tries[0]; i < len(tries); i++ {
				d := tries[i].Sub(begun)
				if d > time.Minute && d < 25*time.Minute {
					t.Errorf("call %d came %v after the start of its attempt", i+1, d)
				}
				if d >= 25*time.Minute {
					begun = tries[i]
				}
			}
		})
	}
}

// TestResumeAfterFailure resumes a job that has failed. Its ranges must get as many attempts as
// before. After that, entities that still fail must be recorded as failures.
func TestResumeAfterFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		attempts := make(map[time.Time]bool)
		m := mapper.Update("broken", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			mu.Lock()
			defer mu.Unlock()
			if a.Key.Name == "user-0000000" {
				attempts[time.Now()] = true
			}
			if a.Key.Name < "user-0000060" {
				return errors.New("broken")
			}
			return nil
		})
		w := newWorld(t, setting{queue: few(1)}, m)
		w.putAccounts(names(100))
		s := over(w, m, &mapper.StartOptions{ID: "j"})
		if s.State != mapper.StateFailed || len(attempts) != mapper.DefaultUpdateAttempts {
			t.Errorf("%d attempts, %+v", len(attempts), s)
		}
		clear(attempts)
		job := w.engine.Job("j")
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StateSucceededWithFailures || s.Processed != 40 || s.Failures != 60 ||
			len(attempts) != mapper.DefaultUpdateAttempts {
			t.Errorf("%d attempts, %+v, %v", len(attempts), s, err)
		}
		if failures, _, err := job.FailuresPage(t.Context(), ""); err != nil || len(failures) != 60 ||
			failures[0].Attempts != mapper.DefaultUpdateAttempts {
			t.Errorf("%d failures, %v", len(failures), err)
		}
	})
}

// A stall is a situation in which a job makes no progress, or is slower than it could be.
type stall struct {
	// before and after bring the world into the situation: before the start of the job, and after
	// it.
	before, after func(*world)

	early      bool // whether the faults start before the job
	unreadable bool // whether the status can't be read, because the database is down
	settings   mapper.StartOptions

	status []string // texts in Status.Bottleneck, or in the error of the status
	log    []string // texts in a line of the log

	gaugeSays int // what scattermap.job.idle must show after a call of ReviveJobs: grows, absent or small
}

const (
	grows  = iota // a minute or more
	absent        // the metric has no value
	small         // less than a minute, because the job makes progress
)

// blocked has the parameters of a job of stalled: whether its function hangs or fails.
type blocked struct{ Hangs, Fails bool }

// stalled is an Update that adds 1 to accounts. If the job's parameters say so, it hangs or fails
// on the account in the middle.
var stalled = mapper.Update("stalled", func(ctx context.Context, a *mapper.Entity[account], p blocked) error {
	if a.Key.Name == names(100)[50].Name {
		if p.Hangs {
			<-ctx.Done()
			return ctx.Err()
		}
		if p.Fails {
			return errors.New("the ledger has no such account")
		}
	}
	a.Value.Balance++
	return nil
})

// answers returns a function that makes the service answer every delivery with a status code.
func answers(code int) func(*world) {
	return func(w *world) {
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) })
	}
}

// TestStalls brings a job into each situation in which it can be stuck. Within two minutes the
// status must name the cause, and so must the log of the process that waits for the job.
// docs/operate.md must have a section about each.
func TestStalls(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, test := range map[string]struct {
		stall
		params blocked
		faults []faults.Rule // faults that start after the job
	}{
		"the queue is paused": {stall: stall{
			before: func(w *world) {
				if _, err := w.tasksClient().PauseQueue(w.Context(),
					&cloudtaskspb.PauseQueueRequest{Name: queueName}); err != nil {
					w.Error(err)
				}
			},
			status: []string{queueName, "is paused"}, log: []string{queueName, "is paused"},
		}},
		"the queue was purged": {stall: stall{
			before: answers(500),
			after: func(w *world) {
				if _, err := w.tasksClient().PurgeQueue(w.Context(),
					&cloudtaskspb.PurgeQueueRequest{Name: queueName}); err != nil {
					w.Error(err)
				}
			},
			status: []string{queueName, "been purged"}, log: []string{queueName, "been purged"},
		}},
		"the handler answers 403": {stall: stall{before: answers(403),
			status: []string{"403", target, "account"}, log: []string{"403", target}}},
		"the service is full": {stall: stall{before: answers(429),
			status: []string{"429", target, "no instance free", "its concurrency"}, log: []string{"429", target}}},
		"requests are cut off": {stall: stall{before: answers(504),
			status: []string{"504", target, "time-out"}, log: []string{"504", target}}},
		"the handler is gone": {stall: stall{early: true, before: answers(200),
			status: []string{"UNAVAILABLE", target, "is the service there"}, log: []string{"UNAVAILABLE", target}},
			faults: []faults.Rule{{Kind: faults.CrashReceiver, Share: 1}}},
		"the sweeps are lost, with the rest": {stall: stall{before: answers(200),
			status: []string{"not in the queue", "something other than the handler answer at " + target},
			log:    []string{"not in the queue"}}},
		"the database refuses commits": {stall: stall{status: []string{"500", "the service's log says why"},
			log: []string{"PermissionDenied"}},
			faults: []faults.Rule{{Kind: faults.LoseCall, Share: 1, Methods: []string{"Commit"},
				Code: codes.PermissionDenied}}},
		"the database refuses everything": {stall: stall{unreadable: true, status: []string{"PermissionDenied"},
			log: []string{"PermissionDenied"}},
			faults: []faults.Rule{{Kind: faults.LoseCall, Share: 1, Code: codes.PermissionDenied}}},
		"the function hangs": {stall: stall{status: []string{"tried again", "30s"},
			log: []string{"entities failed", "1 timeout"}}, params: blocked{Hangs: true}},
		"one entity fails for ever": {
			stall: stall{settings: mapper.StartOptions{Retries: mapper.RetryPolicy{MaxAttempts: 100}},
				status: []string{"an entity is tried again", "the ledger has no such account"},
				log:    []string{"an entity failed again"}}, params: blocked{Fails: true}},
		"the rate is tiny": {stall: stall{gaugeSays: small,
			settings: mapper.StartOptions{ExpectedWorkers: 1, PageSize: 1, Rate: mapper.Rate{EntitiesPerSecond: 0.05}},
			status:   []string{"its rate of 0.05 entities a second"},
			log:      []string{"job running", "0.05 entities a second"}}},
		"a caller has paused it": {stall: stall{gaugeSays: absent, before: answers(500), after: func(w *world) {
			_ = w.engine.Job("stalled").Pause(w.Context())
		}, status: []string{"paused"}, log: []string{"job paused"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log logged
				injected := faults.New(1, test.faults...)
				injected.Pause()
				queue := &cloudtaskspb.Queue{RateLimits: few(4).RateLimits}
				if test.settings.ExpectedWorkers > 0 {
					queue = few(int32(test.settings.ExpectedWorkers))
				}
				w, reader, _ := observed(t,
					setting{log: &log, queue: queue, emulator: emulator.Options{Faults: injected}}, stalled)
				w.putAccounts(names(100))
				calm := w.handler
				if test.before != nil {
					test.before(w)
				}
				settings := test.settings
				settings.ID = "stalled"
				if test.early {
					injected.Resume()
				}
				job, err := stalled.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, test.params, &settings)
				if err != nil {
					t.Fatal(err)
				}
				injected.Resume()
				if test.after != nil {
					test.after(w)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				if s, err := job.Wait(ctx); err == nil {
					t.Errorf("the job has ended: %+v", s)
				}
				<-ctx.Done()
				s, err := job.Status(t.Context())
				if err != nil && !test.unreadable {
					t.Fatal(err)
				}
				var why string
				if test.unreadable {
					why = err.Error()
				} else {
					why = s.Bottleneck
				}
				for _, want := range test.status {
					if !strings.Contains(why, want) {
						t.Errorf("the status says %q, want %q", why, want)
					}
				}
				for _, want := range test.log {
					if log.count(want) == 0 {
						t.Errorf("the log does not say %q:\n%s", want, log.String())
					}
				}
				if err := w.engine.ReviveJobs(t.Context()); err != nil && !test.unreadable {
					t.Error(err)
				}
				idle := read(t, reader)["scattermap.job.idle"]
				if ok := map[int]bool{grows: idle.there && idle.value >= 60, absent: !idle.there, small: idle.there &&
					idle.value < 60}[test.gaugeSays]; !ok {
					t.Errorf("the job is idle for %+v", idle)
				}
				injected.Pause()
				w.handler = calm
				_ = job.Abort(t.Context()) // returns an error if the job has ended
			})
		})
	}
}
