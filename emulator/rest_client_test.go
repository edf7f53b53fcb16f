package emulator_test

import (
	"errors"
	"fmt"
	"testing"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// TestRESTClient uses Google's Go client without gRPC.
func TestRESTClient(t *testing.T) {
	r := newREST(t)
	client, err := cloudtasks.NewRESTClient(t.Context(), option.WithoutAuthentication(),
		option.WithEndpoint("http://"+r.emulator.TasksAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const queue = "projects/p/locations/l/queues/q"
	if _, err := client.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queue}); err != nil {
		t.Fatal(err)
	}
	changed, err := client.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{
		Queue: &cloudtaskspb.Queue{Name: queue, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 7}},
		UpdateMask: &fieldmaskpb.FieldMask{
			Paths: []string{"rate_limits.max_concurrent_dispatches", "stackdriver_logging_config"}},
	})
	if err != nil || changed.RateLimits.MaxConcurrentDispatches != 7 || changed.State != cloudtaskspb.Queue_PAUSED {
		t.Errorf("an update by a mask: %v, %v", changed, err)
	}
	task := func(name string) *cloudtaskspb.CreateTaskRequest {
		return &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: &cloudtaskspb.Task{Name: queue + "/tasks/" + name,
			MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{
				Url: r.target, Body: []byte(name)}}}}
	}
	if _, err := client.CreateTask(t.Context(), task("one")); err != nil {
		t.Fatal(err)
	}
	var failure *apierror.APIError
	if _, err := client.CreateTask(t.Context(), task("one")); !errors.As(err, &failure) || failure.HTTPCode() != 409 {
		t.Errorf("the same task again: %v", err)
	}
	batch, err := client.BatchCreateTasks(t.Context(), &cloudtaskspb.BatchCreateTasksRequest{Parent: queue,
		Requests: []*cloudtaskspb.CreateTaskRequest{task("two"), task("three")}})
	if err != nil {
		t.Fatal(err)
	}
	done, err := client.BatchCreateTasksOperation(batch.Name()).Poll(t.Context())
	if err != nil || len(done.Tasks) != 2 {
		t.Errorf("a batch: %v, %v", done, err)
	}
	var bodies string
	for all := client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue, PageSize: 2,
		ResponseView: cloudtaskspb.Task_FULL}); ; {
		task, err := all.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		bodies += string(task.GetHttpRequest().Body) + " "
	}
	if bodies != "one three two " {
		t.Errorf("bodies of all tasks: %q", bodies)
	}
}

// TestRESTParameters checks the forms of parameters that clients of other languages send.
func TestRESTParameters(t *testing.T) {
	r := newREST(t)
	const queue = restLocation + "/queues/q"
	r.want("POST", queue+":pause", "{}", 200)
	for _, body := range []string{"one", "two"} {
		r.want("POST", queue+"/tasks", r.task(body), 200)
	}
	for _, parameters := range []string{
		"responseView=FULL&pageSize=1", "response_view=2&page_size=1",
		"responseView=2&pageSize=1&$alt=json;enum-encoding=int",
	} {
		answer := r.want("GET", queue+"/tasks?"+parameters, "", 200)
		tasks := answer["tasks"].([]any)
		if len(tasks) != 1 || tasks[0].(map[string]any)["httpRequest"].(map[string]any)["body"] == nil {
			t.Errorf("%s: %v", parameters, answer)
		}
	}
	answer := r.want("GET", queue+"/tasks?$alt=json%3Benum-encoding%3Dint", "", 200)
	if task := answer["tasks"].([]any)[0].(map[string]any); task["view"] != 1.0 {
		t.Errorf("enums are numbers: %v", answer)
	}
	for i, mask := range []string{
		"updateMask=rateLimits.maxConcurrentDispatches", "updateMask=rate_limits.max_concurrent_dispatches",
		"update_mask=rate_limits.max_concurrent_dispatches,retry_config",
		"updateMask.paths=rate_limits.max_concurrent_dispatches&updateMask.paths=retry_config",
	} {
		body := fmt.Sprintf(`{"rateLimits":{"maxConcurrentDispatches":%d}}`, i+2)
		answer := r.want("PATCH", queue+"?"+mask, body, 200)
		limits := answer["rateLimits"].(map[string]any)
		if limits["maxConcurrentDispatches"] != float64(i+2) || limits["maxDispatchesPerSecond"] != 500.0 {
			t.Errorf("%s: %v", mask, answer)
		}
	}
	for _, path := range []string{
		queue + "/tasks?pageSize=many", queue + "/tasks?responseView=BODY", queue + "/tasks?page=2",
	} {
		if answer := r.want("GET", path, "", 400); answer["error"].(map[string]any)["status"] !=
			"INVALID_ARGUMENT" {
			t.Errorf("%s: %v", path, answer)
		}
	}
	r.want("PATCH", queue+"?updateMask=rateLimits.nothing", "{}", 400)
	if answer := r.want("POST", queue+":getIamPolicy", "{}", 501); answer["error"].(map[string]any)["status"] !=
		"UNIMPLEMENTED" {
		t.Errorf("policies: %v", answer)
	}
	if answer := r.want("GET", restLocation+"/queues/%ff", "", 400); answer["error"].(map[string]any)["status"] !=
		"INVALID_ARGUMENT" {
		t.Errorf("a path that is not UTF-8: %v", answer)
	}
}
