package bench

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// fleetSize is the maximum number of processes in a fleet. Each process has the same number of
// workers, and processes start and end during a job, as the instances of a service do.
const fleetSize = 5

// A bare is an entity with almost no content, so that calls stay small. Its key determines how long
// the function takes.
type bare struct {
	Match bool `datastore:",omitempty"` // whether the job's filter matches it
}

// A fleet is a database, a queue, and processes that start and end during a job, in virtual time.
// Each job has new processes, so that they know nothing from earlier jobs.
type fleet struct {
	*testing.T
	cloud    *cloud
	emulator *emulator.Emulator
	tasks    *cloudtasks.Client
	queue    *tasks.Queue
	client   *datastore.Client
	visit    *mapper.Mapper[mapper.NoParams]
	each     int // number of workers of each process

	function func(*datastore.Key) // waits for as long as the function takes for an entity
	read     int64                // number of entities that the last job has read, including its records

	deliveries sync.WaitGroup

	changing  chan struct{} // a lock, held while a process is started or ended
	mu        sync.Mutex
	processes []*process // the processes of the current job
	cold      time.Duration
}

// longestEntity is the EntityTimeout of the jobs. Some random shapes have entities that take 10 s,
// and phases in which all take ten times as long.
const longestEntity = 4 * time.Minute

// A process handles the tasks of one job.
type process struct {
	engine func() *mapper.Engine // creates the engine at the first call
	up     bool                  // whether deliveries are sent to it
	ready  time.Time             // when it handles its first delivery; zero if none has come
	busy   int                   // number of deliveries that it handles now
}

func newFleet(t *testing.T, workers int, c *cloud) *fleet {
	t.Helper()
	f := &fleet{T: t, cloud: c, each: max(1, workers/fleetSize), changing: make(chan struct{}, 1)}
	f.emulator = emulator.ForTest(t, &emulator.Options{
		Transport: emulator.HandlerTransport(f), Interceptor: c.intercept, UnlimitedRate: true,
	})
	var err error
	f.tasks, err = f.emulator.TasksClient(t.Context())
	f.must(err)
	t.Cleanup(func() { f.tasks.Close() })
	f.client, err = f.emulator.DatastoreClient(t.Context(), "bench", mapper.ClientOption())
	f.must(err)
	t.Cleanup(func() { f.client.Close() })
	f.resize(fleetSize)
	f.queue, err = tasks.NewQueue(f.tasks, queueName, "http://worker/mapper/", &tasks.Options{InsecureSkipVerify: true})
	f.must(err)
	f.visit = mapper.Visit("bare", func(_ context.Context, e *mapper.Entity[bare], _ mapper.NoParams) error {
		f.function(e.Key)
		return nil
	})
	t.Cleanup(func() { // runs before the servers that deliveries need are closed
		f.cloud.on.Store(false)
		f.emulator.Reset()
		f.deliveries.Wait()
	})
	return f
}

func (f *fleet) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// resize sets the queue's limit of concurrent deliveries to the number of tasks that the given
// number of processes can take.
func (f *fleet) resize(up int) {
	f.Helper()
	_, err := f.tasks.UpdateQueue(f.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: &cloudtaskspb.Queue{
		Name:       queueName,
		RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(up * f.each), MaxDispatchesPerSecond: 1e6},
	}})
	f.must(err)
}

func (f *fleet) newProcess() *process {
	f.Helper()
	p := &process{engine: sync.OnceValue(func() *mapper.Engine {
		engine, err := mapper.NewEngine(f.client, f.queue, &mapper.EngineOptions{
			Mappers: []mapper.AnyMapper{f.visit}, Logger: slog.New(slog.DiscardHandler),
		})
		f.must(err)
		return engine
	})}
	if f.cold == 0 {
		p.engine()
	}
	return p
}

// ServeHTTP passes a delivery to the process with the fewest deliveries, after the time that a
// dispatch takes.
func (f *fleet) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	f.deliveries.Add(1)
	defer f.deliveries.Done()
	f.cloud.dispatch()
	f.mu.Lock()
	var p *process
	for _, other := range f.processes {
		if other.up && (p == nil || other.busy < p.busy) {
			p = other
		}
	}
	if p.ready.IsZero() {
		p.ready = time.Now().Add(f.cold)
	}
	p.busy++
	f.mu.Unlock()
	time.Sleep(time.Until(p.ready))
	p.engine().Handler().ServeHTTP(rw, r)
	f.mu.Lock()
	p.busy--
	f.mu.Unlock()
}

// A shift says that a process starts or ends at a time, counted from the start of a job.
type shift struct {
	at      time.Duration
	process int
	up      bool
}

// begin creates new processes for a job. Some exist from the start, and the shifts start and end
// processes later, until the caller calls over. A process that ends is drained first: the
// deliveries that it handles end normally, although the queue's limit is lowered.
func (f *fleet) begin(shifts []shift, cold time.Duration) (over func()) {
	f.Helper()
	done := make(chan struct{})
	var all sync.WaitGroup
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cold, f.processes = cold, make([]*process, fleetSize)
	up := 0
	for i := range f.processes {
		f.processes[i] = f.newProcess()
		if f.processes[i].up = there(shifts, i, 0); f.processes[i].up {
			up++
		}
	}
	f.resize(up)
	begun := time.Now()
	all.Go(func() {
		for _, s := range shifts {
			if s.at == 0 {
				continue
			}
			select {
			case <-time.After(time.Until(begun.Add(s.at))):
			case <-done:
				return
			}
			all.Go(func() { f.change(s) })
		}
	})
	return func() {
		close(done)
		all.Wait()
	}
}

// change starts or ends a process.
func (f *fleet) change(s shift) {
	f.changing <- struct{}{} // a channel, because virtual time would not advance while goroutines wait for a mutex
	var next, gone *process
	if s.up {
		next = f.newProcess()
		next.up = true
	}
	up := 0
	f.mu.Lock()
	if p := f.processes[s.process]; s.up {
		f.processes[s.process] = next
	} else {
		gone, p.up = p, false
	}
	for _, p := range f.processes {
		if p.up {
			up++
		}
	}
	f.mu.Unlock()
	f.resize(up)
	<-f.changing
	if gone != nil {
		f.must(gone.engine().Drain(f.Context()))
	}
}

// there reports whether a process exists at a time after the job's start. The process's last shift
// before that time decides. Without such a shift it exists.
func there(shifts []shift, process int, at time.Duration) bool {
	up := true
	for _, s := range shifts {
		if s.process == process && s.at <= at {
			up = s.up
		}
	}
	return up
}

// run runs a job, and returns its status and its duration.
func (f *fleet) run(
	id string, q mapper.Query, sp mapper.Splitting, shifts []shift, cold time.Duration,
) (*mapper.Status, time.Duration) {
	f.Helper()
	over := f.begin(shifts, cold)
	starter := f.newProcess().engine()
	f.cloud.on.Store(true)
	begun, before := time.Now(), f.emulator.Usage()
	job, err := f.visit.Start(f.Context(), starter, q, mapper.NoParams{}, &mapper.StartOptions{
		ID: id, PageSize: *pageSize, ExpectedWorkers: f.each * fleetSize, Splitting: sp, EntityTimeout: longestEntity,
	})
	f.must(err)
	status := f.await(job)
	f.read = f.emulator.Usage().Reads - before.Reads
	over()
	f.cloud.on.Store(false)
	// the record has the time at which the last commit started
	took := status.Ended.Sub(begun) + f.cloud.mean(perCommit)
	proof, err := job.Verify(f.Context(), nil)
	f.must(err)
	if len(proof.Problems) > 0 {
		f.Errorf("proof of %s: %v", id, proof.Problems)
	}
	time.Sleep(10 * time.Minute) // until the last sweeps have run
	return status, took
}

// await waits until a job has ended. It makes no calls while deliveries are handled, so that it
// does not slow them down.
func (f *fleet) await(job *mapper.Job) *mapper.Status {
	f.Helper()
	for range 100_000 {
		time.Sleep(time.Second)
		if f.busy() {
			continue
		}
		f.cloud.on.Store(false)
		status, err := job.Status(f.Context())
		f.cloud.on.Store(true)
		f.must(err)
		if status.State.Ended() {
			return status
		}
	}
	f.Fatal("the job does not end")
	return nil
}

func (f *fleet) busy() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.processes {
		if p.busy > 0 {
			return true
		}
	}
	return false
}

// seed writes the entities of a shape.
func (f *fleet) seed(r random) {
	f.Helper()
	some, keys := make([]bare, 500), make([]*datastore.Key, 500)
	for i := 0; i < r.n; i += len(some) {
		chunk := min(len(some), r.n-i)
		for j := range chunk {
			keys[j] = r.key(i + j)
			some[j].Match = r.matches != nil && r.matches[i+j]
		}
		_, err := f.client.PutMulti(f.Context(), keys[:chunk], some[:chunk])
		f.must(err)
	}
}
