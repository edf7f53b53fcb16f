package tasksemu

import (
	"regexp"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Patterns of valid names, from the documentation of the protocol's messages.
var (
	locationName = regexp.MustCompile(`^projects/[a-zA-Z0-9:.-]+/locations/[a-zA-Z0-9-]+$`)
	queueName    = regexp.MustCompile(`^projects/[a-zA-Z0-9:.-]+/locations/[a-zA-Z0-9-]+/queues/([^/]+)$`)
	queueID      = regexp.MustCompile(`^[a-zA-Z0-9-]{1,100}$`)
	taskID       = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,500}$`)
)

// Errors have the text of production where it is known, because clients compare it. errNoQueue is
// the error of all methods but DeleteQueue.
var (
	errNoQueue = status.Error(codes.NotFound, "Queue does not exist. If you just created the queue, wait at least a "+
		"minute for the queue to initialize.")
	errNotFound = status.Error(codes.NotFound, "Requested entity was not found.")
	errTaskGone = status.Error(codes.NotFound, "The task no longer exists, though a task with this name existed "+
		"recently. The task either successfully completed or was deleted.")
	errQueueExists  = status.Error(codes.AlreadyExists, "Queue already exists")
	errQueueExisted = status.Error(codes.FailedPrecondition,
		"The queue cannot be created because a queue with this name existed too recently.")
	errTaskExists  = status.Error(codes.AlreadyExists, "Requested entity already exists")
	errTaskExisted = status.Error(codes.AlreadyExists,
		"The task cannot be created because a task with this name existed too recently.")
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// withHelp returns an error for an invalid name. Like the error of production, it has a link to the
// documentation of that name.
func withHelp(what, field, message string) error {
	s, err := status.New(codes.InvalidArgument, message).WithDetails(&errdetails.Help{Links: []*errdetails.Help_Link{{
		Description: "Definition of " + what,
		Url: "https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues" + field +
			".FIELDS.name",
	}}})
	if err != nil {
		return err
	}
	return s.Err()
}

func unimplemented(format string, args ...any) error {
	return status.Errorf(codes.Unimplemented, "the embedded Cloud Tasks "+format, args...)
}

func checkLocation(name string) error {
	if !locationName.MatchString(name) {
		return invalid("parent: %q is not a location name: projects/PROJECT/locations/LOCATION", name)
	}
	return nil
}

func checkQueueName(name string) error {
	switch parts := queueName.FindStringSubmatch(name); {
	case parts == nil:
		return withHelp("queue name", "#Queue", `Queue name must be formatted: `+
			`"projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>".`)
	case !queueID.MatchString(parts[1]):
		return invalid(`Queue ID "%s" can contain only letters ([A-Za-z]), numbers ([0-9]), or hyphens (-). `+
			`Queue ID must be between 1 and 100 characters.`, parts[1])
	}
	return nil
}

// locationOf returns the location in the name of a queue.
func locationOf(queue string) string {
	location, _, _ := strings.Cut(queue, "/queues/")
	return location
}

// splitTask splits the full name of a task into the queue's name and the task's ID.
func splitTask(name string) (queue, id string, err error) {
	queue, id, ok := strings.Cut(name, "/tasks/")
	if !ok || checkQueueName(queue) != nil {
		return "", "", invalid(`Task name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/` +
			`queues/<QUEUE_ID>/tasks/<TASK_ID>".`)
	}
	if !taskID.MatchString(id) {
		return "", "", withHelp("task ID", ".tasks#Task", `Task ID "`+id+`" can contain only letters ([A-Za-z]), `+
			`numbers ([0-9]), hyphens (-), or underscores (_). Task ID must between 1 and 500 characters.`)
	}
	return queue, id, nil
}
