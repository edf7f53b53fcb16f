package emulator_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestTasksRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		with := func(change func(*cloudtaskspb.Task)) *cloudtaskspb.Task {
			task := task("")
			change(task)
			return task
		}
		for name, c := range map[string]*cloudtaskspb.Task{
			"a bad name":         task("a b"),
			"a long name":        task(strings.Repeat("a", 501)),
			"another queue":      with(func(t *cloudtaskspb.Task) { t.Name = location + "/queues/other/tasks/a" }),
			"no URL":             with(func(t *cloudtaskspb.Task) { t.GetHttpRequest().Url = "" }),
			"not HTTP":           with(func(t *cloudtaskspb.Task) { t.GetHttpRequest().Url = "ftp://x/" }),
			"too large":          with(func(t *cloudtaskspb.Task) { t.GetHttpRequest().Body = make([]byte, 1<<20) }),
			"headers too large":  with(func(t *cloudtaskspb.Task) { t.GetHttpRequest().Headers["X"] = strings.Repeat("x", 81<<10) }),
			"body with GET":      with(func(t *cloudtaskspb.Task) { t.GetHttpRequest().HttpMethod = cloudtaskspb.HttpMethod_GET }),
			"deadline too short": with(func(t *cloudtaskspb.Task) { t.DispatchDeadline = durationpb.New(time.Second) }),
		} {
			if err := create(t.Context(), client, c); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v, want InvalidArgument", name, err)
			}
		}
		_, err := client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: location + "/queues/none", Task: task("")})
		if status.Code(err) != codes.NotFound {
			t.Errorf("no such queue: %v, want NotFound", err)
		}
		for name, q := range map[string]*cloudtaskspb.Queue{
			"a bad name":       {Name: location + "/queues/a_b"},
			"too fast":         {Name: location + "/queues/a", RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 501}},
			"too many":         {Name: location + "/queues/a", RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5001}},
			"reversed backoff": {Name: location + "/queues/a", RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(time.Hour), MaxBackoff: durationpb.New(time.Second)}},
		} {
			_, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: q})
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("queue with %s: %v, want InvalidArgument", name, err)
			}
		}
	})
}
