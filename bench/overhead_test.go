package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

const serverEnv = "SCATTERMAP_BENCH_SERVER"

// TestMain runs the tests, or the emulators if this process was started for that. So the measured
// process does only the library's own work.
func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) == "" {
		os.Exit(m.Run())
	}
	e, err := emulator.Start(&emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0",
		UnlimitedRate: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(e.DatastoreAddr(), e.TasksAddr())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the process of the benchmark ends
	e.Close()
}

// A record is an entity of a typical size.
type record struct {
	Balance int64
	Owner   string
	Email   string    `datastore:",noindex"`
	Created time.Time `datastore:",noindex"`
	Tags    []string  `datastore:",noindex"`
}

var (
	addOne = mapper.Update("add-one", func(_ context.Context, r *mapper.Entity[record], _ mapper.NoParams) error {
		r.Value.Balance++
		return nil
	})
	look = mapper.Visit("look", func(_ context.Context, r *mapper.Entity[record], _ mapper.NoParams) error {
		if r.Value.Owner == "" {
			return fmt.Errorf("%v has no owner", r.Key)
		}
		return nil
	})
)

// concurrent is the number of pages that the job and the loop each process at once, unless a
// benchmark sets another.
const concurrent = 4

// A realWorld runs jobs and loops in real time, with the emulators in another process.
type realWorld struct {
	*testing.B
	client *datastore.Client
	engine *mapper.Engine
	front  *http.Server
	keys   []*datastore.Key
	pages  int // number of pages that the job and the loop each process at once
	jobs   int
	atOnce int // the jobs' StartOptions.Concurrency; 0: the mapper's default
}

// addrs are the addresses of a Datastore and a Cloud Tasks emulator.
type addrs struct{ datastore, tasks string }

// startServer starts the emulators in a process of their own, until the benchmark ends.
func startServer(b *testing.B) addrs {
	b.Helper()
	server := exec.Command(os.Args[0])
	server.Env, server.Stderr = append(os.Environ(), serverEnv+"=1"), os.Stderr
	stdin, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stdin.Close(); _ = server.Wait() })
	var a addrs
	if _, err := fmt.Fscan(stdout, &a.datastore, &a.tasks); err != nil {
		b.Fatal(err)
	}
	return a
}

// dial returns a connection to a server, which is closed when the benchmark ends.
func dial(b *testing.B, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr,
		append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return conn
}

func newRealWorld(b *testing.B, n int, more ...mapper.AnyMapper) *realWorld {
	b.Helper()
	return newRealWorldOf(b, concurrent, n, more...)
}

// newRealWorldOf returns a world of n records, whose queue delivers as many tasks at once as pages.
func newRealWorldOf(b *testing.B, pages, n int, more ...mapper.AnyMapper) *realWorld {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	addrs := startServer(b)
	var err error
	w := &realWorld{B: b, pages: pages}
	w.client, err = datastore.NewClient(b.Context(), "bench",
		option.WithGRPCConn(dial(b, addrs.datastore, grpc.WithChainUnaryInterceptor(mapper.ClientInterceptor()))),
		option.WithTelemetryDisabled())
	must(err)
	b.Cleanup(func() { w.client.Close() })
	client, err := cloudtasks.NewClient(b.Context(), option.WithGRPCConn(dial(b, addrs.tasks)),
		option.WithTelemetryDisabled())
	must(err)
	b.Cleanup(func() { client.Close() })
	_, err = client.CreateQueue(b.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(pages),
				MaxDispatchesPerSecond: 500},
		}})
	must(err)
	front := httptest.NewUnstartedServer(nil)
	front.Start()
	b.Cleanup(front.Close)
	queue, err := tasks.NewQueue(client, queueName, front.URL+"/", &tasks.Options{InsecureSkipVerify: true})
	must(err)
	w.engine, err = mapper.NewEngine(w.client, queue,
		&mapper.EngineOptions{Mappers: append([]mapper.AnyMapper{addOne, look}, more...)})
	must(err)
	front.Config.Handler = w.engine.Handler()
	w.front = front.Config

	w.keys = recordKeys(n)
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(concurrent)
	for first := 0; first < n; first += 500 {
		group.Go(func() error {
			keys := w.keys[first:min(first+500, n)]
			records := make([]record, len(keys))
			for i := range records {
				records[i] = record{Owner: fmt.Sprint("owner ", first+i), Email: fmt.Sprintf("%d@example.com", first+i),
					Created: time.Unix(int64(first+i), 0), Tags: []string{"a", "b"}}
			}
			_, err := w.client.PutMulti(ctx, keys, records)
			return err
		})
	}
	must(group.Wait())
	return w
}

func recordKeys(n int) (keys []*datastore.Key) {
	for i := range n {
		keys = append(keys, datastore.NameKey("Record", fmt.Sprintf("user-%08d", i), nil))
	}
	return keys
}

// job runs a job over all records, and returns its duration.
func (w *realWorld) job(m *mapper.Mapper[mapper.NoParams]) time.Duration {
	return w.jobOver(m, len(w.keys))
}

func (w *realWorld) jobOver(m *mapper.Mapper[mapper.NoParams], n int) time.Duration {
	w.jobs++
	job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Record"}, mapper.NoParams{},
		&mapper.StartOptions{ID: fmt.Sprint("job-", w.jobs), Concurrency: w.atOnce})
	if err != nil {
		w.Fatal(err)
	}
	s, err := job.Wait(w.Context())
	if err != nil || s.State != mapper.StateSucceeded || s.Processed != int64(n) {
		w.Fatalf("%+v, %v", s, err)
	}
	return s.Ended.Sub(s.Created) // the record's times, because Wait may notice the end late
}

// loop does the same work as the job, like a program written by hand. Each of several goroutines
// has a part of the keys. It reads a page, changes it, and puts it if put is set.
func (w *realWorld) loop(put bool) time.Duration {
	begun := time.Now()
	group, ctx := errgroup.WithContext(w.Context())
	for i := range w.pages {
		part := w.keys[len(w.keys)*i/w.pages : len(w.keys)*(i+1)/w.pages]
		group.Go(func() error {
			for len(part) > 0 {
				var records []record
				q := datastore.NewQuery("Record").Order("__key__").FilterField("__key__", ">=", part[0]).
					FilterField("__key__", "<=", part[len(part)-1]).Limit(500)
				keys, err := w.client.GetAll(ctx, q, &records)
				if err != nil {
					return err
				}
				for i := range records {
					if records[i].Balance++; records[i].Owner == "" {
						return fmt.Errorf("%v has no owner", keys[i])
					}
				}
				if put {
					if _, err := w.client.PutMulti(ctx, keys, records); err != nil {
						return err
					}
				}
				part = part[len(keys):]
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		w.Fatal(err)
	}
	return time.Since(begun)
}

// A usage is the time, CPU time and memory that a run has taken in this process.
type usage struct {
	took, cpu    time.Duration
	bytes, times uint64 // the bytes and the number of allocations
}

func (u *usage) add(o usage) {
	u.took += o.took
	u.cpu += o.cpu
	u.bytes += o.bytes
	u.times += o.times
}

func measure(run func() time.Duration) usage {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	spent := processTime()
	took := run()
	u := usage{took: took, cpu: processTime() - spent}
	runtime.ReadMemStats(&after)
	u.bytes, u.times = after.TotalAlloc-before.TotalAlloc, after.Mallocs-before.Mallocs
	return u
}

// BenchmarkOverhead runs a job over 1,000,000 entities, and then a loop written by hand. Both use
// the same client, the same page size, and the same number of concurrent pages. It reports the
// entities a second of both and their ratio, and this process's CPU time and allocations for each
// entity. The emulators are another process on the same machine.
//
//	go test ./bench -run '^$' -bench Overhead -benchtime 3x
func BenchmarkOverhead(b *testing.B) {
	const n = 1_000_000
	for _, run := range []struct {
		name  string
		job   *mapper.Mapper[mapper.NoParams]
		put   bool
		pages int
	}{
		{"update", addOne, true, concurrent},
		{"visit", look, false, concurrent},
		{"update, 8 pages at once", addOne, true, 8},
		{"update, 32 pages at once", addOne, true, 32},
	} {
		b.Run(run.name, func(b *testing.B) {
			w := newRealWorldOf(b, run.pages, n)
			w.job(run.job) // opens all connections before the measurement
			w.loop(run.put)
			var job, loop usage
			for b.Loop() {
				job.add(measure(func() time.Duration { return w.job(run.job) }))
				loop.add(measure(func() time.Duration { return w.loop(run.put) }))
			}
			all := float64(n * b.N)
			for name, u := range map[string]usage{"job": job, "loop": loop} {
				b.ReportMetric(all/u.took.Seconds(), name+"-entities/s")
				b.ReportMetric(float64(u.cpu.Nanoseconds())/all/1000, name+"-cpu-µs/entity")
				b.ReportMetric(float64(u.bytes)/all, name+"-B/entity")
				b.ReportMetric(float64(u.times)/all, name+"-allocs/entity")
			}
			b.ReportMetric(loop.took.Seconds()/job.took.Seconds(), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkMemory runs ten jobs over 100,000 entities, and one over 1,000,000, so that both sizes
// have equally many measurements. It reports the largest heap after a garbage collection, including
// memory that was allocated while the collection ran. The result shows that the heap does not grow
// with the number of entities.
//
//	go test ./bench -run '^$' -bench Memory -benchtime 1x -timeout 1h
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newRealWorld(b, n)
			most := uint64(0)
			// Release the keys: they are not part of the job, and make garbage collections longer.
			// Memory that is allocated during a collection counts as held.
			w.keys = nil
			var held runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&held)
			for b.Loop() {
				most = max(most, heldMore(held.HeapAlloc, func() {
					for range 1_000_000 / n {
						w.jobOver(addOne, n)
					}
				}))
			}
			b.ReportMetric(float64(most)/(1<<20), "MiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// heldMore returns how much the heap grows beyond than bytes while run runs. It measures the heap
// after each garbage collection, including memory that was allocated meanwhile.
func heldMore(than uint64, run func()) (most uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	var watch errgroup.Group
	watch.Go(func() error {
		for ctx.Err() == nil {
			var now runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(than, now.HeapAlloc))
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	})
	run()
	cancel()
	_ = watch.Wait()
	return most
}
