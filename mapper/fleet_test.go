package mapper_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"

	"github.com/scattermap/scattermap/internal/bridge"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// A fleet is some processes that share the deliveries of a world, each with an
// engine and clients of its own. A process that is killed loses all that it has under
// way: it reaches neither the database nor the queue any more.
type fleet struct {
	world   *world
	mappers []mapper.Definition
	zombies float64 // the share of deliveries that outlive their request
	fails   bool    // jobs are to fail

	mu        sync.Mutex
	rng       *rand.Rand
	processes []*process
	killed    int
}

type process struct {
	context.Context
	kill    func()
	handler http.Handler
}

type processKey struct{}

// noErrors logs, and fails the test of a process that logs an error: a task was
// dropped, or a job has failed.
type noErrors struct {
	slog.Handler
	fleet *fleet
}

func (h *noErrors) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && !h.fleet.fails {
		h.fleet.world.Errorf("a process logs an error: %s", r.Message)
	}
	return h.Handler.Handle(ctx, r)
}

// newFleet has a fleet take the deliveries of a world.
func newFleet(w *world, seed uint64, size int, mappers ...mapper.Definition) *fleet {
	f := &fleet{world: w, mappers: mappers, rng: rand.New(rand.NewPCG(seed, 2)), processes: make([]*process, size)}
	for i := range f.processes {
		f.processes[i] = f.start()
	}
	w.handler = f
	w.Cleanup(func() {
		w.deliveries.Wait()
		for _, p := range f.processes {
			p.kill()
		}
	})
	return f
}

func (f *fleet) start() *process {
	w := f.world
	database, err := w.emulator.Datastore(context.Background(), "test")
	if err != nil {
		panic(err)
	}
	client, err := w.emulator.CloudTasks(context.Background())
	if err != nil {
		panic(err)
	}
	queue, err := tasks.NewQueue(client, queueName, target, &tasks.Options{Unverified: true, Deadline: w.queue.Deadline()})
	if err != nil {
		panic(err)
	}
	e, err := mapper.New(database, queue, &mapper.Options{Mappers: f.mappers, Logger: slog.New(&noErrors{slog.NewTextHandler(w.Output(), nil), f})})
	if err != nil {
		panic(err)
	}
	bridge.Seed(e, f.rng.Uint64())
	ctx, cancel := context.WithCancel(context.Background())
	kill := sync.OnceFunc(func() {
		cancel()
		database.Close()
		client.Close()
	})
	return &process{ctx, kill, e.Handler()}
}

// kill ends a process, and starts another in its place.
func (f *fleet) kill(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.kill()
	for i := range f.processes {
		if f.processes[i] == p {
			f.processes[i] = f.start()
			f.killed++
		}
	}
}

// deaths returns how many processes have died.
func (f *fleet) deaths() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}

// killAny ends one of the processes.
func (f *fleet) killAny() { f.kill(f.pick()) }

func (f *fleet) pick() *process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.processes[f.rng.IntN(len(f.processes))]
}

// die ends the process that runs a mapper's function, which calls it as it would
// call os.Exit.
func (f *fleet) die(ctx context.Context) error {
	f.kill(ctx.Value(processKey{}).(*process))
	return ctx.Err()
}

// ServeHTTP hands a delivery to one of the processes.
func (f *fleet) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	p := f.pick()
	f.mu.Lock()
	zombie := f.rng.Float64() < f.zombies
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(context.WithValue(p, processKey{}, p))
	if !zombie {
		context.AfterFunc(r.Context(), cancel)
	}
	answered := make(chan int, 1)
	f.world.deliveries.Go(func() {
		defer cancel()
		answer := &answer{header: make(http.Header), code: http.StatusOK}
		p.handler.ServeHTTP(answer, r.WithContext(ctx))
		answered <- answer.code
	})
	select {
	case code := <-answered:
		rw.WriteHeader(code)
	case <-p.Done(): // nobody is left to answer
		rw.WriteHeader(http.StatusBadGateway)
	}
}

// An answer keeps what a process answers.
type answer struct {
	header http.Header
	code   int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(code int)        { a.code = code }
