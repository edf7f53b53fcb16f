package emulator_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestNamesAreUsedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{work: time.Second}
		client := tasksIn(t, r, nil)
		var wg sync.WaitGroup
		var mu sync.Mutex
		outcomes := make(map[codes.Code]int)
		for range 200 {
			wg.Go(func() {
				err := create(t.Context(), client, task("same"))
				mu.Lock()
				outcomes[status.Code(err)]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if outcomes[codes.OK] != 1 || outcomes[codes.AlreadyExists] != 199 {
			t.Errorf("outcomes of 200 creates: %v", outcomes)
		}
		again := func() codes.Code { return status.Code(create(t.Context(), client, task("same"))) }
		time.Sleep(time.Hour)
		if got := again(); got != codes.AlreadyExists {
			t.Errorf("an hour after the task was done: %v, want AlreadyExists", got)
		}
		time.Sleep(24 * time.Hour)
		if got := again(); got != codes.OK {
			t.Errorf("a day after the task was done: %v, want OK", got)
		}
		time.Sleep(time.Hour)
		if n := len(r.times()); n != 2 {
			t.Errorf("%d deliveries, want 2", n)
		}
	})
}

func TestTaskManagement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		client := tasksIn(t, r, nil)
		var names []string
		for i := range 5 {
			task := task(fmt.Sprint("t", i))
			task.ScheduleTime = timestamppb.New(time.Now().Add(time.Hour))
			mustCreate(t, client, task)
			names = append(names, task.Name)
		}
		got, err := client.GetTask(t.Context(),
			&cloudtaskspb.GetTaskRequest{Name: names[3], ResponseView: cloudtaskspb.Task_FULL})
		if err != nil || string(got.GetHttpRequest().GetBody()) != `{"n":1}` {
			t.Errorf("GetTask: %v, %v", got, err)
		}
		if err := client.DeleteTask(t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: names[3]}); err != nil {
			t.Error(err)
		}
		if err := create(t.Context(), client, task("t3")); status.Code(err) != codes.AlreadyExists {
			t.Errorf("the name of a deleted task: %v, want AlreadyExists", err)
		}
		var listed []string
		it := client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName, PageSize: 2})
		for {
			task, err := it.Next()
			if errors.Is(err, iterator.Done) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			listed = append(listed, task.Name)
		}
		if diff := cmp.Diff(append(names[:3:3], names[4]), listed); diff != "" {
			t.Errorf("ListTasks (-want +got):\n%s", diff)
		}
		time.Sleep(2 * time.Hour)
		if n := len(r.times()); n != 4 {
			t.Errorf("%d delivered, want the 4 that were not deleted", n)
		}
	})
}

// TestRunTask runs a task of a paused queue before its time, with two calls at once.
func TestRunTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{work: time.Minute, answer: func(attempt int) int { return []int{500, 500, 200}[attempt-1] }}
		client := tasksIn(t, r, &cloudtaskspb.Queue{
			RateLimits:  &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1},
			RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(10 * time.Minute)},
		})
		pause(t, client)
		later := task("later")
		later.ScheduleTime = timestamppb.New(time.Now().Add(24 * time.Hour))
		mustCreate(t, client, later)
		run := func() (*cloudtaskspb.Task, error) {
			return client.RunTask(t.Context(), &cloudtaskspb.RunTaskRequest{Name: later.Name})
		}
		for i := range int32(2) {
			got, err := run()
			if err != nil || got.DispatchCount != i+1 {
				t.Fatalf("RunTask: %v, %v", got, err)
			}
		}
		time.Sleep(2 * time.Minute)
		// The retry is due after the time of RunTask plus the back-off, which two attempts have
		// doubled once.
		got, err := client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: later.Name})
		if due := got.GetScheduleTime().AsTime().Sub(r.begun); err != nil || due != 20*time.Minute || r.atOnce() != 2 {
			t.Errorf("after two failures at once (%d): due after %v, %v; want 20m", r.atOnce(), due, err)
		}
		if s := got.GetLastAttempt().GetResponseStatus(); s.GetCode() != int32(codes.Internal) ||
			s.GetMessage() != "INTERNAL(13): HTTP status code 500" {
			t.Errorf("last attempt %v", got.GetLastAttempt())
		}
		if _, err := run(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := run(); status.Code(err) != codes.NotFound {
			t.Errorf("RunTask of a task that is done: %v, want NotFound", err)
		}
		resume(t, client)
		time.Sleep(48 * time.Hour)
		if n := len(r.times()); n != 3 {
			t.Errorf("%d deliveries, want 3", n)
		}
	})
}

func TestTaskBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		client := tasksIn(t, r, nil)
		pause(t, client)
		batch := &cloudtaskspb.BatchCreateTasksRequest{Parent: queueName, RequestId: "once"}
		var names []string
		for i := range 100 {
			task := task(fmt.Sprintf("t%02d", i))
			names = append(names, task.Name)
			batch.Requests = append(batch.Requests, &cloudtaskspb.CreateTaskRequest{Parent: queueName, Task: task})
		}
		mustCreate(t, client, task("t07"))
		batch.Requests[3].Task.GetHttpRequest().Url = "nonsense"
		for range 2 { // the second request has the same ID, so it is a repetition
			op, err := client.BatchCreateTasks(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := op.Wait(t.Context())
			if err != nil || len(resp.Tasks) != 98 {
				t.Errorf("%d tasks, %v; want 98", len(resp.GetTasks()), err)
			}
			meta, err := op.Metadata()
			if err != nil || meta.State != cloudtaskspb.BatchCreateTasksMetadata_PARTIALLY_SUCCEEDED ||
				len(meta.FailedRequests) != 2 ||
				meta.FailedRequests[3].GetCode() != int32(codes.InvalidArgument) ||
				meta.FailedRequests[7].GetCode() != int32(codes.AlreadyExists) {
				t.Errorf("metadata %v, %v", meta, err)
			}
		}
		remove := func(names []string) error {
			op, err := client.BatchDeleteTasks(t.Context(), &cloudtaskspb.BatchDeleteTasksRequest{Parent: queueName,
				Names: names})
			if err != nil {
				return err
			}
			return op.Wait(t.Context())
		}
		if err := remove(names[:50]); err != nil {
			t.Error(err)
		}
		if err := remove(names[:50]); status.Code(err) != codes.Aborted {
			t.Errorf("deleted again: %v, want Aborted", err)
		}
		resume(t, client)
		time.Sleep(time.Hour)
		if n := len(r.times()); n != 50 { // of 99 tasks, 49 were deleted: t00 to t49 without t03, which never existed
			t.Errorf("%d deliveries, want 50", n)
		}

		batch.Requests = append(batch.Requests, batch.Requests[0])
		if _, err := client.BatchCreateTasks(t.Context(), batch); status.Code(err) != codes.InvalidArgument {
			t.Errorf("101 tasks: %v, want InvalidArgument", err)
		}
		for name, refused := range map[string][]string{
			"none": nil, "1,001": slices.Repeat(names[:1], 1001),
			"another queue's": {location + "/queues/other/tasks/a"}, "no name": {"x"},
		} {
			if err := remove(refused); status.Code(err) != codes.InvalidArgument {
				t.Errorf("deleting %s: %v, want InvalidArgument", name, err)
			}
		}
		if _, err := client.GetOperation(t.Context(),
			&longrunningpb.GetOperationRequest{Name: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("no such operation: %v, want NotFound", err)
		}
	})
}
