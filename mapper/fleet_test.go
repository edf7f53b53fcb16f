package mapper_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"

	"github.com/scattermap/scattermap/mapper"
)

// A fleet is some processes that share the deliveries of a world, each with an
// engine of its own. A process that is killed loses all that it has under way.
type fleet struct {
	world   *world
	mappers []mapper.Definition
	zombies float64 // the share of deliveries that outlive their request

	mu        sync.Mutex
	rng       *rand.Rand
	processes []*process
	killed    int
}

type process struct {
	context.Context
	kill    context.CancelFunc
	handler http.Handler
}

type processKey struct{}

// noErrors logs, and fails the test of a process that logs an error: a task was
// dropped, or a job has failed.
type noErrors struct {
	slog.Handler
	world *world
}

func (h *noErrors) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		h.world.Errorf("a process logs an error: %s", r.Message)
	}
	return h.Handler.Handle(ctx, r)
}

// newFleet has a fleet take the deliveries of a world.
func newFleet(w *world, seed uint64, size int, mappers ...mapper.Definition) *fleet {
	f := &fleet{world: w, mappers: mappers, rng: rand.New(rand.NewPCG(seed, 2)), processes: make([]*process, size)}
	for i := range f.processes {
		f.processes[i] = f.start()
	}
	w.engine = f.engine()
	w.handler = f
	return f
}

func (f *fleet) engine() *mapper.Engine {
	e, err := mapper.New(f.world.client, f.world.queue, &mapper.Options{Mappers: f.mappers, Logger: slog.New(&noErrors{slog.NewTextHandler(f.world.Output(), nil), f.world})})
	if err != nil {
		panic(err)
	}
	return e
}

func (f *fleet) start() *process {
	ctx, cancel := context.WithCancel(context.Background())
	return &process{ctx, cancel, f.engine().Handler()}
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
	defer cancel()
	if !zombie {
		defer context.AfterFunc(r.Context(), cancel)()
	}
	answer := &answer{header: make(http.Header), code: http.StatusOK}
	p.handler.ServeHTTP(answer, r.WithContext(ctx))
	if p.Err() != nil {
		answer.code = http.StatusBadGateway // nobody was left to answer
	}
	rw.WriteHeader(answer.code)
}

// An answer keeps what a process answers.
type answer struct {
	header http.Header
	code   int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(code int)        { a.code = code }
