// Package testworld simulates a process for tests of packages that run whole jobs. A [World] has an
// embedded database with one small kind, a queue, and a process that runs the tasks of jobs. Only
// tests import this package.
package testworld

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/tasks"
)

const (
	location  = "projects/test/locations/here"
	queueName = location + "/queues/mapper"
)

// A World is a process with a queue and an embedded database, inside a bubble of testing/synctest.
// The database's kind K has entities with the IDs 1, 2, and so on.
type World struct {
	*testing.T
	Emulator *emulator.Emulator
	Client   *datastore.Client
	Tasks    *cloudtasks.Client
	Queue    *tasks.Queue
	Jobs     *lifecycle.Jobs

	// Range handles a delivery of a range's task. Each test sets it.
	Range func(context.Context, tasks.Delivery) error

	mu         sync.Mutex
	ended      bool
	intercept  grpc.UnaryServerInterceptor // sees all calls of Datastore and Cloud Tasks; may be nil
	deliveries sync.WaitGroup
}

// A Thing is an entity of the kind K.
type Thing struct{ N int64 }

// Key returns the key of the entity with an ID.
func Key(id int64) *datastore.Key { return datastore.IDKey("K", id, nil) }

// New returns a world with the given mappers. Its database has n entities of the kind K, and each
// entity's N is its ID.
func New(t *testing.T, n int64, mappers ...*function.Definition) *World {
	t.Helper()
	w := &World{T: t}
	w.Emulator = emulator.ForTest(t, &emulator.Options{Transport: emulator.HandlerTransport(w),
		Interceptor: w.call})
	var err error
	if w.Client, err = w.Emulator.DatastoreClient(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Client.Close() })
	if w.Tasks, err = w.Emulator.TasksClient(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Tasks.Close() })
	if _, err := w.Tasks.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queueName}}); err != nil {
		t.Fatal(err)
	}
	if w.Queue, err = tasks.NewQueue(w.Tasks, queueName, "http://worker/",
		&tasks.Options{InsecureSkipVerify: true}); err != nil {
		t.Fatal(err)
	}
	log, st := slog.New(slog.NewTextHandler(t.Output(), nil)), store.New(w.Client)
	w.Jobs = &lifecycle.Jobs{Store: st, Queue: w.Queue, Mappers: make(map[string]*function.Definition), Log: log,
		Gate: gate.New(), Random: lifecycle.Seeded(1)}
	if w.Jobs.Observer, err = observe.New(nil, nil); err != nil {
		t.Fatal(err)
	}
	w.Jobs.Observer.Store, w.Jobs.Observer.Log, w.Jobs.Observer.Flaws = st, log, log
	for _, m := range mappers {
		w.Jobs.Mappers[m.Name] = m
	}
	for from := int64(1); from <= n; from += 500 {
		var keys []*datastore.Key
		var all []Thing
		for id := from; id <= min(n, from+499); id++ {
			keys, all = append(keys, Key(id)), append(all, Thing{id})
		}
		if _, err := w.Client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(w.end)
	return w
}

// end waits until the current deliveries have ended, and prevents new ones.
func (w *World) end() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.deliveries.Wait()
}

// Change waits until all current deliveries are blocked, and then calls change. So change may alter
// data that later deliveries use.
func (w *World) Change(change func()) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// Intercept sets an interceptor for the calls of Datastore and Cloud Tasks. Nil removes it.
func (w *World) Intercept(intercept grpc.UnaryServerInterceptor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.intercept = intercept
}

func (w *World) call(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	w.mu.Lock()
	intercept := w.intercept
	w.mu.Unlock()
	if intercept == nil {
		return handler(ctx, req)
	}
	return intercept(ctx, req, info, handler)
}

func (w *World) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.deliveries.Add(1)
	jobs, run := w.Jobs, w.Range
	w.mu.Unlock()
	defer w.deliveries.Done()
	handlers := jobs.Handlers()
	handlers[body.RangePath] = jobs.Handler(body.RangePath, run)
	handlers[path.Base(r.URL.Path)].ServeHTTP(rw, r)
}

// NewJob returns the record of a job over the kind K, with pages of 10 entities. It does not start
// the job.
func (w *World) NewJob(id, mapper string) *record.Job {
	now := time.Now().UTC().Truncate(time.Microsecond)
	j := &record.Job{ID: id, Mapper: mapper, Queue: record.Owner(w.Queue.Name()), Query: []byte(`{"kind":"K"}`),
		Params: json.RawMessage(`{}`), State: record.Running, PageSize: 10, PageTime: int64(2 * time.Second),
		Timeout: int64(10 * time.Second), Workers: 1, Created: now, RampFrom: now, Masks: true, Limit: -1,
		LimitShare: 1,
		AttemptSettings: record.AttemptSettings{Attempts: 3, BackoffFirst: int64(time.Second),
			BackoffMax: int64(time.Minute)}}
	j.Incarnate(w.Jobs.Random())
	return j
}

// Begin starts a job, whose record comes from NewJob.
func (w *World) Begin(j *record.Job) {
	w.Helper()
	if _, err := w.Jobs.Start(w.Context(), j, nil, record.First{}, nil); err != nil {
		w.Fatal(err)
	}
}

// Job reads the record of a job.
func (w *World) Job(id string) *record.Job {
	w.Helper()
	j, err := w.Jobs.Store.LoadJob(w.Context(), record.Ref{ID: id})
	if err != nil {
		w.Fatal(err)
	}
	return j
}

// Records reads the records of all ranges of a job, and returns them by the ranges' IDs.
func (w *World) Records(j *record.Job) map[string]*record.Range {
	w.Helper()
	all := make(map[string]*record.Range)
	err := w.Jobs.Store.Each(w.Context(), store.Records(j.Ref(), "", ""), func(r *record.Range) error {
		all[r.ID] = r
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// N returns the field N of the entity with an ID, or -1 if the entity does not exist.
func (w *World) N(id int64) int64 {
	w.Helper()
	var is Thing
	err := w.Client.Get(w.Context(), Key(id), &is)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return -1
	}
	if err != nil {
		w.Fatal(err)
	}
	return is.N
}

// A Call is one call of a mapper's function, for the entity with the given ID. The function may
// change N, which is stored as the entity's new N.
type Call struct {
	context.Context
	*function.Attempt
	ID, N int64
}

// Mapper returns a mapper with this name that calls fn for each entity.
func Mapper(name string, mode function.Mode, fn func(c *Call) error) *function.Definition {
	return &function.Definition{Name: name, Mode: mode, Prepare: func(json.RawMessage, bool) (function.Func, error) {
		return func(ctx context.Context, j function.Job, key *datastore.Key, e *pb.Entity) (_ *function.Effect,
			err error) {
			defer function.Recovered(&err)
			a := function.NewAttempt(j.Ref, mode, key)
			a.Among(j.Others)
			a.Announce(j.Calls)
			was := e.GetProperties()["N"].GetIntegerValue()
			c := &Call{ctx, a, key.ID, was}
			if err := a.Run(func() error { return fn(c) }); err != nil {
				return nil, err
			}
			if mode == function.Update && c.N != was {
				n := &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: c.N}}
				a.Save(property.NewEdit(e, map[string]*pb.Value{"N": n}), j.Masks)
			}
			return a.Effect()
		}, nil
	}}
}
