package mapper_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A stall is a state in which a job does not move, or not as fast as it could.
type stall struct {
	// They bring the job's world there, before the job is started and behind its start.
	before, after func(*world)

	early      bool // the faults begin before the start
	unreadable bool // the status is an error, as the database answers nothing
	settings   mapper.StartOptions

	status []string // what Status.Bottleneck has, or its error
	log    []string // what a line of the log has

	gaugeSays int // what scattermap.job.idle says, once a schedule has called Revive
}

const (
	grows  = iota // a minute at least
	absent        // nothing
	small         // less than a minute: the job gets on
)

// blocked is why the functions of a stalled job fail or hang.
type blocked struct{ Hangs, Fails bool }

// stalled adds 1 to accounts. The one in the middle hangs or fails, if it is to.
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

// answers has all deliveries be answered with a code.
func answers(code int) func(*world) {
	return func(w *world) {
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) })
	}
}

// TestStalls brings a job into each state in which it can be stuck: within two minutes the status
// and the log of who waits for it name the cause. docs/operations.md has a play for each.
func TestStalls(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, test := range map[string]struct {
		stall
		params blocked
		faults []emulator.Fault // that begin behind the start
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
			faults: []emulator.Fault{{Kind: emulator.CrashReceiver, Share: 1}}},
		"the sweeps are lost, with the rest": {stall: stall{before: answers(200),
			status: []string{"not in the queue", "something other than the handler answer at " + target},
			log:    []string{"not in the queue"}}},
		"the database refuses commits": {stall: stall{status: []string{"500", "the service's log says why"},
			log: []string{"PermissionDenied"}},
			faults: []emulator.Fault{{Kind: emulator.LoseCall, Share: 1, Methods: []string{"Commit"},
				Code: codes.PermissionDenied}}},
		"the database refuses everything": {stall: stall{unreadable: true, status: []string{"PermissionDenied"},
			log: []string{"PermissionDenied"}},
			faults: []emulator.Fault{{Kind: emulator.LoseCall, Share: 1, Code: codes.PermissionDenied}}},
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
		"somebody has paused it": {stall: stall{gaugeSays: absent, before: answers(500), after: func(w *world) {
			_ = w.engine.Job("stalled").Pause(w.Context())
		}, status: []string{"somebody has paused it"}, log: []string{"job paused"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log logged
				faults := emulator.NewFaults(1, test.faults...)
				faults.Pause()
				queue := &cloudtaskspb.Queue{RateLimits: few(4).RateLimits}
				if test.settings.ExpectedWorkers > 0 {
					queue = few(int32(test.settings.ExpectedWorkers))
				}
				w, reader, _ := observed(t,
					setting{log: &log, queue: queue, emulator: emulator.Options{Faults: faults}}, stalled)
				w.putAccounts(names(100))
				calm := w.handler
				if test.before != nil {
					test.before(w)
				}
				settings := test.settings
				settings.ID = "stalled"
				if test.early {
					faults.Resume()
				}
				job, err := stalled.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, test.params, &settings)
				if err != nil {
					t.Fatal(err)
				}
				faults.Resume()
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
				faults.Pause()
				w.handler = calm
				_ = job.Abort(t.Context()) // it may have ended
			})
		})
	}
}
