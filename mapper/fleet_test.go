package mapper_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
)

// A fleet is some processes that share the deliveries of a world.
type fleet struct {
	world   *world
	mappers []mapper.AnyMapper
	queue   string      // that they have,
	target  string      // and where its tasks go
	zombies float64     // the share of deliveries that outlive their request
	fails   atomic.Bool // jobs are to fail
	stops   stops

	portion     int           // see bridge.Portion; 0: the default
	portionTime time.Duration // 0: the default
	undoMost    int64         // see bridge.UndoMost; 0: the default

	mu        sync.Mutex
	rng       *rand.Rand
	processes []*process
	frozen    []*process // which others have replaced
	killed    int
}

// noErrors logs, and fails the test of a process that logs an error: a task was
// dropped, or a job has failed.
type noErrors struct {
	slog.Handler
	fleet *fleet
}

func (h *noErrors) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError && (!h.fleet.fails.Load() || r.Message != "job failed") && !byTheEnd(r) {
		h.fleet.world.Errorf("a process logs an error: %s", r.Message)
	}
	return h.Handler.Handle(ctx, r)
}

// byTheEnd reports whether a record says that a job has failed at its end: by its finalizer, or by
// records that were tampered with. Simulations do both, and look at the job's status.
func byTheEnd(r slog.Record) (yes bool) {
	r.Attrs(func(a slog.Attr) bool {
		cause := a.Value.String()
		yes = yes || a.Key == "cause" && (strings.HasPrefix(cause, "its records do not add up") ||
			strings.Contains(cause, "the finalizer"))
		return true
	})
	return yes && r.Message == "job failed"
}

// newFleet has a fleet take the deliveries of a world.
func newFleet(w *world, seed uint64, size int, mappers ...mapper.AnyMapper) *fleet {
	f := newFleetOf(w, queueName, target, seed, size, mappers...)
	w.handler = f
	return f
}

// newFleetOf has a fleet use a queue of a world, of which its processes are to take the deliveries.
func newFleetOf(w *world, queue, target string, seed uint64, size int, mappers ...mapper.AnyMapper) *fleet {
	f := &fleet{world: w, mappers: mappers, queue: queue, target: target, rng: rand.New(rand.NewPCG(seed, 2)),
		processes: make([]*process, size)}
	f.stops.rng = rand.New(rand.NewPCG(seed, 3))
	for i := range f.processes {
		f.processes[i] = newProcess(f)
	}
	w.Cleanup(func() {
		f.thaw()
		w.settle()
		for _, p := range slices.Concat(f.processes, f.frozen) {
			p.kill()
		}
	})
	return f
}

// addIn has the processes keep a draft of a job's sums whenever there are so many more records of
// each slice, and a new task go on after a time.
func (f *fleet) addIn(records int, longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.portion, f.portionTime = records, longest
	for _, p := range f.processes {
		bridge.Portion(p.engine, records, longest)
	}
}

// undoesBy has the commits of undos have so many bytes of images at most.
func (f *fleet) undoesBy(most int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.undoMost = most
	for _, p := range f.processes {
		bridge.UndoMost(p.engine, most)
	}
}

// kill ends a process, and starts another in its place.
func (f *fleet) kill(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.kill()
	for i := range f.processes {
		if f.processes[i] == p {
			f.processes[i] = newProcess(f)
			f.killed++
		}
	}
}

// drain has a process drain as its platform gives it time, then ends it, and starts another in its
// place.
func (f *fleet) drain(p *process, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := p.engine.Drain(ctx)
	f.kill(p)
	return err
}

// retire is drain by a platform that sends a process nothing more before it is told to end, as
// Cloud Run's.
func (f *fleet) retire(p *process, grace time.Duration) error {
	f.mu.Lock()
	i := slices.Index(f.processes, p)
	f.processes[i] = newProcess(f)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	defer p.kill()
	return p.engine.Drain(ctx)
}

// freeze stops a process until the fleet thaws, and starts another in its place.
func (f *fleet) freeze(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.processes, p)
	if i < 0 {
		return // it is dead, or frozen
	}
	f.processes[i] = newProcess(f)
	f.frozen = append(f.frozen, p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

// thaw has all processes that are frozen go on.
func (f *fleet) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.frozen {
		p.mu.Lock()
		if p.frozen != nil {
			close(p.frozen)
			p.frozen = nil
		}
		p.mu.Unlock()
	}
}

// wake has all processes that are stopped go on within a minute: a stop of hours is a fault that
// has not come to an end.
func (f *fleet) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range slices.Concat(f.processes, f.frozen) {
		p.mu.Lock()
		p.until = time.Time{}
		p.mu.Unlock()
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
	answered := make(chan int, 1)
	f.world.deliveries.Go(func() { answered <- p.serve(r, zombie) })
	select {
	case code := <-answered:
		rw.WriteHeader(code)
	case <-p.Done(): // nobody is left to answer
		rw.WriteHeader(http.StatusBadGateway)
	}
}
