package export_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"google.golang.org/protobuf/types/known/durationpb"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// workerEnv is an environment variable. If it is set, the test's binary runs as a worker: a process
// that handles tasks until it is killed.
const workerEnv = "SCATTERMAP_EXPORT_WORKER"

func TestMain(m *testing.M) {
	if place := os.Getenv(workerEnv); place != "" {
		if err := work(strings.Fields(place)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const queueName = "projects/test/locations/here/queues/export"

// killedEngine returns the engine of a worker or of the test, with an export that is slow enough to
// be killed on the way.
func killedEngine(
	ctx context.Context, datastoreAddr, tasksAddr, dir, target string,
) (*mapper.Engine, *export.Export[mapper.NoParams], *blob.Bucket, error) {
	bucket, err := fileblob.OpenBucket(dir, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		return nil, nil, nil, err
	}
	dial := func(addr string, opts ...grpc.DialOption) option.ClientOption {
		conn, dialing := grpc.NewClient("passthrough:///"+addr,
			append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		err = errors.Join(err, dialing)
		return option.WithGRPCConn(conn)
	}
	client, failed := datastore.NewClient(ctx, "test",
		dial(datastoreAddr, grpc.WithChainUnaryInterceptor(mapper.ClientInterceptor())),
		option.WithTelemetryDisabled())
	err = errors.Join(err, failed)
	queues, failed := cloudtasks.NewClient(ctx, dial(tasksAddr), option.WithTelemetryDisabled())
	if err = errors.Join(err, failed); err != nil {
		return nil, nil, nil, err
	}
	queue, err := tasks.NewQueue(queues, queueName, target, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		return nil, nil, nil, err
	}
	x := must(export.New("orders", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
		error) {
		time.Sleep(3 * time.Millisecond)
		if e.Value.N < 0 {
			return line{}, mapper.Skip
		}
		return line(e.Value), nil
	}, &export.Options{Format: export.JSONLines, Compression: export.Gzip, FileBytes: 10_000}))
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: x.Mappers(), Logger: quiet})
	return engine, x, bucket, err
}

// work is the main function of a worker. It prints the worker's address, and ends when its parent
// process ends.
func work(place []string) error {
	engine, _, _, err := killedEngine(context.Background(), place[0], place[1], place[2], place[3])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() { _ = http.Serve(listener, engine.Handler()) }()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// A crew is a set of workers. A proxy sends each delivery to one of them.
type crew struct {
	t     *testing.T
	place string
	rng   *rand.Rand

	// kill orders: a worker to kill at once, because it gets a delivery of the job that joins files;
	// nil for any worker, a moment later
	doomed chan *worker
	over   chan struct{} // closed when the test takes no more orders

	mu            sync.Mutex
	all           []*worker
	next          int // in how many deliveries any worker is killed
	orders, joins int // kill orders, and how many of them were for workers that joined files
	kills         int // workers that were killed
}

// The most kill orders, and the most of them for workers that join files. With more, unlucky entities
// seem to be deadly, and wait longer and longer for their next attempt.
const mostOrders, mostJoins = 12, 3

type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	proxy *httputil.ReverseProxy
}

func (c *crew) start() *worker {
	c.t.Helper()
	w := &worker{cmd: exec.Command(os.Args[0])}
	w.cmd.Env, w.cmd.Stderr = append(os.Environ(), workerEnv+"="+c.place), os.Stderr
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	w.stdin = stdin
	stdout, err := w.cmd.StdoutPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		c.t.Fatalf("a worker says nothing: %v", err)
	}
	w.proxy = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: strings.TrimSpace(addr)})
	w.proxy.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request, _ error) {
		rw.WriteHeader(http.StatusBadGateway)
	}
	return w
}

// end kills a worker and waits for its end.
func (w *worker) end() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	w.stdin.Close()
}

// ServeHTTP sends a delivery to a random worker. Deliveries give the orders to kill, not the clock:
// a delivery waits until the test takes its order. So workers are killed however fast the job is.
func (c *crew) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		rw.WriteHeader(http.StatusBadGateway)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	w, order, kill := c.choose(bytes.Contains(body, []byte(`"orders-join"`)))
	if kill {
		select {
		case c.doomed <- order:
		case <-c.over:
		}
	}
	w.proxy.ServeHTTP(rw, r)
}

// choose returns a worker for a delivery, and whether the delivery gives a kill order.
func (c *crew) choose(join bool) (w, order *worker, kill bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w = c.all[c.rng.IntN(len(c.all))]
	if join && c.joins < mostJoins {
		c.joins++
		c.orders++
		return w, w, true
	}
	if c.next--; c.next > 0 || c.orders >= mostOrders {
		return w, nil, false
	}
	c.orders++
	c.next = 2 + c.rng.IntN(4)
	return w, nil, true
}

// kill kills a worker, if it still runs, and starts another one. It kills any worker if old is nil.
func (c *crew) kill(old *worker) {
	c.mu.Lock()
	i := slices.Index(c.all, old)
	if old == nil {
		i = c.rng.IntN(len(c.all))
		old = c.all[i]
	}
	c.mu.Unlock()
	if i < 0 {
		return
	}
	old.end()
	fresh := c.start()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[i] = fresh
	c.kills++
}

// TestKilled kills worker processes at random times, also while files are joined. The files must
// have each record once. No other blobs or records may remain.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out what starts processes")
	}
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0",
		ReuseQueueNames: true})
	queues, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer queues.Close()
	_, err = queues.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: "projects/test/locations/here",
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 8},
			RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(50 * time.Millisecond),
				MaxBackoff: durationpb.New(200 * time.Millisecond)},
		}})
	if err != nil {
		t.Fatal(err)
	}
	rng := testflag.Rand(t)
	c := &crew{t: t, rng: rand.New(rand.NewPCG(rng.Uint64(), 1)), doomed: make(chan *worker),
		over: make(chan struct{})}
	front := httptest.NewServer(c)
	defer front.Close()
	defer close(c.over)
	dir := t.TempDir()
	c.place = strings.Join([]string{e.DatastoreAddr(), e.TasksAddr(), dir, front.URL + "/mapper/"}, " ")
	for range 2 {
		c.all = append(c.all, c.start())
	}
	defer func() {
		for _, w := range c.all {
			w.end()
		}
	}()
	engine, x, bucket, err := killedEngine(t.Context(), e.DatastoreAddr(), e.TasksAddr(), dir, front.URL+"/mapper/")
	if err != nil {
		t.Fatal(err)
	}
	putOrders(t, engine.Client())
	run, err := x.Start(t.Context(), engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
		StartOptions: mapper.StartOptions{ID: "orders", PageSize: 20}, Folder: folder})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	var m *export.Manifest
	go func() {
		var err error
		m, err = run.Wait(t.Context())
		done <- err
	}()
	for ended := false; !ended; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			ended = true
		case w := <-c.doomed:
			if w == nil {
				time.Sleep(time.Duration(20+rng.IntN(100)) * time.Millisecond)
			}
			c.kill(w)
		}
	}
	t.Logf("%d processes were killed, up to %d of them while files were joined", c.kills, c.joins)
	checkRecords(t, bucket, m)
	checkTidy(t, engine.Client(), bucket, m)
	if len(m.Files) < 2 || c.kills < 3 || c.joins == 0 {
		t.Errorf("%d files, and %d processes were killed", len(m.Files), c.kills)
	}
}
