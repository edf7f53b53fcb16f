package emulator_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator"
)

const (
	location  = "projects/p/locations/l"
	queueName = location + "/queues/q"
)

// A receiver is the HTTP handler to which a test's tasks are delivered. It records the deliveries.
type receiver struct {
	answer func(attempt int) int // returns the HTTP status of the answer; nil: always 200
	header http.Header           // headers of the answer
	work   time.Duration

	mu       sync.Mutex
	begun    time.Time
	received []delivery
	running  int
	most     int // the largest number of deliveries under way at the same time
}

type delivery struct {
	task    string
	at      time.Duration
	headers http.Header
	body    string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	name := req.Header.Get("X-CloudTasks-TaskName")
	r.mu.Lock()
	attempt := 1
	for _, d := range r.received {
		if d.task == name {
			attempt++
		}
	}
	r.received = append(r.received, delivery{name, time.Since(r.begun), req.Header.Clone(), string(body)})
	r.running++
	r.most = max(r.most, r.running)
	r.mu.Unlock()
	time.Sleep(r.work)
	r.mu.Lock()
	r.running--
	r.mu.Unlock()
	maps.Copy(w.Header(), r.header)
	if r.answer != nil {
		w.WriteHeader(r.answer(attempt))
	}
}

// deliveries returns the deliveries that were received so far.
func (r *receiver) deliveries() []delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.received)
}

// atOnce returns the largest number of deliveries that were under way at the same time.
func (r *receiver) atOnce() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

func (r *receiver) times() []time.Duration {
	var times []time.Duration
	for _, d := range r.deliveries() {
		times = append(times, d.at)
	}
	return times
}

// tasksIn creates a queue in a new emulator that delivers its tasks to r. It returns the emulator's
// client. The emulator is in the test's synctest bubble.
func tasksIn(t *testing.T, r *receiver, queue *cloudtaskspb.Queue) *cloudtasks.Client {
	t.Helper()
	_, client := tasksWith(t, r, queue, emulator.Options{})
	return client
}

// tasksWith is the same as tasksIn, for an emulator with options.
func tasksWith(
	t *testing.T, r *receiver, queue *cloudtaskspb.Queue, o emulator.Options,
) (*emulator.Emulator, *cloudtasks.Client) {
	t.Helper()
	r.begun = time.Now()
	o.Transport = emulator.HandlerTransport(r)
	e := emulator.ForTest(t, &o)
	client, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if queue == nil {
		queue = new(cloudtaskspb.Queue)
	}
	queue.Name = queueName
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: queue}); err != nil {
		t.Fatal(err)
	}
	return e, client
}

func task(id string) *cloudtaskspb.Task {
	t := &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
		Url:     "http://worker.example/run?x=1",
		Headers: map[string]string{"Content-Type": "application/json", "X-CloudTasks-TaskName": "forged"},
		Body:    []byte(`{"n":1}`),
	}}}
	if id != "" {
		t.Name = queueName + "/tasks/" + id
	}
	return t
}

func create(ctx context.Context, client *cloudtasks.Client, t *cloudtaskspb.Task) error {
	_, err := client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: queueName, Task: t})
	return err
}

func mustCreate(t *testing.T, client *cloudtasks.Client, task *cloudtaskspb.Task) {
	t.Helper()
	if err := create(t.Context(), client, task); err != nil {
		t.Fatal(err)
	}
}

func TestDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(attempt int) int { return []int{500, 200}[attempt-1] }}
		client := tasksIn(t, r, nil)
		mustCreate(t, client, task("abc"))
		synctest.Wait()
		time.Sleep(time.Minute)
		if len(r.deliveries()) != 2 {
			t.Fatalf("%d deliveries, want 2", len(r.deliveries()))
		}
		header := func(i int) map[string]string {
			got := make(map[string]string)
			for k := range r.deliveries()[i].headers {
				if strings.HasPrefix(k, "X-Cloudtasks-") || k == "User-Agent" || k == "Content-Type" {
					got[k] = r.deliveries()[i].headers.Get(k)
				}
			}
			return got
		}
		want := map[string]string{
			"Content-Type":                    "application/json",
			"User-Agent":                      "Google-Cloud-Tasks",
			"X-Cloudtasks-Queuename":          "q",
			"X-Cloudtasks-Taskname":           "abc",
			"X-Cloudtasks-Taskretrycount":     "0",
			"X-Cloudtasks-Taskexecutioncount": "0",
			"X-Cloudtasks-Tasketa":            fmt.Sprintf("%d.000000", r.begun.Unix()),
		}
		if diff := cmp.Diff(want, header(0)); diff != "" {
			t.Errorf("headers of the first delivery (-want +got):\n%s", diff)
		}
		want["X-Cloudtasks-Taskretrycount"] = "1"
		want["X-Cloudtasks-Taskexecutioncount"] = "0" // executions do not include answers with 5XX
		want["X-Cloudtasks-Taskpreviousresponse"] = "500"
		want["X-Cloudtasks-Taskretryreason"] = ""
		want["X-Cloudtasks-Tasketa"] = fmt.Sprintf("%d.100000", r.begun.Unix())
		if diff := cmp.Diff(want, header(1)); diff != "" {
			t.Errorf("headers of the retry (-want +got):\n%s", diff)
		}
		if r.deliveries()[1].body != `{"n":1}` {
			t.Errorf("body %q", r.deliveries()[1].body)
		}
	})
}

func TestScheduleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		client := tasksIn(t, r, nil)
		for i, in := range []time.Duration{time.Hour, -time.Hour, time.Minute} {
			task := task(fmt.Sprint("t", i))
			task.ScheduleTime = timestamppb.New(time.Now().Add(in))
			mustCreate(t, client, task)
		}
		time.Sleep(2 * time.Hour)
		if diff := cmp.Diff([]time.Duration{0, time.Minute, time.Hour}, r.times()); diff != "" {
			t.Errorf("times of delivery (-want +got):\n%s", diff)
		}
		late := task("late")
		late.ScheduleTime = timestamppb.New(time.Now().Add(31 * 24 * time.Hour))
		if err := create(t.Context(), client, late); status.Code(err) != codes.InvalidArgument {
			t.Errorf("31 days ahead: %v, want InvalidArgument", err)
		}
	})
}

// TestDeadline checks that the queue gives up a delivery at its deadline, and retries the task
// while the first handler still runs.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{work: time.Minute}
		client := tasksIn(t, r, &cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 2}})
		slow := task("slow")
		slow.DispatchDeadline = durationpb.New(20 * time.Second)
		mustCreate(t, client, slow)
		time.Sleep(time.Hour)
		want := []time.Duration{0, 20*time.Second + 100*time.Millisecond}
		if diff := cmp.Diff(want, r.times()); diff != "" || r.atOnce() != 2 {
			t.Errorf("%d at once; times of delivery (-want +got):\n%s", r.atOnce(), diff)
		}
		if got := r.deliveries()[1].headers.Get("X-CloudTasks-TaskPreviousResponse"); got != "504" {
			t.Errorf("the previous response is %q, want 504", got)
		}
	})
}

// TestStoredTask checks how a task is shown, and the error for a task that is done.
func TestStoredTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		time.Sleep(1234 * time.Nanosecond)
		stored := task("abc")
		stored.GetHttpRequest().Headers["user-agent"] = "mine"
		got, err := client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queueName, Task: stored,
			ResponseView: cloudtaskspb.Task_FULL})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"Content-Type": "application/json", "X-CloudTasks-TaskName": "forged",
			"User-Agent": "Google-Cloud-Tasks"}
		if diff := cmp.Diff(want, got.GetHttpRequest().Headers); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		if got.ScheduleTime.Nanos != 1000 {
			t.Errorf("schedule_time %v has to be in whole microseconds", got.ScheduleTime)
		}
		time.Sleep(time.Second)
		for name, want := range map[string]string{"abc": "existed recently", "other": "Requested entity"} {
			_, err := client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: queueName + "/tasks/" + name})
			refusal{codes.NotFound, want}.check(t, name, err)
		}
		time.Sleep(24 * time.Hour) // the name is free again
		_, err = client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: queueName + "/tasks/abc"})
		refusal{codes.NotFound, "Requested entity"}.check(t, "after a day", err)
	})
}

// TestOverHTTP delivers many tasks at once over real loopback connections.
func TestOverHTTP(t *testing.T) {
	const n = 500
	var mu sync.Mutex
	seen := make(map[string]int)
	done := make(chan struct{})
	server := &http.Server{Addr: "127.0.0.1:0",
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if seen[req.Header.Get("X-CloudTasks-TaskName")]++; len(seen) == n {
				select {
				case <-done:
				default:
					close(done)
				}
			}
		})}
	url := serve(t, server)
	e := emulator.ForTest(t, &emulator.Options{UnlimitedRate: true})
	client, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1e6},
		}}); err != nil {
		t.Fatal(err)
	}
	before := e.Usage()
	for range n {
		task := task("")
		task.GetHttpRequest().Url = url
		mustCreate(t, client, task)
	}
	<-done
	if ops := e.Usage().Sub(before).TaskOps; ops != 2*n {
		t.Errorf("%d operations would be billed, want a create and a delivery for each of %d", ops, n)
	}
	mu.Lock()
	defer mu.Unlock()
	for name, times := range seen {
		if times != 1 {
			t.Errorf("%s was delivered %d times", name, times)
		}
	}
}
