package emulator_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// noQueue is production's message for a queue that does not exist.
const noQueue = "Queue does not exist. If you just created the queue, wait at least a minute for the queue to " +
	"initialize."

// TestTaskMessages checks that errors have production's texts, letter for letter. Some clients read
// the texts, for example to tell a task that has ended from one that never existed.
func TestTaskMessages(t *testing.T) {
	const deleted = location + "/queues/deleted"
	const none = location + "/queues/none"
	synctest.Test(t, func(t *testing.T) {
		client := tasksIn(t, new(receiver), nil)
		ctx := t.Context()
		pause(t, client)
		mustCreate(t, client, task("waiting"))
		mustCreate(t, client, task("ended"))
		deleteTask := func(id string) error {
			return client.DeleteTask(ctx, &cloudtaskspb.DeleteTaskRequest{Name: queueName + "/tasks/" + id})
		}
		createQueue := func(q *cloudtaskspb.Queue) error {
			_, err := client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: q})
			return err
		}
		deleteQueue := func(name string) error {
			return client.DeleteQueue(ctx, &cloudtaskspb.DeleteQueueRequest{Name: name})
		}
		if err := deleteTask("ended"); err != nil {
			t.Fatal(err)
		}
		if err := createQueue(&cloudtaskspb.Queue{Name: deleted}); err != nil {
			t.Fatal(err)
		}
		if err := deleteQueue(deleted); err != nil {
			t.Fatal(err)
		}
		get := func(name string) error {
			_, err := client.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: name})
			return err
		}
		createNamed := func(name string) error {
			task := task("")
			task.Name = name
			return create(ctx, client, task)
		}
		createIn := func(queue string) error {
			_, err := client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task("")})
			return err
		}
		to := func(url string) error {
			task := task("")
			task.GetHttpRequest().Url = url
			return create(ctx, client, task)
		}
		limits := func(l *cloudtaskspb.RateLimits) error {
			return createQueue(&cloudtaskspb.Queue{Name: none, RateLimits: l})
		}
		retries := func(r *cloudtaskspb.RetryConfig) error {
			return createQueue(&cloudtaskspb.Queue{Name: none, RetryConfig: r})
		}
		late := task("")
		late.ScheduleTime = timestamppb.New(time.Now().Add(31 * 24 * time.Hour))
		slow := func(deadline time.Duration) error {
			task := task("")
			task.DispatchDeadline = durationpb.New(deadline)
			return create(ctx, client, task)
		}
		large := task("")
		large.GetHttpRequest().Body = make([]byte, 1<<20)
		_, run := client.RunTask(ctx, &cloudtaskspb.RunTaskRequest{Name: queueName + "/tasks/unknown"})
		for _, c := range []struct {
			what    string
			err     error
			code    codes.Code
			message string
		}{
			{"get a queue", queueErr(client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: none})),
				codes.NotFound, noQueue},
			{"get a deleted queue", queueErr(client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: deleted})),
				codes.NotFound, noQueue},
			{"pause", queueErr(client.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: none})),
				codes.NotFound, noQueue},
			{"resume", queueErr(client.ResumeQueue(ctx, &cloudtaskspb.ResumeQueueRequest{Name: none})),
				codes.NotFound, noQueue},
			{"purge", queueErr(client.PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: none})),
				codes.NotFound, noQueue},
			{"delete a queue", deleteQueue(none), codes.NotFound, "Requested entity was not found."},
			{"task in no queue", createIn(none), codes.NotFound, noQueue},
			{"task in a deleted queue", createIn(deleted), codes.NotFound, noQueue},
			{"queue again", createQueue(&cloudtaskspb.Queue{Name: queueName}), codes.AlreadyExists,
				"Queue already exists"},
			{"queue too soon", createQueue(&cloudtaskspb.Queue{Name: deleted}), codes.FailedPrecondition,
				"The queue cannot be created because a queue with this name existed too recently."},
			{"queue's name", createQueue(&cloudtaskspb.Queue{Name: "q"}), codes.InvalidArgument,
				`Queue name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>".`},
			{"queue's ID", createQueue(&cloudtaskspb.Queue{Name: location + "/queues/a_b"}), codes.InvalidArgument,
				`Queue ID "a_b" can contain only letters ([A-Za-z]), numbers ([0-9]), or hyphens (-). ` +
					"Queue ID must be between 1 and 100 characters."},
			{"rate below 0", limits(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: -1}), codes.InvalidArgument,
				"RateLimits.maxDispatchesPerSecond cannot be negative."},
			{"rate above 500", limits(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 501}), codes.InvalidArgument,
				"RateLimits.maxDispatchesPerSecond must be less than or equal to 500."},
			{"concurrency below 0", limits(&cloudtaskspb.RateLimits{MaxConcurrentDispatches: -1}),
				codes.InvalidArgument, "RateLimits.maxConcurrentDispatches cannot be negative."},
			{"concurrency above 5000", limits(&cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5001}),
				codes.InvalidArgument, "RateLimits.maxConcurrentDispatches must be less than or equal to 5000."},
			{"attempts", retries(&cloudtaskspb.RetryConfig{MaxAttempts: -2}), codes.InvalidArgument,
				"RetryConfig.maxAttempts must be greater or equal to -1."},
			{"doublings", retries(&cloudtaskspb.RetryConfig{MaxDoublings: -1}), codes.InvalidArgument,
				"RetryConfig.maxDoublings cannot be negative."},
			{"backoff below 0", retries(&cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(-time.Second)}),
				codes.InvalidArgument, "RetryConfig.minBackoff cannot be negative."},
			{"backoffs", retries(&cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(10 * time.Second),
				MaxBackoff: durationpb.New(5 * time.Second)}), codes.InvalidArgument,
				"RetryConfig.minBackoff must be less than or equal to RetryConfig.maxBackoff."},
			{"task again", create(ctx, client, task("waiting")), codes.AlreadyExists,
				"Requested entity already exists"},
			{"task too soon", create(ctx, client, task("ended")), codes.AlreadyExists,
				"The task cannot be created because a task with this name existed too recently."},
			{"run an unknown task", run, codes.NotFound, "Requested entity was not found."},
			{"queue of another location", createQueue(&cloudtaskspb.Queue{Name: "projects/p/locations/other/queues/q"}),
				codes.InvalidArgument, "projects/p/locations/other/queues/q must begin with projects/p/locations/l."},
			{"short deadline", slow(5 * time.Second), codes.InvalidArgument,
				"Task.dispatchDeadline must be between [15s, 30m]."},
			{"long deadline", slow(31 * time.Minute), codes.InvalidArgument,
				"Task.dispatchDeadline must be between [15s, 30m]."},
			{"large", create(ctx, client, large), codes.InvalidArgument, "Task size too large"},
			{"unknown task", get(queueName + "/tasks/unknown"), codes.NotFound, "Requested entity was not found."},
			{"delete an unknown task", deleteTask("unknown"), codes.NotFound, "Requested entity was not found."},
			{"task that has ended", get(queueName + "/tasks/ended"), codes.NotFound,
				"The task no longer exists, though a task with this name existed recently. " +
					"The task either successfully completed or was deleted."},
			{"task's name", createNamed("t"), codes.InvalidArgument, `Task name must be formatted: ` +
				`"projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>/tasks/<TASK_ID>".`},
			{"task's ID", createNamed(queueName + "/tasks/a b"), codes.InvalidArgument,
				`Task ID "a b" can contain only letters ([A-Za-z]), numbers ([0-9]), hyphens (-), or underscores ` +
					"(_). Task ID must between 1 and 500 characters."},
			{"task of another queue", createNamed(none + "/tasks/t"), codes.InvalidArgument,
				fmt.Sprintf("The queue name from request ('%s') must be the same as the queue name in the named "+
					"task ('%s').", queueName, none)},
			{"no URL", to(""), codes.InvalidArgument, "HttpRequest.url is required."},
			{"URL without a scheme", to("worker.example/run"), codes.InvalidArgument,
				"HttpTarget.url must start with 'http://' or 'https://'."},
			{"URL of FTP", to("ftp://worker.example/run"), codes.InvalidArgument,
				"HttpTarget.url must start with 'http://' or 'https://'."},
			{"URL with a bad escape", to("http://worker.example/%zz"), codes.OK, ""},
			{"too late", create(ctx, client, late), codes.InvalidArgument,
				"The Task.scheduleTime, 2000-01-31T16:00:00-08:00, is too far in the future. " +
					"Schedule time must be no more than 720h in the future."},
		} {
			if s := status.Convert(c.err); s.Code() != c.code || s.Message() != c.message {
				t.Errorf("%s: %v %q, want %v %q", c.what, s.Code(), s.Message(), c.code, c.message)
			}
		}
	})
}

// TestHelpOfNames checks that the errors for invalid names have production's link, which the
// libraries show.
func TestHelpOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const page = "https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues"
		client := tasksIn(t, new(receiver), nil)
		_, queue := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
			Queue: &cloudtaskspb.Queue{Name: "q"}})
		for url, err := range map[string]error{
			page + "#Queue.FIELDS.name":      queue,
			page + ".tasks#Task.FIELDS.name": create(t.Context(), client, task("a b")),
		} {
			var fault *apierror.APIError
			if !errors.As(err, &fault) || len(fault.Details().Help.GetLinks()) != 1 ||
				fault.Details().Help.Links[0].Url != url {
				t.Errorf("%v, want the link %s", err, url)
			}
		}
	})
}

// TestBrokenURL checks that a task whose URL cannot be parsed is created, as in production. Its
// deliveries fail.
func TestBrokenURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		client := tasksIn(t, r, nil)
		broken := task("broken")
		broken.GetHttpRequest().Url = "http://worker.example/%zz"
		mustCreate(t, client, broken)
		time.Sleep(time.Minute)
		got, err := client.GetTask(t.Context(), &cloudtaskspb.GetTaskRequest{Name: broken.Name})
		if err != nil || got.DispatchCount < 2 || got.ResponseCount != 0 || len(r.deliveries()) != 0 {
			t.Errorf("%v, %v, and %d deliveries; want attempts without a response", got, err, len(r.deliveries()))
		}
	})
}

func queueErr(_ *cloudtaskspb.Queue, err error) error { return err }
