package tasks_test

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/tasks"
)

// TestCreate creates a queue that CheckSettings accepts, and leaves an existing queue unchanged.
func TestCreate(t *testing.T) {
	client, err := emulator.ForTest(t, nil).TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	q, err := tasks.NewQueue(client, location+"/queues/new", "http://worker/", &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	service := tasks.ServiceLimits{MaxInstances: 5, Concurrency: 8, Timeout: 10 * time.Minute}
	for _, want := range []bool{true, false} {
		if created, err := q.Create(t.Context(), service); created != want || err != nil {
			t.Errorf("Create returned %v, %v, want %v", created, err, want)
		}
		service.MaxInstances *= 2
	}
	if n, err := q.MaxConcurrent(t.Context()); n != 36 || err != nil {
		t.Errorf("the queue delivers %d tasks at once, %v; want 36 of the 40 requests that the first service takes", n,
			err)
	}
	if err := q.CheckSettings(t.Context(), service); err != nil {
		t.Errorf("Check of the queue that Create has made: %v", err)
	}
	other, err := tasks.NewQueue(client, location+"/queues/other", "http://worker/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Create(t.Context(), tasks.ServiceLimits{MaxInstances: 5, Concurrency: 8,
		Queues: 2}); err != nil {
		t.Error(err)
	}
	if n, err := other.MaxConcurrent(t.Context()); n != 18 || err != nil {
		t.Errorf("one of two queues delivers %d tasks at once, %v; want half of 36", n, err)
	}
}

// TestCheck checks a queue with each kind of unsuitable setting.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		queue   *cloudtaskspb.Queue
		service tasks.ServiceLimits
		want    string // a part of the error; empty: the settings suit
	}{
		"all is well": {
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 36},
				RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Minute)}},
			tasks.ServiceLimits{MaxInstances: 5, Concurrency: 8, Timeout: time.Hour}, "",
		},
		"nothing is known of the service": {
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5000},
				RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Minute)}},
			tasks.ServiceLimits{MaxInstances: 5}, "",
		},
		"none is left for operators": {
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 37},
				RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Minute)}},
			tasks.ServiceLimits{MaxInstances: 5, Concurrency: 8}, "max-concurrent-dispatches to at most 36",
		},
		"two at once": {
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 2},
				RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Minute)}},
			tasks.ServiceLimits{MaxInstances: 2, Concurrency: 1}, "max-concurrent-dispatches to at most 1",
		},
		"one at once": {
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1},
				RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Minute)}},
			tasks.ServiceLimits{MaxInstances: 1, Concurrency: 1}, "",
		},
		"too many at once": {
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 41},
				RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Minute)}},
			tasks.ServiceLimits{MaxInstances: 5, Concurrency: 8},
			"up to 41 tasks at once, and the service takes 40 requests (5 instances of 8 each)",
		},
		"defaults": {&cloudtaskspb.Queue{}, tasks.ServiceLimits{}, "set max-backoff to 1m0s"},
		"few attempts": {&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 3,
			MaxBackoff: durationpb.New(time.Minute)}}, tasks.ServiceLimits{}, "after 3 attempts"},
		"limited age": {&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 3,
			MaxRetryDuration: durationpb.New(time.Hour), MaxBackoff: durationpb.New(time.Minute)}},
			tasks.ServiceLimits{},
			"older than 1h0m0s"},
		"short timeout": {&cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1,
			MaxBackoff: durationpb.New(time.Minute)}}, tasks.ServiceLimits{Timeout: 5 * time.Minute},
			"cuts requests off after 5m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := emulator.ForTest(t, nil).TasksClient(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			c.queue.Name = queueName
			if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
				Queue: c.queue}); err != nil {
				t.Fatal(err)
			}
			q, err := tasks.NewQueue(client, queueName, "http://worker/", &tasks.Options{InsecureSkipVerify: true})
			if err != nil {
				t.Fatal(err)
			}
			err = q.CheckSettings(t.Context(), c.service)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), queueName)) {
				t.Errorf("Check returned %v, want %q", err, c.want)
			}
			if _, err := client.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queueName}); err != nil {
				t.Fatal(err)
			}
			if err := q.CheckSettings(t.Context(), c.service); err == nil || !strings.Contains(err.Error(), "PAUSED") {
				t.Errorf("Check of the paused queue returned %v", err)
			}
		})
	}
}
