package bench

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

const (
	location  = "projects/bench/locations/here"
	queueName = location + "/queues/bench"

	// perProcess is the number of tasks that a process runs concurrently.
	perProcess = 20
)

// An item is an entity that says how long the function takes for it.
type item struct {
	Cost int64 `datastore:",noindex"` // how long the function takes, in nanoseconds
	Done int64 `datastore:",noindex"` // how many times the function has processed it

	Match bool  `datastore:",omitempty"` // whether the job's filter matches it
	Value int64 `datastore:",omitempty"` // the property by which the job may be sharded
}

var (
	updateItems = mapper.Update("update", func(_ context.Context, e *mapper.Entity[item], _ mapper.NoParams) error {
		time.Sleep(time.Duration(e.Value.Cost))
		e.Value.Done++
		return nil
	})
	visitItems = mapper.Visit("visit", func(_ context.Context, e *mapper.Entity[item], _ mapper.NoParams) error {
		time.Sleep(time.Duration(e.Value.Cost))
		return nil
	})
)

// A world is a database, a queue, and processes that run its tasks, in virtual time.
type world struct {
	*testing.T
	network   network
	calls     calls // counts the calls to Datastore
	emulator  *emulator.Emulator
	client    *datastore.Client
	processes []*mapper.Engine
	handlers  []http.Handler

	deliveries sync.WaitGroup
	delivered  atomic.Int64
	running    atomic.Int64
}

func newWorld(t *testing.T, workers int) *world {
	t.Helper()
	return newWorldOn(t, workers, emulator.Options{}, usualNetwork())
}

// newWorldOn returns a world with options for the emulator, and with a network that delays calls.
// Its processes know further mappers.
func newWorldOn(t *testing.T, workers int, o emulator.Options, n network, more ...mapper.AnyMapper) *world {
	t.Helper()
	w := &world{T: t, network: n}
	o.Transport, o.Interceptor, o.UnlimitedRate = emulator.HandlerTransport(w), w.network.intercept, true
	w.emulator = emulator.ForTest(t, &o)
	client, err := w.emulator.TasksClient(t.Context())
	w.must(err)
	t.Cleanup(func() { client.Close() })
	_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name:       queueName,
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(workers), MaxDispatchesPerSecond: 1e6},
		}})
	w.must(err)
	for i := range max(1, workers/perProcess) {
		datastoreClient, err := w.emulator.DatastoreClient(t.Context(), "bench", mapper.ClientOption(),
			option.WithGRPCDialOption(grpc.WithUnaryInterceptor(w.calls.intercept)))
		w.must(err)
		t.Cleanup(func() { datastoreClient.Close() })
		queue, err := tasks.NewQueue(client, queueName, "http://worker/mapper/",
			&tasks.Options{InsecureSkipVerify: true})
		w.must(err)
		engine, err := mapper.NewEngine(datastoreClient, queue, &mapper.EngineOptions{
			Mappers: append([]mapper.AnyMapper{updateItems, visitItems, raise, slowRaise}, more...),
			Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		w.must(err)
		if i == 0 {
			w.client = datastoreClient
		}
		w.processes = append(w.processes, engine)
		w.handlers = append(w.handlers, engine.Handler())
	}
	t.Cleanup(func() { // runs before the servers that deliveries need are closed
		w.network.on.Store(false)
		w.emulator.Reset()
		w.deliveries.Wait()
	})
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// ServeHTTP passes deliveries to the processes in turn, after the time that a dispatch takes.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.deliveries.Add(1)
	defer w.deliveries.Done()
	w.running.Add(1)
	defer w.running.Add(-1)
	n := w.delivered.Add(1)
	if w.network.on.Load() {
		time.Sleep(w.network.dispatch)
	}
	w.handlers[n%int64(len(w.handlers))].ServeHTTP(rw, r)
}

// seed writes the items with the given keys.
func (w *world) seed(keys []*datastore.Key, items []item) {
	w.Helper()
	first := 0
	for chunk := range slices.Chunk(keys, 500) {
		items := items[first : first+len(chunk)]
		_, err := w.client.PutMulti(w.Context(), chunk, items)
		w.must(err)
		first += len(chunk)
	}
}

// await waits until the job has ended. It returns the job's status, and the operations that were
// counted until then. It makes no calls while deliveries are handled, so that it does not slow them
// down.
func (w *world) await(job *mapper.Job) (*mapper.Status, emulator.Usage) {
	w.Helper()
	for range 1_000_000 {
		time.Sleep(time.Second)
		if w.running.Load() > 0 {
			continue
		}
		used := w.emulator.Usage()
		w.network.on.Store(false)
		status, err := job.Status(w.Context())
		w.network.on.Store(true)
		w.must(err)
		if status.State.Ended() {
			return status, used
		}
		time.Sleep(time.Minute) // a task waits until it is due
	}
	w.Fatal("the job does not end")
	return nil, emulator.Usage{}
}

// check checks that every matching item was processed exactly once, and that no other item was
// processed.
func (w *world) check(
	job *mapper.Job, status *mapper.Status, keys []*datastore.Key, items []item, filtered, updated bool,
) {
	w.Helper()
	w.network.on.Store(false)
	n := 0
	for _, i := range items {
		if i.Match || !filtered {
			n++
		}
	}
	if status.State != mapper.StateSucceeded || status.Processed != int64(n) {
		w.Errorf("the job is %+v, want %d processed", status, n)
	}
	proof, err := job.Verify(w.Context(), nil)
	w.must(err)
	if len(proof.Problems) > 0 {
		w.Errorf("proof: %v", proof.Problems)
	}
	if !updated {
		return
	}
	for chunk := range slices.Chunk(keys, 1000) {
		now := make([]item, len(chunk))
		w.must(w.client.GetMulti(w.Context(), chunk, now))
		if slices.ContainsFunc(now, func(i item) bool { return i.Done == 1 != (i.Match || !filtered) || i.Done > 1 }) {
			w.Fatal("not all items are done once")
		}
	}
}
