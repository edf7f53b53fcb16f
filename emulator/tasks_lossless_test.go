package emulator_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
)

// A ledger counts the deliveries of each task. It signals when all expected tasks were delivered
// with success.
type ledger struct {
	mu    sync.Mutex
	seen  map[string]int
	want  int
	whole chan struct{}
}

func newLedger(want int) *ledger {
	return &ledger{seen: make(map[string]int), want: want, whole: make(chan struct{})}
}

func (l *ledger) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := req.Header.Get("X-CloudTasks-TaskName")
	if l.seen[name]++; l.seen[name] == 1 && len(l.seen) == l.want {
		close(l.whole)
	}
}

// check returns how many tasks were delivered, and how many more than once.
func (l *ledger) check() (tasks, repeated int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.seen {
		if n > 1 {
			repeated++
		}
	}
	return len(l.seen), repeated
}

// TestNoneLost pauses and resumes a queue many times, and purges it once, while tasks are created
// and some deliveries fail. It checks that each task created after the purge is delivered, and that
// no task is left.
func TestNoneLost(t *testing.T) {
	seed := testflag.Seed(t)
	for i := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, i))
			handlerRNG := rand.New(rand.NewPCG(seed, ^i))
			const n = 300
			after := newLedger(n)
			var mu sync.Mutex
			failures := make(map[string]int)
			handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				name := req.Header.Get("X-CloudTasks-TaskName")
				if failures[name]++; failures[name] < 3 && handlerRNG.Float64() < 0.3 {
					w.WriteHeader([]int{500, 429, 503, 404}[handlerRNG.IntN(4)])
					return
				}
				if name[0] == 'b' { // name of a task created after the purge
					after.ServeHTTP(w, req)
				}
			})
			e := emulator.ForTest(t, &emulator.Options{Transport: emulator.HandlerTransport(handler)})
			client, err := e.TasksClient(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
				Queue: &cloudtaskspb.Queue{
					Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 20},
				}}); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				mustCreate(t, client, task(fmt.Sprint("a", i)))
			}
			time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
			purge(t, client)
			var wg sync.WaitGroup
			for i := range n {
				wait := time.Duration(rng.IntN(2000)) * time.Millisecond
				wg.Go(func() {
					time.Sleep(wait)
					mustCreate(t, client, task(fmt.Sprint("b", i)))
				})
			}
			for range 20 {
				pause(t, client)
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
				resume(t, client)
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
			wg.Wait()
			time.Sleep(time.Hour)
			if tasks, repeated := after.check(); tasks != n || repeated > 0 {
				t.Errorf("%d of %d were delivered, %d more than once", tasks, n, repeated)
			}
			for task, err := range client.ListTasks(t.Context(),
				&cloudtaskspb.ListTasksRequest{Parent: queueName}).All() {
				t.Errorf("left in the queue: %v, %v", task, err)
				break
			}
		})
	}
}

// TestReceiverRestarts stops an HTTP server that receives tasks, and starts it again. This breaks
// connections during requests. It checks that every task is delivered.
func TestReceiverRestarts(t *testing.T) {
	const n = 1000
	all := newLedger(n)
	listen := func(addr string) (*http.Server, string) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: all}
		go server.Serve(l)
		return server, l.Addr().String()
	}
	server, addr := listen("127.0.0.1:0")
	client, err := emulator.ForTest(t, &emulator.Options{UnlimitedRate: true}).TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1e6},
			// The back-off is short, because the test runs in real time.
			RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(time.Millisecond),
				MaxBackoff: durationpb.New(10 * time.Millisecond), MaxAttempts: -1},
		}}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		task := task(fmt.Sprint("t", i))
		task.GetHttpRequest().Url = "http://" + addr
		mustCreate(t, client, task)
		switch i % 100 {
		case 50:
			server.Close()
		case 99:
			server, _ = listen(addr)
		}
	}
	defer func() { server.Close() }()
	select {
	case <-all.whole:
	case <-time.After(testflag.Patience):
		tasks, _ := all.check()
		t.Errorf("%d of %d were delivered in %v", tasks, n, testflag.Patience)
	}
}
