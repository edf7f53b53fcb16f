package emulator_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A refusal is the error that a test expects: its code, and a part of its message.
type refusal struct {
	code  codes.Code
	names string
}

func (r refusal) check(t *testing.T, what string, err error) {
	t.Helper()
	if status.Code(err) != r.code || !strings.Contains(status.Convert(err).Message(), r.names) {
		t.Errorf("%s: %v, want %v that names %s", what, err, r.code, r.names)
	}
}

func bad(names string) refusal { return refusal{codes.InvalidArgument, names} }

// TestTaskSize checks that the largest task has 1,048,569 bytes in the form in which it is stored.
// This form has the defaults.
func TestTaskSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		sized := func(body int) *cloudtaskspb.Task {
			return &cloudtaskspb.Task{Name: queueName + "/tasks/" + strconv.Itoa(body),
				MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
					Url: "https://worker.example/", Body: make([]byte, body)}}}
		}
		const most, nearly = 1048569, 1048000
		stored := sized(nearly)
		stored.GetHttpRequest().HttpMethod = cloudtaskspb.HttpMethod_POST
		stored.GetHttpRequest().Headers = map[string]string{"User-Agent": "Google-Cloud-Tasks"}
		stored.DispatchDeadline = durationpb.New(10 * time.Minute)
		stored.ScheduleTime = timestamppb.New(time.Now())
		stored.CreateTime = timestamppb.New(time.Now())
		fits := nearly + most - proto.Size(stored)
		if err := create(t.Context(), client, sized(fits)); err != nil {
			t.Errorf("%d bytes: %v", most, err)
		}
		bad("Task size too large").check(t, "one byte more", create(t.Context(), client, sized(fits+1)))
	})
}

func TestTasksRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		for name, c := range map[string]struct {
			change func(*cloudtaskspb.Task, *cloudtaskspb.HttpRequest)
			want   refusal
		}{
			"a bad name": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.Name = queueName + "/tasks/a b"
			}, bad("Task ID")},
			"a long name": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.Name = queueName + "/tasks/" + strings.Repeat("a", 501)
			}, bad("1 and 500")},
			"another queue": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.Name = location + "/queues/other/tasks/a"
			}, bad("queues/other")},
			"no message": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) { t.MessageType = nil },
				bad("Task.http_request")},
			"an empty message": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.MessageType = &cloudtaskspb.Task_HttpRequest{}
			}, bad("HttpRequest.url")},
			"App Engine": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.MessageType = &cloudtaskspb.Task_AppEngineHttpRequest{
					AppEngineHttpRequest: &cloudtaskspb.AppEngineHttpRequest{}}
			}, refusal{codes.Unimplemented, "app_engine_http_request"}},
			"no URL": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) { r.Url = "" },
				bad("HttpRequest.url")},
			"not HTTP": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) { r.Url = "ftp://x/" },
				bad("HttpTarget.url")},
			"a long URL": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.Url = "http://x/" + strings.Repeat("a", 2083)
			}, bad("2083")},
			"a long encoded URL": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.Url = "http://x/" + strings.Repeat("ä", 900)
			}, bad("2083")},
			"no such method": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.HttpMethod = 99
			}, bad("HttpRequest.http_method")},
			"body with GET": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.HttpMethod = cloudtaskspb.HttpMethod_GET
			}, bad("HttpRequest.body")},
			"too large": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.Body = make([]byte, 1<<20)
			}, bad("Task size too large")},
			"headers too large": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.Headers["X"] = strings.Repeat("x", 81<<10)
			}, bad("81920")},
			"a bad header": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.Headers["a b"] = ""
			}, bad("HttpRequest.headers")},
			"a bad value": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.Headers["a"] = "b\r\nc: d"
			}, bad("HttpRequest.headers")},
			"no account": {func(_ *cloudtaskspb.Task, r *cloudtaskspb.HttpRequest) {
				r.AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{OidcToken: &cloudtaskspb.OidcToken{}}
			}, bad("oidc_token")},
			"deadline too short": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.DispatchDeadline = durationpb.New(time.Second)
			}, bad("dispatchDeadline")},
			"deadline too long": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.DispatchDeadline = durationpb.New(time.Hour)
			}, bad("dispatchDeadline")},
			"invalid deadline": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.DispatchDeadline = &durationpb.Duration{Seconds: 60, Nanos: -1}
			}, bad("dispatch_deadline")},
			"invalid time": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.ScheduleTime = &timestamppb.Timestamp{Nanos: -1}
			}, bad("schedule_time")},
			"too far ahead": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.ScheduleTime = &timestamppb.Timestamp{Seconds: 253402300799}
			}, bad("scheduleTime")},
			"retries": {func(t *cloudtaskspb.Task, _ *cloudtaskspb.HttpRequest) {
				t.RetryConfig = &cloudtaskspb.RetryConfig{MaxAttempts: -2}
			}, bad("RetryConfig.maxAttempts")},
		} {
			task := task("")
			c.change(task, task.GetHttpRequest())
			c.want.check(t, name, create(t.Context(), client, task))
		}
		_, err := client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: location + "/queues/none",
			Task: task("")})
		refusal{codes.NotFound, "Queue does not exist"}.check(t, "no such queue", err)
		_, err = client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queueName})
		bad("task").check(t, "no task", err)
		_, err = client.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Task: task("")})
		bad("Queue name").check(t, "no parent", err)
		_, err = client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName, PageSize: -1}).Next()
		bad("page_size").check(t, "a negative page", err)
	})
}

func TestQueuesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		const id = location + "/queues/a"
		long := &durationpb.Duration{Seconds: 1 << 60}
		limits := func(l *cloudtaskspb.RateLimits) *cloudtaskspb.Queue {
			return &cloudtaskspb.Queue{Name: id, RateLimits: l}
		}
		retries := func(r *cloudtaskspb.RetryConfig) *cloudtaskspb.Queue {
			return &cloudtaskspb.Queue{Name: id, RetryConfig: r}
		}
		target := func(h *cloudtaskspb.HttpTarget) *cloudtaskspb.Queue {
			return &cloudtaskspb.Queue{Name: id, HttpTarget: h}
		}
		uri := func(u *cloudtaskspb.UriOverride) *cloudtaskspb.Queue {
			return target(&cloudtaskspb.HttpTarget{UriOverride: u})
		}
		for name, c := range map[string]struct {
			queue *cloudtaskspb.Queue
			want  string
		}{
			"none":       {nil, "Queue name"},
			"no name":    {&cloudtaskspb.Queue{}, "Queue name"},
			"a bad name": {&cloudtaskspb.Queue{Name: location + "/queues/a_b"}, "Queue ID"},
			"a long name": {&cloudtaskspb.Queue{Name: location + "/queues/" + strings.Repeat("a", 101)},
				"1 and 100"},
			"another location": {&cloudtaskspb.Queue{Name: "projects/p/locations/other/queues/a"}, location},
			"too fast": {limits(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 501}),
				"maxDispatchesPerSecond"},
			"negative": {limits(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: -1}),
				"maxDispatchesPerSecond"},
			"not a number": {limits(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: math.NaN()}),
				"maxDispatchesPerSecond"},
			"too many": {limits(&cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5001}),
				"maxConcurrentDispatches"},
			"reversed backoff": {retries(&cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(time.Hour),
				MaxBackoff: durationpb.New(time.Second)}), "maxBackoff"},
			"negative backoff":   {retries(&cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(-1)}), "minBackoff"},
			"invalid backoff":    {retries(&cloudtaskspb.RetryConfig{MaxBackoff: long}), "maxBackoff"},
			"invalid duration":   {retries(&cloudtaskspb.RetryConfig{MaxRetryDuration: long}), "maxRetryDuration"},
			"negative doublings": {retries(&cloudtaskspb.RetryConfig{MaxDoublings: -1}), "maxDoublings"},
			"sampling": {&cloudtaskspb.Queue{Name: id,
				StackdriverLoggingConfig: &cloudtaskspb.StackdriverLoggingConfig{SamplingRatio: 2}}, "sampling_ratio"},
			"no such method": {target(&cloudtaskspb.HttpTarget{HttpMethod: 99}), "http_method"},
			"an empty header": {
				target(&cloudtaskspb.HttpTarget{HeaderOverrides: []*cloudtaskspb.HttpTarget_HeaderOverride{{}}}),
				"header_overrides"},
			"no audience": {
				target(&cloudtaskspb.HttpTarget{AuthorizationHeader: &cloudtaskspb.HttpTarget_OidcToken{
					OidcToken: &cloudtaskspb.OidcToken{ServiceAccountEmail: "a"}}}), "audience"},
			"no scope": {
				target(&cloudtaskspb.HttpTarget{AuthorizationHeader: &cloudtaskspb.HttpTarget_OauthToken{
					OauthToken: &cloudtaskspb.OAuthToken{ServiceAccountEmail: "a"}}}), "scope"},
			"an empty host":      {uri(&cloudtaskspb.UriOverride{Host: new("")}), "host"},
			"a host with a path": {uri(&cloudtaskspb.UriOverride{Host: new("a/b")}), "host"},
			"a negative port":    {uri(&cloudtaskspb.UriOverride{Port: proto.Int64(-1)}), "port"},
		} {
			_, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
				Queue: c.queue})
			bad(c.want).check(t, name, err)
			if c.queue.GetName() == id {
				c.queue.Name = queueName
				_, err := client.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: c.queue})
				bad(c.want).check(t, name+", updated", err)
			}
		}
		_, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: "somewhere",
			Queue: &cloudtaskspb.Queue{Name: id}})
		bad("parent").check(t, "no location", err)
		_, err = client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
			Queue: &cloudtaskspb.Queue{Name: queueName}})
		refusal{codes.AlreadyExists, "Queue already exists"}.check(t, "one that is there", err)
		_, err = client.UpdateQueue(t.Context(), new(cloudtaskspb.UpdateQueueRequest))
		bad("queue").check(t, "an update of none", err)
		_, err = client.GetCmekConfig(t.Context(), &cloudtaskspb.GetCmekConfigRequest{Name: location + "/cmekConfig"})
		refusal{codes.Unimplemented, "GetCmekConfig"}.check(t, "keys", err)
	})
}
