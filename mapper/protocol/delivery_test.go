package protocol_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/tasks"
)

// TestUndelivered runs jobs whose tasks are not delivered, for reasons that the queue's API shows.
// Within two minutes the job's status must name the reason, and so must the log of the process that
// waits for the job. After the reason is gone, they must no longer name it.
func TestUndelivered(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	answer := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	for name, test := range map[string]struct {
		handler http.Handler // gets all deliveries
		dead    bool         // whether no process answers deliveries
		paused  bool         // whether the queue is paused
		lost    bool         // whether tasks are deleted
		drained bool         // whether the process has drained
		want    []string
	}{
		"wrong URL": {handler: answer(404), want: []string{"404", target, "URL"}},
		"forbidden": {handler: answer(403), want: []string{"403", target, "account"}},
		"no token":  {handler: answer(401), want: []string{"401", target, "account"}},
		"broken":    {handler: answer(500), want: []string{"500", target, "log"}},
		"no service": {handler: answer(200), dead: true,
			want: []string{"UNAVAILABLE", target, "is the service there"}},
		"paused queue": {paused: true, want: []string{queueName, "paused"}},
		"drained":      {drained: true, want: []string{"421", target, "does another one run"}},
		"something else": {handler: answer(200), lost: true,
			want: []string{queueName, target, "something other than the handler"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logged
				injected := faults.New(1, faults.Rule{Kind: faults.CrashReceiver, Share: 1})
				if !test.dead {
					injected.Pause()
				}
				w := newWorld(t, setting{log: &log, emulator: emulator.Options{Faults: injected}}, addCredit)
				keys := names(100)
				w.putAccounts(keys)
				own := w.handler
				client, err := w.emulator.TasksClient(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				if test.handler != nil {
					w.handler = test.handler
				}
				if test.paused {
					if _, err := client.PauseQueue(t.Context(),
						&cloudtaskspb.PauseQueueRequest{Name: queueName}); err != nil {
						t.Fatal(err)
					}
				}
				job := w.start(10, nil)
				if test.drained {
					if err := w.engine.Drain(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				if _, err := job.Wait(ctx); err == nil {
					t.Error("the job has ended")
				}
				said := log.String()
				s, err := job.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, want := range test.want {
					if !strings.Contains(s.Error, want) || !strings.Contains(said, want) {
						t.Errorf("the status says %q, the log\n%s\nwant %q in both", s.Error, said, want)
					}
				}
				if lines := strings.Count(said, "\n"); test.drained && lines > 5 {
					t.Errorf("the log has %d lines:\n%.2000s", lines, said)
				}
				// The reason for the problem is removed.
				if w.handler = own; test.drained {
					w.observe(&log, nil, addCredit)
				}
				injected.Pause()
				if test.paused {
					if _, err := client.ResumeQueue(t.Context(),
						&cloudtaskspb.ResumeQueueRequest{Name: queueName}); err != nil {
						t.Fatal(err)
					}
				}
				if test.lost { // also the tasks of sweeps
					if err := w.engine.ReviveJobs(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if s := w.wait(job); s.Error != "" {
					t.Errorf("at its end the status says %q", s.Error)
				}
				w.wantBalances(keys, 10)
			})
		})
	}
}

// TestUnwatched runs a job whose tasks are not delivered, while nobody waits for it. The process
// that has started or resumed it must log the reason. Just after Resume, the status must not claim
// that tasks are lost.
func TestUnwatched(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		w := newWorld(t, setting{log: &log}, addCredit)
		keys := names(100)
		w.putAccounts(keys)
		own := w.handler
		w.handler = http.NotFoundHandler()
		job := w.start(10, nil)
		for range 2 {
			time.Sleep(2 * time.Minute)
			if n := log.count("404"); n != 1 {
				t.Errorf("%d lines about it in the log\n%s", n, log.String())
			}
			log.text.Reset()
			time.Sleep(5 * time.Minute)
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s, err := job.Status(t.Context()); err != nil || strings.Contains(s.Error, "not in the queue") {
				t.Errorf("resumed: %+v, %v", s, err)
			}
		}
		w.handler = own
		w.wait(job)
		w.wantBalances(keys, 10)
		log.text.Reset()
		time.Sleep(time.Hour)
		if said := log.String(); said != "" {
			t.Errorf("after its end the log has\n%s", said)
		}
	})
}

// TestOtherURL changes the URL of a job's service, like a deployment under another name. The status
// must say that the old URL does not answer. A call of ReviveJobs must make the job continue at the
// new URL, in any of its phases.
func TestOtherURL(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, until := range map[string]time.Duration{"its start": 0, "its first page": 200 * time.Millisecond,
		"its middle": 5 * time.Second, "its end": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{queue: few(1), log: new(logged)}, steadyCredit)
				keys := names(100)
				w.putAccounts(keys)
				first, err := tasks.NewQueue(w.tasksClient(), queueName, "http://before/mapper/",
					&tasks.Options{InsecureSkipVerify: true})
				if err != nil {
					t.Fatal(err)
				}
				before, err := mapper.NewEngine(w.client, first,
					&mapper.EngineOptions{Mappers: []mapper.AnyMapper{steadyCredit},
						Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				bridge.Portion(before, 100, time.Minute) // so that the job ends in a task
				own, began, gone := w.handler, time.Now(), atomic.Bool{}
				w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if time.Since(began) >= until || path.Base(r.URL.Path) == "finalize" {
						gone.Store(true)
					}
					switch {
					case r.Host != "before":
						own.ServeHTTP(rw, r)
					case !gone.Load():
						before.Handler().ServeHTTP(rw, r)
					default:
						http.NotFound(rw, r)
					}
				})
				if _, err := steadyCredit.Start(t.Context(), before, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{ID: "one", PageSize: 10}); err != nil {
					t.Fatal(err)
				}
				job := w.engine.Job("one")
				time.Sleep(5 * time.Minute)
				if s, err := job.Status(t.Context()); err != nil || s.State != mapper.StateRunning ||
					!strings.Contains(s.Error, "404") || !strings.Contains(s.Error, "http://before/") ||
					!strings.Contains(s.Error, target) {
					t.Errorf("%+v, %v, want an error that names both URLs", s, err)
				}
				for range 2 {
					if err := w.engine.ReviveJobs(t.Context()); err != nil {
						t.Error(err)
					}
					time.Sleep(10 * time.Minute)
				}
				if s, err := job.Status(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Error != "" {
					t.Errorf("status %+v, %v", s, err)
				}
				w.wantBalances(keys, 10)
			})
		})
	}
}

// TestMissingMapper delivers the tasks of a job to a build without its mapper. The status must say
// so within two minutes, and the log must say so in few lines.
func TestMissingMapper(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		w := newWorld(t, setting{log: new(logged)}, addCredit)
		w.putAccounts(names(100))
		own := w.handler
		job := func() *mapper.Job { // starts the job in a build that has the mapper
			engine := w.engine
			w.observe(&log, nil, steadyCredit)
			job, err := addCredit.Start(t.Context(), engine, mapper.Query{Kind: "Account"}, credit{10}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return job
		}()
		time.Sleep(10 * time.Second)
		if s, err := job.Status(t.Context()); err != nil || !strings.Contains(s.Error, `the mapper add-credit`) {
			t.Errorf("status %+v, %v", s, err)
		}
		time.Sleep(10 * time.Minute)
		if n := strings.Count(log.String(), "\n"); n == 0 || n > 20*11 ||
			!strings.Contains(log.String(), "add-credit") {
			t.Errorf("%d lines:\n%.2000s", n, log.String())
		}
		w.handler = own
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Error != "" {
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// TestUndeliveredUnknown uses a queue whose state can't be read: the caller lacks the permission,
// or the queue does not answer. The status must say nothing about tasks, and no call may fail.
func TestUndeliveredUnknown(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unavailable} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				refuse := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
					error) {
					switch req.(type) {
					case *cloudtaskspb.GetTaskRequest, *cloudtaskspb.GetQueueRequest:
						// the start itself needs one answer
						if asked.Add(1); code != codes.Unavailable || asked.Load() > 1 {
							return nil, status.Error(code, "no")
						}
					}
					return handler(ctx, req)
				}
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: refuse}}, addCredit)
				w.putAccounts(names(10))
				own := w.handler
				w.handler = http.NotFoundHandler()
				job := w.start(10, nil)
				time.Sleep(time.Minute)
				begun, before := time.Now(), asked.Load()
				if s, err := job.Status(t.Context()); err != nil || s.Error != "" {
					t.Errorf("status %+v, %v", s, err)
				}
				if took := time.Since(begun); took > 6*time.Second || asked.Load() == before {
					t.Errorf("the status took %v, and asked %d times", took, asked.Load()-before)
				}
				w.handler = own
				w.wait(job)
			})
		})
	}
}

// TestUnsendable sets properties that Google's client can't encode, in the function's own entity
// and in another one. Each entity must become a failure that says so, and the job must end.
func TestUnsendable(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	prop := func(name string, v any) datastore.Property { return datastore.Property{Name: name, Value: v} }
	many := make(datastore.PropertyList, 20_001)
	for i := range many {
		many[i] = prop(fmt.Sprint("p", i), "x")
	}
	for name, c := range map[string]struct {
		list datastore.PropertyList
		want string
	}{
		"a name twice": {datastore.PropertyList{prop("a", "b"), prop("a", "c")}, `"a" is there twice`},
		"a name twice inside": {
			datastore.PropertyList{prop("a",
				&datastore.Entity{Properties: []datastore.Property{prop("b", 1), prop("b", 2)}})},
			`"b" is there twice`},
		"no type of a property": {datastore.PropertyList{prop("a", []string{"b"})}, "no property can have"},
		"no type inside": {datastore.PropertyList{prop("a", []any{"x", struct{}{}})},
			"no property can have"},
		"a text that is none":        {datastore.PropertyList{prop("a", "\xff")}, "not valid UTF-8"},
		"a text that is none inside": {datastore.PropertyList{prop("a", []any{"\xff"})}, "not valid UTF-8"},
		"a name that is no text":     {datastore.PropertyList{prop("a\xff", "x")}, "not valid UTF-8"},
		"a late time":                {datastore.PropertyList{prop("a", time.Unix(1e15, 0))}, "years 1 to 9999"},
		"too many indexed values":    {many, "at most 20000"},
		"a key that is no text": {datastore.PropertyList{prop("a", datastore.NameKey("K", "\xff", nil))},
			"not valid UTF-8"},
	} {
		for _, own := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				m := mapper.Update("unsendable",
					func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
						if own {
							e.Value = append(e.Value, c.list...)
						} else {
							e.Put(datastore.NameKey("Other", e.Key.Name, nil), &c.list)
						}
						return nil
					})
				w := newWorld(t, setting{}, m)
				w.putAccounts(names(2))
				job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Hour)
				failures, _, err := job.FailuresPage(t.Context(), "")
				if s := w.status(job); err != nil || s.State != mapper.StateSucceededWithFailures ||
					len(failures) != 2 ||
					!strings.Contains(failures[0].Error, c.want) {
					t.Errorf("%s, own: %v: the job is %q, its failures are %+v, %v; want %q", name, own, s.State,
						failures, err, c.want)
				}
			})
		}
	}
}

// TestUnsendableStored puts entities as protocol buffers that contain strings which are not valid
// UTF-8.
func TestUnsendableStored(t *testing.T) {
	t.Parallel()
	text := &pb.Value{ValueType: &pb.Value_StringValue{StringValue: "\xff"}}
	for name, properties := range map[string]map[string]*pb.Value{"a value": {"a": text},
		"a name": {"\xff": {}}} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Update("stored", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
				e.PutStored(datastore.NameKey("Other", "x", nil), &pb.Entity{Properties: properties})
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(1))
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Hour)
			failures, _, err := job.FailuresPage(t.Context(), "")
			if err != nil || len(failures) != 1 || !strings.Contains(failures[0].Error, "not valid UTF-8") {
				t.Errorf("%s: failures %+v, %v", name, failures, err)
			}
		})
	}
}

// TestReady checks that Engine.Ready succeeds while the database answers and the engine accepts
// deliveries. Even if it is called more often, it must call the database at most once a second.
func TestReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := faults.New(1, faults.Rule{Kind: faults.LoseCall, Share: 1, Code: codes.PermissionDenied})
		away.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: away}}, addCredit)
		before := w.emulator.Usage().Reads
		for range 1000 {
			if err := w.engine.CheckReady(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if reads := w.emulator.Usage().Reads - before; reads > 1 {
			t.Errorf("1,000 calls cost %d reads", reads)
		}
		time.Sleep(2 * time.Second)
		away.Resume()
		if err := w.engine.CheckReady(t.Context()); err == nil || !strings.Contains(err.Error(), "PermissionDenied") {
			t.Errorf("the database is away: %v", err)
		}
		away.Pause()
		time.Sleep(2 * time.Second)
		if err := w.engine.CheckReady(t.Context()); err != nil {
			t.Errorf("the database is back: %v", err)
		}
		if err := w.engine.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.engine.CheckReady(t.Context()); err == nil || !strings.Contains(err.Error(), "about to end") {
			t.Errorf("it drains: %v", err)
		}
		if err := (*mapper.Engine)(nil).CheckReady(t.Context()); err == nil {
			t.Error("no engine is ready")
		}
	})
}

// TestWaitOutlastsReads waits for a job while reads of its status take minutes and then fail, as on
// a machine that stood still. Four failed reads in a row must not end the wait. Constantly failing
// reads must end it.
func TestWaitOutlastsReads(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fails int64
		takes time.Duration
		ends  bool
	}{{4, 10 * time.Minute, true}, {25, time.Second, true}, {1 << 40, time.Second, false}, {1 << 40, time.Hour,
		false}} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Visit("slow", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
				time.Sleep(20 * time.Second)
				return nil
			})
			w := newWorld(t, setting{})
			w.observe(new(logged), nil, m)
			w.putAccounts(names(30))
			var begun atomic.Bool
			var left atomic.Int64
			left.Store(test.fails)
			fail := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if _, ok := req.(*pb.LookupRequest); ok && begun.Load() && left.Add(-1) >= 0 {
					time.Sleep(test.takes)
					return status.Error(codes.DeadlineExceeded, "it takes too long")
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}
			client, err := w.emulator.DatastoreClient(t.Context(), "test", mapper.ClientOption(),
				option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(fail)))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			starter, err := mapper.NewEngine(client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{m}})
			if err != nil {
				t.Fatal(err)
			}
			job, err := m.Start(t.Context(), starter, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "j"})
			if err != nil {
				t.Fatal(err)
			}
			begun.Store(true)
			s, err := job.Wait(t.Context())
			switch {
			case test.ends && (err != nil || s.State != mapper.StateSucceeded):
				t.Errorf("%d reads that take %v: %+v, %v", test.fails, test.takes, s, err)
			case !test.ends && (err == nil || !strings.Contains(err.Error(), "takes too long")):
				t.Errorf("reads that take %v, and all fail: %+v, %v", test.takes, s, err)
			}
			left.Store(0)
			if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
				t.Errorf("status %+v, %v", s, err)
			}
		})
	}
}
