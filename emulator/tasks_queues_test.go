package emulator_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator"
)

func TestQueueLimits(t *testing.T) {
	const n = 50
	deliver := func(t *testing.T, limits *cloudtaskspb.RateLimits) *receiver {
		r := &receiver{work: 10 * time.Second}
		client := tasksIn(t, r, &cloudtaskspb.Queue{RateLimits: limits})
		for range n {
			mustCreate(t, client, task(""))
		}
		time.Sleep(time.Hour)
		if len(r.deliveries()) != n {
			t.Errorf("%d of %d delivered", len(r.deliveries()), n)
		}
		return r
	}
	t.Run("concurrency", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := deliver(t, &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5})
			if last := r.times()[n-1]; r.atOnce() != 5 || last != 90*time.Second {
				t.Errorf("%d at once, the last after %v; want 5 and 1m30s", r.atOnce(), last)
			}
		})
	})
	t.Run("rate", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := deliver(t, &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 2})
			if last := r.times()[n-1]; last != 20*time.Second { // ten at once (the burst), then 2 a second
				t.Errorf("the last after %v, want 20s", last)
			}
		})
	})
}

func pause(t *testing.T, client *cloudtasks.Client) {
	t.Helper()
	q, err := client.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queueName})
	if err != nil || q.State != cloudtaskspb.Queue_PAUSED {
		t.Fatalf("PauseQueue: %v, %v", q, err)
	}
}

func resume(t *testing.T, client *cloudtasks.Client) {
	t.Helper()
	q, err := client.ResumeQueue(t.Context(), &cloudtaskspb.ResumeQueueRequest{Name: queueName})
	if err != nil || q.State != cloudtaskspb.Queue_RUNNING {
		t.Fatalf("ResumeQueue: %v, %v", q, err)
	}
}

func purge(t *testing.T, client *cloudtasks.Client) {
	t.Helper()
	q, err := client.PurgeQueue(t.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queueName})
	if err != nil || !q.PurgeTime.AsTime().Equal(time.Now()) {
		t.Fatalf("PurgeQueue: %v, %v", q, err)
	}
}

func TestPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{work: time.Minute, answer: func(attempt int) int { return []int{500, 200}[attempt-1] }}
		client := tasksIn(t, r, nil)
		mustCreate(t, client, task("under-way"))
		synctest.Wait()
		pause(t, client)
		mustCreate(t, client, task("new"))
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]time.Duration{0}, r.times()); diff != "" {
			t.Errorf("deliveries in an hour's pause (-want +got):\n%s", diff)
		}
		resume(t, client)
		time.Sleep(time.Hour)
		// Both tasks are delivered at once. The new task's delivery takes a minute, and then the
		// task is retried.
		want := []time.Duration{0, time.Hour, time.Hour, time.Hour + time.Minute + 100*time.Millisecond}
		if diff := cmp.Diff(want, r.times()); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
	})
}

func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{work: time.Minute}
		r.answer = func(int) int {
			if time.Since(r.begun) < time.Hour {
				return 500
			}
			return 200
		}
		client := tasksIn(t, r, nil)
		later := task("waiting")
		later.ScheduleTime = timestamppb.New(time.Now().Add(time.Hour))
		mustCreate(t, client, task("under-way"))
		mustCreate(t, client, later)
		synctest.Wait()
		purge(t, client)
		for _, id := range []string{"under-way", "waiting"} {
			if err := create(t.Context(), client, task(id)); status.Code(err) != codes.AlreadyExists {
				t.Errorf("the name of the purged task %s: %v, want AlreadyExists", id, err)
			}
		}
		time.Sleep(2 * time.Hour)
		if diff := cmp.Diff([]time.Duration{0}, r.times()); diff != "" {
			t.Errorf("deliveries: the one under way goes on, without a retry (-want +got):\n%s", diff)
		}
		mustCreate(t, client, task("new"))
		time.Sleep(time.Hour)
		if n := len(r.times()); n != 2 {
			t.Errorf("%d deliveries after a task was created in the purged queue, want 2", n)
		}
	})
}

func TestDeleteQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		client := tasksIn(t, r, nil)
		later := task("waiting")
		later.ScheduleTime = timestamppb.New(time.Now().Add(time.Hour))
		mustCreate(t, client, later)
		if err := client.DeleteQueue(t.Context(), &cloudtaskspb.DeleteQueueRequest{Name: queueName}); err != nil {
			t.Fatal(err)
		}
		again := func() codes.Code {
			_, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
				Queue: &cloudtaskspb.Queue{Name: queueName}})
			return status.Code(err)
		}
		if got := again(); got != codes.FailedPrecondition {
			t.Errorf("a queue by the name of a deleted one: %v, want FailedPrecondition", got)
		}
		if err := create(t.Context(), client, task("")); status.Code(err) != codes.NotFound {
			t.Errorf("a task in a deleted queue: %v, want NotFound", err)
		}
		time.Sleep(3 * 24 * time.Hour)
		if got := again(); got != codes.OK {
			t.Errorf("three days later: %v, want OK", got)
		}
		time.Sleep(time.Hour)
		if n := len(r.times()); n != 0 {
			t.Errorf("%d deliveries of a task of a deleted queue", n)
		}
	})
}

// TestReuseQueueNames deletes a queue, and creates another one with the same name. The new queue
// has no tasks and settings of the old one.
func TestReuseQueueNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		e := emulator.ForTest(t, &emulator.Options{ReuseQueueNames: true, Transport: emulator.HandlerTransport(r)})
		client, err := e.TasksClient(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for run := range 3 {
			_, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
				Queue: &cloudtaskspb.Queue{Name: queueName}})
			if err != nil {
				t.Fatalf("run %d: %v", run, err)
			}
			later := task("same")
			later.ScheduleTime = timestamppb.New(time.Now().Add(time.Hour))
			mustCreate(t, client, later)
			if run == 2 {
				break
			}
			if err := client.DeleteQueue(t.Context(), &cloudtaskspb.DeleteQueueRequest{Name: queueName}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		if n := len(r.times()); n != 1 {
			t.Errorf("%d deliveries, want 1, from the last queue", n)
		}
	})
}

func TestUpdateQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), &cloudtaskspb.Queue{
			RateLimits:  &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 7.5, MaxConcurrentDispatches: 8},
			RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 9},
		})
		pause(t, client)
		update := func(change *cloudtaskspb.Queue, paths ...string) (*cloudtaskspb.Queue, error) {
			req := &cloudtaskspb.UpdateQueueRequest{Queue: change}
			if len(paths) > 0 {
				req.UpdateMask = &fieldmaskpb.FieldMask{Paths: paths}
			}
			return client.UpdateQueue(t.Context(), req)
		}
		want := func(what string, q *cloudtaskspb.Queue, err error, rate float64, burst, concurrent, attempts int32) {
			t.Helper()
			if err != nil || q.RateLimits.MaxDispatchesPerSecond != rate || q.RateLimits.MaxBurstSize != burst ||
				q.RateLimits.MaxConcurrentDispatches != concurrent || q.RetryConfig.MaxAttempts != attempts ||
				q.State != cloudtaskspb.Queue_PAUSED {
				t.Errorf("%s: %v, %v; want %v, %d, %d, %d", what, q, err, rate, burst, concurrent, attempts)
			}
		}
		change := &cloudtaskspb.Queue{
			Name: queueName, State: cloudtaskspb.Queue_RUNNING,
			RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 20, MaxBurstSize: 1,
				MaxConcurrentDispatches: 30},
			RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 40},
		}
		q, err := update(change, "rate_limits.max_dispatches_per_second", "state")
		want("one field", q, err, 20, 10, 8, 9)
		q, err = update(&cloudtaskspb.Queue{Name: queueName}, "retry_config")
		want("one message, unset", q, err, 20, 10, 8, 100)
		q, err = update(change)
		want("all fields", q, err, 20, 10, 30, 40)
		q, err = client.GetQueue(t.Context(), &cloudtaskspb.GetQueueRequest{Name: queueName})
		want("GetQueue", q, err, 20, 10, 30, 40)
		for _, path := range []string{"no_such_field", "rate_limits.x", "", "rate_limits."} {
			if _, err := update(change, path); status.Code(err) != codes.InvalidArgument {
				t.Errorf("mask %q: %v, want InvalidArgument", path, err)
			}
		}
		other := &cloudtaskspb.Queue{Name: location + "/queues/other"}
		if q, err := update(other); err != nil || q.State != cloudtaskspb.Queue_RUNNING {
			t.Errorf("a queue that is not there: %v, %v; want it made", q, err)
		}
	})
}

// TestBurst checks how many tasks a queue dispatches at once, by its rate. Production has shown
// these numbers.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		for rate, want := range map[float64]int32{0: 100, 0.25: 10, 1: 10, 500: 100} {
			q, err := client.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: &cloudtaskspb.Queue{
				Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: rate, MaxBurstSize: 7}}})
			if got := q.GetRateLimits().GetMaxBurstSize(); err != nil || got != want {
				t.Errorf("%v a second: %d at once, %v; want %d", rate, got, err, want)
			}
		}
	})
}

func TestListQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		pause(t, client)
		want := []string{queueName}
		for _, id := range []string{"c", "a", "b"} {
			name := location + "/queues/" + id
			if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
				Queue: &cloudtaskspb.Queue{Name: name}}); err != nil {
				t.Fatal(err)
			}
			want = append(want, name)
		}
		slices.Sort(want)
		list := func(req *cloudtaskspb.ListQueuesRequest) []string {
			req.Parent = location
			var names []string
			for q, err := range client.ListQueues(t.Context(), req).All() {
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, q.Name)
			}
			return names
		}
		if diff := cmp.Diff(want, list(&cloudtaskspb.ListQueuesRequest{PageSize: 3})); diff != "" {
			t.Errorf("ListQueues (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{queueName},
			list(&cloudtaskspb.ListQueuesRequest{Filter: "state: PAUSED"})); diff != "" {
			t.Errorf("with a filter (-want +got):\n%s", diff)
		}
		_, err := client.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: location,
			Filter: "rate_limits.max_burst_size > 3"}).Next()
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("another filter: %v, want Unimplemented", err)
		}
	})
}

// TestResetTasks checks that Reset removes everything, and that a queue can be created again at
// once.
func TestResetTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{work: time.Minute}
		e, client := tasksWith(t, r, nil, emulator.Options{})
		later := task("waiting")
		later.ScheduleTime = timestamppb.New(time.Now().Add(time.Hour))
		mustCreate(t, client, task("under-way"))
		mustCreate(t, client, later)
		synctest.Wait()
		e.Reset()
		if err := create(t.Context(), client, task("")); status.Code(err) != codes.NotFound {
			t.Errorf("a task in a queue before the reset: %v, want NotFound", err)
		}
		if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
			Queue: &cloudtaskspb.Queue{Name: queueName}}); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, client, task("under-way"))
		time.Sleep(2 * time.Hour)
		if diff := cmp.Diff([]time.Duration{0, 0}, r.times()); diff != "" {
			t.Errorf("deliveries: one before and one after the reset (-want +got):\n%s", diff)
		}
	})
}
