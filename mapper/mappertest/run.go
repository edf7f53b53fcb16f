package mappertest

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/tasks"
)

// Options are the settings of [Run]. The zero value has all defaults.
type Options struct {
	// Workers is how many tasks run at once, in [1, 5000]. Defaults to 10.
	Workers int

	// PointInTimeRecovery lets reads go back seven days, as in a database with point-in-time
	// recovery (mapper.Query.ReadTime). Before the last hour, only whole minutes can be read.
	// Defaults to false: reads go back one hour.
	PointInTimeRecovery bool

	// Schedules are further schedules of the engine. It also has the schedules in Engine.Schedules.
	Schedules []mapper.AnySchedule

	// Engine are the options of the engine, such as OnStateChange, Retain and Prices. Mappers are
	// set by Run, and OtherQueues are not supported. Logger defaults to the test's output.
	Engine mapper.EngineOptions

	// Seed, if not 0, chooses random faults. Calls fail before and after their effect, and commits
	// abort. Tasks are delivered twice, late, and to receivers that crash. The same seed gives the
	// same faults if the test makes its calls in the same order. Faults start with
	// [Env.ResumeFaults]. Defaults to 0: no faults.
	Seed uint64
}

// An Env is an embedded Datastore, a queue and an engine, which [Run] makes and closes.
type Env struct {
	Client *datastore.Client // client of an empty Datastore
	Engine *mapper.Engine    // engine with the mappers passed to Run; its tasks are delivered

	faults *faults.Faults
	open   func(opts ...option.ClientOption) (*datastore.Client, error)
}

// NewClient returns another client of the same Datastore, with options such as interceptors. The
// test must close it.
func (w *Env) NewClient(opts ...option.ClientOption) (*datastore.Client, error) {
	return w.open(opts...)
}

// PauseFaults stops the random faults until [Env.ResumeFaults]. Call it before the test makes calls
// that must not fail, for example to check the stored entities.
func (w *Env) PauseFaults() { w.faults.Pause() }

// ResumeFaults starts the random faults of [Options].Seed, or continues them. Before the first call
// of ResumeFaults there are none. Without a Seed it has no effect.
func (w *Env) ResumeFaults() { w.faults.Resume() }

// WithEngine returns a context from which [mapper.EngineFromContext] gets the Env's engine, as in a
// job. Use it for [ApplyContext].
func (w *Env) WithEngine(ctx context.Context) context.Context {
	return bridge.WithEngine(ctx, w.Engine)
}

// Run runs a test in a testing/synctest bubble, with the embedded emulators and an engine of the
// mappers. Time is virtual there: it passes when all goroutines wait. Faults are off until the test
// calls [Env.ResumeFaults]. Run waits for all goroutines. So if a mapper's function blocks, for
// example on a channel, the test must unblock it before the test ends. A nil o has all defaults.
//
// Time stands still while a goroutine of the test waits for a real network, even for an idle
// connection. If that lasts for five seconds, Run panics and says which goroutine it is. Let the
// function call a server in this process: an [http.Client] with the Transport
// [emulator.HandlerTransport] needs no network.
func Run(t *testing.T, mappers []mapper.AnyMapper, o *Options, test func(t *testing.T, w *Env)) {
	t.Helper()
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Workers == 0 {
		opts.Workers = 10
	}
	bubble, watch := watchNetwork()
	defer watch()
	synctest.Test(t, func(t *testing.T) {
		bubble()
		w := &Env{faults: faults.New(opts.Seed, randomRules(opts.Seed)...)}
		w.PauseFaults()
		w.start(t, mappers, opts)
		bridge.Seed(w.Engine, opts.Seed)
		test(t, w)
	})
}

// start starts the emulators and the engine of the Env.
func (w *Env) start(t *testing.T, mappers []mapper.AnyMapper, o Options) {
	var handler http.Handler
	e := emulator.ForTest(t, &emulator.Options{Faults: w.faults, UnlimitedRate: true,
		PointInTimeRecovery: o.PointInTimeRecovery,
		Transport: emulator.HandlerTransport(
			http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { handler.ServeHTTP(rw, r) }))})
	fail := func(err error) {
		if err != nil {
			t.Fatalf("mappertest: %v", err)
		}
	}
	var err error
	w.open = func(opts ...option.ClientOption) (*datastore.Client, error) {
		return e.DatastoreClient(t.Context(), "mappertest", opts...)
	}
	w.Client, err = w.open(mapper.ClientOption())
	fail(err)
	t.Cleanup(func() { w.Client.Close() })
	client, err := e.TasksClient(t.Context())
	fail(err)
	t.Cleanup(func() { client.Close() })
	const location = "projects/mappertest/locations/here"
	_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: location + "/queues/jobs",
			// The burst, a fifth of the rate, is as many tasks as there are workers.
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(o.Workers),
				MaxDispatchesPerSecond: max(500, 5*float64(o.Workers))},
		}})
	fail(err)
	queue, err := tasks.NewQueue(client, location+"/queues/jobs", "http://worker/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	fail(err)
	opts := o.Engine
	opts.Mappers, opts.Schedules = mappers, append(slices.Clone(opts.Schedules), o.Schedules...)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	if len(opts.OtherQueues) > 0 {
		t.Fatal("mappertest: Options.Engine.OtherQueues is set, and Run has one queue")
	}
	w.Engine, err = mapper.NewEngine(w.Client, queue, &opts)
	fail(err)
	handler = w.Engine.Handler()
	// Running deliveries, and functions that have timed out, get a day to end before the clients
	// are closed.
	t.Cleanup(func() {
		e.Reset()
		time.Sleep(24 * time.Hour)
	})
}

// randomRules returns rules for faults of all kinds. Each affects a random share of calls, which
// depends only on the seed.
func randomRules(seed uint64) []faults.Rule {
	if seed == 0 {
		return nil
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	share := func(most float64) float64 { return most * (0.1 + 0.9*rng.Float64()) }
	return []faults.Rule{
		{Kind: faults.LoseCall, Share: share(0.1)},
		{Kind: faults.LoseAnswer, Share: share(0.1)},
		{Kind: faults.SlowCall, Latency: faults.Exponential{Mean: 10 * time.Millisecond}},
		{Kind: faults.AbortCommit, Share: share(0.2)},
		{Kind: faults.DeliverTwice, Share: share(0.2), Latency: faults.Uniform{Max: time.Minute}},
		{Kind: faults.DeliverTogether, Share: share(0.2), Latency: faults.Uniform{Max: time.Second}},
		{Kind: faults.DeliverLate, Share: share(0.1), Latency: faults.Uniform{Max: time.Minute}},
		{Kind: faults.DeliverShuffled, Share: share(1)},
		{Kind: faults.CrashReceiver, Share: share(0.1)},
		{Kind: faults.LoseReply, Share: share(0.1)},
	}
}
