package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

const otherQueue = location + "/queues/other"

// A second is a second service in a world: it uses the same database, and has its own queue and
// URL.
type second struct {
	engine *mapper.Engine
	log    logged
}

const otherTarget = "http://other/mapper/"

// tasksClient returns a client of Cloud Tasks.
func (w *world) tasksClient() *cloudtasks.Client {
	w.Helper()
	client, err := w.emulator.TasksClient(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { client.Close() })
	return client
}

// otherHandler creates the queue of a second service. Its deliveries go to the handler.
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

// second starts a second service in a world. Its mappers may be others.
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

// steadyCredit adds an amount to accounts, and takes a while for each.
var steadyCredit = mapper.Update("steady-credit", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	time.Sleep(100 * time.Millisecond)
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// TestTwoServices runs a job in one service. Meanwhile another service makes every call that could
// affect the job. It has other mappers and another queue, and uses the same database.
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

// TestForeignTask delivers the tasks of a job to another service. Nothing may be processed or lost,
// and the log must name both queues.
func TestForeignTask(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{log: new(logged)}, addCredit)
		other := w.second(addCredit)
		handler := w.handler
		w.handler = other.engine.Handler() // the wrong service gets the deliveries
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

// TestMove moves a job from one queue to another: while it runs, is paused, has ended, and is
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
				time.Sleep(time.Hour) // until the tasks in the old queue have run
				if text := own.String(); strings.Contains(text, "WARN") || strings.Contains(text, "ERROR") {
					t.Errorf("the old service logs\n%.2000s", text)
				}
				// A job that has ended can also be moved. The service of the first queue then
				// cleans it up.
				if err := job.Move(ctx); err != nil {
					t.Fatal(err)
				}
				if err := job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
					t.Fatal(err)
				}
				if err := b.Move(ctx); err != nil { // while the job is cleaned up
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

// TestContinueWithoutTheMapper retries and resumes a job in a service of the same queue that lacks
// the job's mapper. It must be refused. An engine that handles no tasks, as of an operator, may.
func TestContinueWithoutTheMapper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(300))
		over(w, failing77, &mapper.StartOptions{ID: "one"})
		engineOf := func(m mapper.AnyMapper) *mapper.Engine {
			e, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{m},
				Logger: slog.New(slog.DiscardHandler)})
			w.must(err)
			return e
		}
		other := engineOf(steadyCredit)
		other.Handler()
		for name, err := range map[string]error{
			"retry":  other.Job("one").Retry(t.Context(), nil),
			"resume": other.Job("one").Resume(t.Context()),
		} {
			if !errors.Is(err, mapper.ErrUnknownMapper) || !strings.Contains(err.Error(), failing77.Name()) {
				t.Errorf("%s in a service without the mapper: %v, want ErrUnknownMapper that names it", name, err)
			}
		}
		if s := w.status(w.engine.Job("one")); s.State != mapper.StateSucceededWithFailures {
			t.Errorf("status %+v", s)
		}
		w.must(engineOf(steadyCredit).Job("one").Retry(t.Context(), nil))
	})
}

// TestMoveInTrouble moves a job back and forth between two services, while calls and deliveries
// fail. Each account must be credited once, and the job's records must prove that.
func TestMoveInTrouble(t *testing.T) {
	t.Parallel()
	testflag.Simulate(t, 2, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			injected := faults.New(seed, trouble(rng)...)
			injected.Pause()
			w := newWorld(t, setting{queue: few(4), log: new(logged), emulator: emulator.Options{Faults: injected}},
				steadyCredit)
			other := w.second(steadyCredit)
			keys := names(1000)
			w.putAccounts(keys)
			job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
				&mapper.StartOptions{ID: "one", PageSize: 20})
			if err != nil {
				t.Fatal(err)
			}
			injected.Resume()
			handles := []*mapper.Job{other.engine.Job("one"), job}
			for i := range 6 {
				time.Sleep(time.Duration(rng.IntN(10_000)) * time.Millisecond)
				for { // repeat the call until it succeeds
					err := handles[i%2].Move(t.Context())
					if err == nil {
						break
					}
					time.Sleep(time.Second)
				}
			}
			injected.Pause()
			time.Sleep(10 * time.Minute) // until late tasks, and a sweep, have run
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
			defer cancel()
			s, err := job.Wait(ctx)
			if err != nil || s.State != mapper.StateSucceeded || s.Processed != 1000 ||
				s.Counters["credited"] != 1000 ||
				s.Queue != queueName {
				t.Errorf("status %+v, %v", s, err)
			}
			w.wantBalances(keys, 10)
			if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
				t.Errorf("proof %+v, %v", proof, err)
			}
		})
	})
}

// patient adds an amount to accounts, and takes a while for each. Its jobs belong to the queue for
// background jobs.
var patient = mapper.Update("patient", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	time.Sleep(50 * time.Millisecond)
	a.Value.Balance += p.Amount
	return nil
}).WithQueue("other")

// severalQueues returns a world whose engine has two queues. The second one delivers one task at a
// time.
func severalQueues(t *testing.T, mappers ...mapper.AnyMapper) *world {
	t.Helper()
	return severalQueuesOf(t, setting{queue: few(4)}, mappers...)
}

// severalQueuesOf does the same as severalQueues, with further settings of the world.
func severalQueuesOf(t *testing.T, s setting, mappers ...mapper.AnyMapper) *world {
	t.Helper()
	w := newWorld(t, s)
	client := w.tasksClient()
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: otherQueue, RateLimits: few(1).RateLimits}}); err != nil {
		t.Fatal(err)
	}
	other, err := tasks.NewQueue(client, otherQueue, target, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	w.engine, err = mapper.NewEngine(w.client, w.queue,
		&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			OtherQueues: []*tasks.Queue{other}})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = w.engine.Handler()
	return w
}

// TestSeveralQueues runs jobs in two queues of one engine. The mapper names the queue, or the start
// does. Calls that have only the ID of a job must find the right queue, even after it was purged.
func TestSeveralQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := severalQueues(t, patient, addCredit), t.Context()
		const n = 400
		w.putAccounts(names(n))
		accounts := mapper.Query{Kind: "Account"}
		start := func(m *mapper.Mapper[credit], id, queue string) *mapper.Job {
			job, err := m.Start(ctx, w.engine, accounts, credit{1},
				&mapper.StartOptions{ID: id, Queue: queue, PageSize: 20})
			if err != nil {
				t.Fatal(err)
			}
			return job
		}
		start(patient, "by-mapper", "")
		time.Sleep(time.Second)
		start(addCredit, "first", "")
		time.Sleep(time.Second)
		start(addCredit, "by-start", otherQueue)

		slow := w.engine.Job("by-mapper")
		if err := slow.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // until pages that still run have ended
		if _, err := w.tasksClient().PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: otherQueue}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // the clean-up takes a minute
		if err := slow.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if err := slow.SetRate(ctx, mapper.Rate{EntitiesPerSecond: 1000}); err != nil {
			t.Error(err)
		}
		if err := w.engine.ReviveJobs(ctx); err != nil {
			t.Error(err)
		}
		for id, queue := range map[string]string{"by-mapper": otherQueue, "first": queueName, "by-start": otherQueue} {
			s, err := w.engine.Job(id).Wait(ctx)
			if err != nil || s.State != mapper.StateSucceeded || s.Processed != n || s.Queue != queue {
				t.Errorf("%s: %+v, %v; want it to be of %s", id, s, err, queue)
			}
		}
		var all []account
		if _, err := w.client.GetAll(ctx, datastore.NewQuery("Account").Order("__key__"), &all); err != nil ||
			len(all) != n {
			t.Fatalf("%d accounts, %v", len(all), err)
		}
		for i, a := range all {
			if a.Balance != int64(i+3) {
				t.Fatalf("account %d has %d, want %d", i, a.Balance, i+3)
			}
		}
		jobs, next, err := w.engine.JobsPage(ctx, nil, "")
		var ids []string
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		if want := []string{"by-start", "first", "by-mapper"}; err != nil || next != "" || !slices.Equal(ids, want) {
			t.Errorf("Jobs returned %v, %q, %v; want %v", ids, next, err, want)
		}

		// the job's mapper belongs to the first queue, and the start has named the second one
		job := w.engine.Job("by-start")
		if err := job.Move(ctx); err != nil {
			t.Error(err)
		}
		if s, err := job.Status(ctx); err != nil || s.Queue != queueName {
			t.Errorf("after the move it is of %+v, %v", s, err)
		}
		if err := slow.CleanUp(ctx, nil); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // until the job is cleaned up
	})
}

// TestJobsOfSeveralQueues lists the jobs of two queues. The list has several pages.
func TestJobsOfSeveralQueues(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := severalQueues(t, addCredit), t.Context()
		var want []string
		for i := range 130 {
			id := fmt.Sprintf("job-%03d", i)
			if _, err := addCredit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1},
				&mapper.StartOptions{ID: id, AllowEmpty: true,
					Queue: []string{"mapper", "other", "other"}[i%3]}); err != nil {
				t.Fatal(err)
			}
			want = append(want, id)
			time.Sleep(time.Second)
		}
		slices.Reverse(want)
		var found []string
		for cursor, pages := "", 0; cursor != "" || pages == 0; pages++ {
			jobs, next, err := w.engine.JobsPage(ctx, nil, cursor)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range jobs {
				found = append(found, j.ID)
			}
			cursor = next
		}
		if !slices.Equal(found, want) {
			t.Errorf("Jobs lists %v,\nwant %v", found, want)
		}
	})
}

// TestUnknownQueues checks the errors for queues that the engine does not have. They must name the
// queue.
func TestUnknownQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := severalQueues(t, addCredit)
		_, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{1},
			&mapper.StartOptions{ID: "none", Queue: "night"})
		if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), `"night"`) ||
			!strings.Contains(err.Error(), otherQueue) {
			t.Errorf("a start in a queue that is not there: %v", err)
		}
		lost := mapper.Update("lost", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return nil
		}).WithQueue("night")
		if _, err := mapper.NewEngine(w.client, w.queue,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{lost}}); err == nil ||
			!strings.Contains(err.Error(), `"lost"`) || !strings.Contains(err.Error(), `"night"`) {
			t.Errorf("a mapper of a queue that is not there: %v", err)
		}
		if _, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
			OtherQueues: []*tasks.Queue{w.queue}}); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("a queue twice: %v", err)
		}
	})
}

// TestReviveOfAllQueues purges the second queue of an engine, including the sweeps of a job.
// ReviveJobs must enqueue them again.
func TestReviveOfAllQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := severalQueues(t, patient), t.Context()
		door := &door{handler: w.handler}
		w.handler = door
		w.putAccounts(names(200))
		job, err := patient.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1},
			&mapper.StartOptions{ID: "one", PageSize: 10})
		w.must(err)
		time.Sleep(time.Second)
		door.shut.Store(true)
		_, err = w.tasksClient().PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: otherQueue})
		w.must(err)
		time.Sleep(time.Hour)
		if s := w.status(job); s.State.Ended() {
			t.Fatalf("the job has ended too early to show anything: %+v", s)
		}
		door.shut.Store(false)
		time.Sleep(time.Hour)
		if s := w.status(job); s.State.Ended() {
			t.Fatalf("the job goes on without a revival: %+v", s)
		}
		w.must(w.engine.ReviveJobs(ctx))
		w.wait(job)
	})
}

// TestMoveLeavesNoTasks moves a job to another service while a delivery of the old service runs.
// This delivery must not enqueue another task in the old queue.
func TestMoveLeavesNoTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var moved atomic.Bool
		var late atomic.Int64
		w := newWorld(t,
			setting{queue: few(2),
				emulator: emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
					handler grpc.UnaryHandler) (any, error) {
					if c, ok := req.(*cloudtaskspb.CreateTaskRequest); ok && c.Parent == queueName && moved.Load() &&
						strings.HasSuffix(c.Task.GetHttpRequest().GetUrl(), "/range") {
						late.Add(1)
					}
					return handler(ctx, req)
				}}}, steadyCredit)
		other := w.second(steadyCredit)
		w.putAccounts(names(200))
		o := &mapper.StartOptions{ID: "one", PageSize: 10, ExpectedWorkers: 1,
			Splitting: mapper.Splitting{First: 1, FanOut: 1}}
		_, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{1}, o)
		w.must(err)
		time.Sleep(2500 * time.Millisecond)
		b := other.engine.Job("one")
		w.must(b.Move(t.Context()))
		moved.Store(true)
		w.wait(b)
		w.wantBalances(names(200), 1)
		if n := late.Load(); n > 0 {
			t.Errorf("%d tasks were put into the queue that the job was moved away from", n)
		}
	})
}

// TestLateLimit stops a delivery when it has found that too many entities have failed. Meanwhile an
// operator pauses and resumes the job. When the delivery continues, it must not pause the job
// again.
func TestLateLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		picky := mapper.Update("picky", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance < 8 {
				return mapper.Permanent(errors.New("small"))
			}
			return nil
		})
		var w *world
		var once sync.Once
		w = newWorld(t,
			setting{emulator: emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
				handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				if q, ok := req.(*datastorepb.RunQueryRequest); ok && strings.Contains(q.String(), `"failed"`) {
					once.Do(func() {
						w.must(w.engine.Job("one").Pause(t.Context()))
						w.must(w.engine.Job("one").Resume(t.Context()))
					})
				}
				return resp, err
			}}}, picky)
		w.putAccounts(names(200))
		job, err := picky.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "one", PageSize: 200, ExpectedWorkers: 1, FailureLimit: 5})
		w.must(err)
		time.Sleep(time.Hour)
		if s := w.status(job); s.State != mapper.StateSucceededWithFailures || s.Failures != 8 {
			t.Errorf("the job is %s: %s", s.State, s.Error)
		}
		wantHistory(t, job, "started running", "paused paused", "resumed running",
			"succeeded with failures succeeded with failures")
	})
}

// TestUndoInAnotherQueue undoes jobs whose queue is not the queue of their mapper. The engine has
// both queues. The undo runs in the queue that its options name, or else in the mapper's queue.
func TestUndoInAnotherQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := severalQueues(t, addCredit), t.Context()
		keys := names(20)
		w.putAccounts(keys)
		for i, c := range []struct{ of, given, want string }{
			{"other", "", queueName}, {"mapper", "other", otherQueue}, {"other", "other", otherQueue},
		} {
			job := w.start(1, &mapper.StartOptions{ID: fmt.Sprint("job-", i), Queue: c.of})
			w.wait(job)
			undo, err := job.Undo(ctx, &mapper.UndoOptions{Queue: c.given})
			if err != nil {
				t.Errorf("undo a job of the queue %s in %q: %v", c.of, c.given, err)
				continue
			}
			if s := w.wait(undo); s.Queue != c.want || s.Counters["restored"] != 20 {
				t.Errorf("the undo of a job of %s: %s, %v", c.of, s.Queue, s.Counters)
			}
			w.wantBalances(keys, 0)
		}
	})
}

// TestMoveKeepsRetention moves a job with a retention to another service after its end. The job's
// records must be deleted in time there, although nobody calls ReviveJobs.
func TestMoveKeepsRetention(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*world, *mapper.Job){
		"succeeded": func(w *world, job *mapper.Job) { w.wait(job) },
		"aborted":   func(w *world, job *mapper.Job) { w.must(job.Abort(w.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, steadyCredit)
				other := w.second(steadyCredit)
				w.putAccounts(names(20))
				job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{1},
					&mapper.StartOptions{ID: "one", Retain: mapper.MinRetain})
				w.must(err)
				end(w, job)
				time.Sleep(time.Hour)
				b := other.engine.Job("one")
				w.must(b.Move(t.Context()))
				time.Sleep(mapper.MinRetain - 2*time.Hour)
				if s := w.status(b); s.CleanedUp {
					t.Error("cleaned up too early")
				}
				time.Sleep(2 * time.Hour)
				if s := w.status(b); !s.CleanedUp || s.CleaningUp {
					t.Errorf("cleaned up: %v, after its retention; its queue is %s", s.CleanedUp, s.Queue)
				}
			})
		})
	}
}

// TestQueueUnread changes jobs of an engine with several queues while the first read of the job's
// record fails. The error must not say that the job belongs to another service, because a schedule
// would then refuse a tick that waits.
func TestQueueUnread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		lost := status.Error(codes.PermissionDenied, "lost") // the client does not repeat it
		w := severalQueuesOf(t, setting{emulator: emulator.Options{Interceptor: func(ctx context.Context, req any,
			_ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if _, ok := req.(*datastorepb.LookupRequest); ok && fails.CompareAndSwap(true, false) {
				return nil, lost
			}
			return handler(ctx, req)
		}}}, patient)
		ctx := t.Context()
		w.putAccounts(names(20))
		job, err := patient.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1},
			&mapper.StartOptions{ID: "j"})
		w.must(err)
		w.must(job.Pause(ctx))
		time.Sleep(10 * time.Minute) // until no task reads the record any more
		for what, do := range map[string]func() error{
			"pause":  func() error { return job.Pause(ctx) },
			"resume": func() error { return job.Resume(ctx) },
			"abort":  func() error { return job.Abort(ctx) },
			"rate":   func() error { return job.SetRate(ctx, mapper.Rate{EntitiesPerSecond: 100}) },
			"budget": func() error { return job.SetBudget(ctx, mapper.Budget{Dollars: 5}) },
			"retain": func() error { return w.engine.Job("j").SetRetain(ctx, mapper.RetainAlways) },
		} {
			fails.Store(true)
			if err := do(); !errors.Is(err, lost) || errors.Is(err, mapper.ErrWrongQueue) {
				t.Errorf("%s: %v", what, err)
			}
		}
		w.must(job.Resume(ctx))
		w.wait(job)
		fails.Store(true)
		w.wait(job) // reads again
	})
}

// TestQueueRefuses refuses one new task of a running job, or all for hours, as Cloud Tasks does
// without a role. Pages are not at fault, so none may count as refused, and the job must not fail.
// Once the role is back, the job must end without help.
func TestQueueRefuses(t *testing.T) {
	t.Parallel()
	for code, most := range map[codes.Code]int64{codes.InvalidArgument: 1, codes.PermissionDenied: math.MaxInt64} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var refuses atomic.Bool
				var refused atomic.Int64
				var log logged
				intercept := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (
					any, error) {
					if _, ok := req.(*cloudtaskspb.CreateTaskRequest); ok && refuses.Load() && refused.Add(1) <= most {
						return nil, status.Error(code, "no")
					}
					return handler(ctx, req)
				}
				w := newWorld(t, setting{queue: few(1), log: &log, emulator: emulator.Options{Interceptor: intercept}},
					slowCredit)
				keys := names(200)
				w.putAccounts(keys)
				job, err := slowCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{ID: "j", PageSize: 5, ExpectedWorkers: 3})
				w.must(err)
				refuses.Store(true)
				time.Sleep(3 * time.Hour)
				refuses.Store(false)
				if status, err := job.Status(t.Context()); err != nil || status.State == mapper.StateFailed ||
					refused.Load() == 0 || log.count("is tried again") > 0 {
					t.Errorf("after %d refusals: %+v, %v, and the log:\n%s", refused.Load(), status, err, log.String())
				}
				w.wait(job)
				w.wantBalances(keys, 10)
			})
		})
	}
}
