package mapper_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

const otherQueue = location + "/queues/other"

// A second is a second service of a world: with its own queue and URL, on the same database.
type second struct {
	engine *mapper.Engine
	log    logged
}

const otherTarget = "http://other/mapper/"

// tasksClient returns a client of the queue's service.
func (w *world) tasksClient() *cloudtasks.Client {
	w.Helper()
	client, err := w.emulator.TasksClient(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { client.Close() })
	return client
}

// otherHandler has another handler take the deliveries of a second service, and creates its queue.
func (w *world) otherHandler(other http.Handler) *cloudtasks.Client {
	w.Helper()
	client := w.tasksClient()
	if _, err := client.CreateQueue(w.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: otherQueue}}); err != nil {
		w.Fatal(err)
	}
	first := w.handler
	w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Host == "other" {
			other.ServeHTTP(rw, r)
			return
		}
		first.ServeHTTP(rw, r)
	})
	return client
}

// second starts a second service, whose mappers may be others.
func (w *world) second(mappers ...mapper.AnyMapper) *second {
	w.Helper()
	s := new(second)
	client := w.otherHandler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s.engine.Handler().ServeHTTP(rw, r)
	}))
	queue, err := tasks.NewQueue(client, otherQueue, otherTarget, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		w.Fatal(err)
	}
	s.engine, err = mapper.NewEngine(w.client, queue,
		&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(&s.log, nil))})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// steadyCredit takes a while for each account.
var steadyCredit = mapper.Update("steady-credit", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	time.Sleep(100 * time.Millisecond)
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// TestTwoServices has a job run in one service while another, with other mappers, a queue of its
// own and the same database, does all that it can to it.
func TestTwoServices(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var own logged
		w := newWorld(t, setting{queue: few(4), log: &own}, steadyCredit)
		other := w.second(addCredit)
		keys := names(8000)
		w.putAccounts(keys)
		job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "one", PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		ctx, b := t.Context(), other.engine.Job("one")
		for range 10 {
			time.Sleep(10 * time.Second)
			if err := other.engine.ReviveJobs(ctx); err != nil {
				t.Errorf("revive in the other service: %v", err)
			}
		}
		for what, err := range map[string]error{
			"pause": b.Pause(ctx), "resume": b.Resume(ctx), "retry": b.Retry(ctx, nil), "abort": b.Abort(ctx),
			"clean up":        b.CleanUp(ctx, nil),
			"set the rate of": b.SetRate(ctx, mapper.Rate{EntitiesPerSecond: mapper.Unlimited}),
		} {
			if !errors.Is(err, mapper.ErrWrongQueue) || !strings.Contains(err.Error(), queueName) ||
				!strings.Contains(err.Error(), otherQueue) {
				t.Errorf("%s a job of another queue: %v, want an error that names both", what, err)
			}
		}
		if _, err := addCredit.Start(ctx, other.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "one"}); !errors.Is(err, mapper.ErrWrongQueue) {
			t.Errorf("start a job under the ID of one of another queue: %v", err)
		}
		if s, err := b.Status(ctx); err != nil || s.State != mapper.StateRunning || s.Queue != queueName ||
			s.Error != "" {
			t.Errorf("the status, from the other service: %+v, %v", s, err)
		}
		if s := w.wait(job); s.Processed != 8000 {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 10)
		if text := other.log.String(); strings.Contains(text, "WARN") || strings.Contains(text, "ERROR") {
			t.Errorf("the other service logs\n%.2000s", text)
		}
		if text := own.String(); strings.Contains(text, "WARN") || strings.Contains(text, "ERROR") {
			t.Errorf("the job's own service logs\n%.2000s", text)
		}
		if proof, err := mapper.VerifyJob(ctx, w.client, "one", nil); err != nil || len(proof.Problems) > 0 {
			t.Errorf("a program without a queue: %+v, %v", proof, err)
		}
	})
}

// TestForeignTask has the tasks of a job delivered to another service: nothing is done, nothing is
// lost, and the log names both queues.
func TestForeignTask(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{log: new(logged)}, addCredit)
		other := w.second(addCredit)
		handler := w.handler
		w.handler = other.engine.Handler() // the URL of the job's service is wrong
		keys := names(100)
		w.putAccounts(keys)
		job := w.start(10, nil)
		time.Sleep(time.Minute)
		w.wantBalances(keys, 0)
		if text := other.log.String(); !strings.Contains(text, queueName) || !strings.Contains(text, otherQueue) {
			t.Errorf("the log:\n%.2000s", text)
		}
		w.handler = handler
		w.wait(job)
		w.wantBalances(keys, 10)
	})
}

// TestMove moves a job from one queue to another while it runs, is paused, has ended, and is
// cleaned up.
func TestMove(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, paused := range map[string]bool{"running": false, "paused": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var own logged
				w := newWorld(t, setting{queue: few(4), log: &own}, steadyCredit)
				other := w.second(steadyCredit)
				keys := names(2000)
				w.putAccounts(keys)
				job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{ID: "one", PageSize: 20})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				ctx, b := t.Context(), other.engine.Job("one")
				if paused {
					if err := job.Pause(ctx); err != nil {
						t.Fatal(err)
					}
				}
				if err := b.Move(ctx); err != nil {
					t.Fatal(err)
				}
				if err := b.Move(ctx); err != nil {
					t.Errorf("move it once more: %v", err)
				}
				if paused {
					if s, err := b.Status(ctx); err != nil || s.State != mapper.StatePaused {
						t.Errorf("moved: %+v, %v", s, err)
					}
					if err := b.Resume(ctx); err != nil {
						t.Error(err)
					}
				}
				if err := job.Resume(ctx); !errors.Is(err, mapper.ErrWrongQueue) {
					t.Errorf("resume in the old queue: %v", err)
				}
				if s := w.wait(b); s.Processed != 2000 || s.Queue != otherQueue {
					t.Errorf("status %+v", s)
				}
				w.wantBalances(keys, 10)
				time.Sleep(time.Hour) // for the old queue's tasks
				if text := own.String(); strings.Contains(text, "WARN") || strings.Contains(text, "ERROR") {
					t.Errorf("the old service logs\n%.2000s", text)
				}
				// One that has ended, and is cleaned up in the first queue again.
				if err := job.Move(ctx); err != nil {
					t.Fatal(err)
				}
				if err := job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
					t.Fatal(err)
				}
				if err := b.Move(ctx); err != nil { // while that is under way
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				if _, err := b.Status(ctx); !errors.Is(err, mapper.ErrNoSuchJob) {
					t.Errorf("after its clean-up: %v", err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		other := w.second(steadyCredit)
		w.putAccounts(names(10))
		w.start(10, &mapper.StartOptions{ID: "one"})
		if err := other.engine.Job("one").Move(t.Context()); !errors.Is(err, mapper.ErrUnknownMapper) {
			t.Errorf("move it to a service without its mapper: %v", err)
		}
		if err := other.engine.Job("two").Move(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("move no job: %v", err)
		}
		if err := new(mapper.Job).Move(t.Context()); err == nil {
			t.Error("a job without an engine was moved")
		}
		w.wait(w.engine.Job("one"))
	})
}

// TestMoveInTrouble moves a job to and fro between two services while calls and deliveries go
// wrong: each account is credited once, and the records prove it.
func TestMoveInTrouble(t *testing.T) {
	t.Parallel()
	testflag.Simulate(t, 4, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			faults := emulator.NewFaults(seed, trouble(rng)...)
			faults.Pause()
			w := newWorld(t, setting{queue: few(4), log: new(logged), emulator: emulator.Options{Faults: faults}},
				steadyCredit)
			other := w.second(steadyCredit)
			keys := names(1000)
			w.putAccounts(keys)
			job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
				&mapper.StartOptions{ID: "one", PageSize: 20})
			if err != nil {
				t.Fatal(err)
			}
			faults.Resume()
			handles := []*mapper.Job{other.engine.Job("one"), job}
			for i := range 6 {
				time.Sleep(time.Duration(rng.IntN(10_000)) * time.Millisecond)
				for { // until it has been moved
					err := handles[i%2].Move(t.Context())
					if err == nil {
						break
					}
					time.Sleep(time.Second)
				}
			}
			faults.Pause()
			time.Sleep(10 * time.Minute) // for what is late, and a sweep
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
			defer cancel()
			s, err := job.Wait(ctx)
			if err != nil || s.State != mapper.StateSucceeded || s.Processed != 1000 ||
				s.Counters["credited"] != 1000 ||
				s.Queue != queueName {
				t.Errorf("%+v, %v", s, err)
			}
			w.wantBalances(keys, 10)
			if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
				t.Errorf("%+v, %v", proof, err)
			}
		})
	})
}
