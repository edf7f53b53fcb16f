package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/tasks"
)

const (
	location  = "projects/p/locations/l"
	queueName = location + "/queues/q"
)

// newQueue creates a queue on an emulator of Cloud Tasks, and returns it.
func newQueue(t *testing.T, target string, emu *emulator.Options, o *tasks.Options) *tasks.Queue {
	t.Helper()
	e := emulator.ForTest(t, emu)
	client, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{
		Parent: location, Queue: &cloudtaskspb.Queue{Name: queueName},
	}); err != nil {
		t.Fatal(err)
	}
	if o != nil && !o.InsecureSkipVerify {
		o.KeysURL = e.KeysURL()
	}
	q, err := tasks.NewQueue(client, queueName, target, o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// inBubble runs a test in virtual time. The test gets a queue of an emulator, which delivers its
// tasks to run.
func inBubble(
	t *testing.T, emu emulator.Options, run func(context.Context, tasks.Delivery) error,
	test func(*testing.T, *tasks.Queue),
) {
	synctest.Test(t, func(t *testing.T) {
		var handler http.Handler
		emu.Transport = emulator.HandlerTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r)
		}))
		q := newQueue(t, "http://worker.example/base/", &emu, &tasks.Options{InsecureSkipVerify: true})
		handler = q.Handler(slog.New(slog.DiscardHandler), run)
		test(t, q)
	})
}

func TestDelivery(t *testing.T) {
	var mu sync.Mutex
	var got []tasks.Delivery
	run := func(_ context.Context, d tasks.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, d); len(got) == 1 {
			return errors.New("not yet")
		}
		return nil
	}
	inBubble(t, emulator.Options{}, run, func(t *testing.T, q *tasks.Queue) {
		begun := time.Now()
		if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc", Path: "run", Body: []byte("hello"),
			ScheduleTime: begun.Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		if exists, err := q.Exists(t.Context(), tasks.Task{ID: "abc", Path: "run"}); err != nil || !exists {
			t.Errorf("before its delivery the task exists: %v, %v", exists, err)
		}
		time.Sleep(59 * time.Second)
		mu.Lock()
		if len(got) > 0 {
			t.Error("delivered before its time")
		}
		mu.Unlock()
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		for i := range got {
			if due := got[i].ScheduleTime; due.Before(begun.Add(time.Minute).Add(-time.Millisecond)) ||
				due.After(begun.Add(2*time.Minute)) {
				t.Errorf("delivery %d was due at %v", i, due.Sub(begun))
			}
			got[i].ScheduleTime = time.Time{}
		}
		want := []tasks.Delivery{{TaskID: "abc", Queue: q.Name(), Body: []byte("hello")},
			{TaskID: "abc", Queue: q.Name(), RetryCount: 1, Body: []byte("hello")}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
		if exists, err := q.Exists(t.Context(), tasks.Task{ID: "abc", Path: "run"}); err != nil || exists {
			t.Errorf("after its delivery the task exists: %v, %v", exists, err)
		}
		if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc"}); !errors.Is(err, tasks.ErrExists) {
			t.Errorf("the same ID again: %v, want ErrExists", err)
		}
		if err := q.EnqueueAll(t.Context(), []tasks.Task{{ID: "abc"}, {ID: "abd"}}); err != nil {
			t.Errorf("EnqueueAll with an ID that is taken: %v", err)
		}
	})
}

func TestDropEndsRetries(t *testing.T) {
	var n atomic.Int64
	run := func(context.Context, tasks.Delivery) error {
		n.Add(1)
		return fmt.Errorf("wrapped: %w", tasks.Drop(errors.New("no such job")))
	}
	inBubble(t, emulator.Options{}, run, func(t *testing.T, q *tasks.Queue) {
		if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n.Load() != 1 {
			t.Errorf("%d deliveries, want 1", n.Load())
		}
	})
}

// TestEnqueueRetries lets calls that create tasks fail, before and after they take effect. Enqueue
// must retry them.
func TestEnqueueRetries(t *testing.T) {
	var calls, deliveries atomic.Int64
	faults := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if !strings.HasSuffix(info.FullMethod, "/CreateTask") {
			return handler(ctx, req)
		}
		switch calls.Add(1) {
		case 1:
			return nil, status.Error(codes.Unavailable, "before")
		case 2:
			handler(ctx, req)
			return nil, status.Error(codes.Unavailable, "after")
		}
		return handler(ctx, req)
	}
	run := func(context.Context, tasks.Delivery) error { deliveries.Add(1); return nil }
	inBubble(t, emulator.Options{Interceptor: faults}, run, func(t *testing.T, q *tasks.Queue) {
		if err := q.EnqueueAll(t.Context(), []tasks.Task{{ID: "abc"}}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if calls.Load() != 3 || deliveries.Load() != 1 {
			t.Errorf("%d calls, %d deliveries; want 3 and 1", calls.Load(), deliveries.Load())
		}
	})
}

// TestEnqueueGivesUp checks that Enqueue returns an error if the service stays unavailable.
func TestEnqueueGivesUp(t *testing.T) {
	down := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, status.Error(codes.Unavailable, "down")
	}
	synctest.Test(t, func(t *testing.T) {
		e := emulator.ForTest(t, &emulator.Options{Interceptor: down})
		client, err := e.TasksClient(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		q, err := tasks.NewQueue(client, queueName, "http://worker.example/", &tasks.Options{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		err = q.Enqueue(t.Context(), tasks.Task{ID: "abc"})
		if err == nil || time.Since(begun) > time.Minute {
			t.Errorf("error %v after %v, want one within a minute", err, time.Since(begun))
		}
	})
}

func TestID(t *testing.T) {
	valid := regexp.MustCompile(`^[A-Za-z0-9_-]{1,500}$`)
	seen := make(map[string][]string)
	for _, parts := range [][]string{nil, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab"}, {"ab", ""},
		{strings.Repeat("x", 1000)}, {"a/b c"}} {
		id := tasks.ID(parts...)
		if !valid.MatchString(id) || id != tasks.ID(parts...) {
			t.Errorf("ID%q is %q", parts, id)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("ID%q equals ID%q", parts, other)
		}
		seen[id] = parts
	}
}

func TestOptions(t *testing.T) {
	e := emulator.ForTest(t, nil)
	client, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	open := &tasks.Options{InsecureSkipVerify: true}
	for name, c := range map[string]struct {
		queue, target string
		o             *tasks.Options
		want          string
	}{
		"neither account nor none": {queueName, "https://x/", nil, "ServiceAccount is empty"},
		"audience of nothing": {queueName, "https://x/", &tasks.Options{InsecureSkipVerify: true, Audience: "a"},
			"Audience is set without"},
		"keys of nothing": {queueName, "https://x/", &tasks.Options{InsecureSkipVerify: true, KeysURL: "https://x/"},
			"KeysURL is set with InsecureSkipVerify"},
		"queue":             {"q", "https://x/", open, `the queue's name is "q"`},
		"target":            {queueName, "x/", open, `the target is "x/"`},
		"target with query": {queueName, "https://x/?a=b", open, "without a query"},
		"keys": {queueName, "https://x/", &tasks.Options{ServiceAccount: "a", KeysURL: "nowhere"},
			`the URL of the keys is "nowhere"`},
		"deadline": {queueName, "https://x/", &tasks.Options{InsecureSkipVerify: true, DispatchDeadline: time.Second},
			"it has to be in [15s, 30m0s]"},
	} {
		_, err := tasks.NewQueue(client, c.queue, c.target, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	if _, err := tasks.NewQueue(nil, queueName, "https://x/", open); err == nil {
		t.Error("a nil client: no error")
	}
}
