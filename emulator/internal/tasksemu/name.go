package tasksemu

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Patterns of valid names, from the documentation of the protocol's messages.
var (
	locationName = regexp.MustCompile(`^projects/[a-zA-Z0-9:.-]+/locations/[a-zA-Z0-9-]+$`)
	queueName    = regexp.MustCompile(`^projects/[a-zA-Z0-9:.-]+/locations/[a-zA-Z0-9-]+/queues/[a-zA-Z0-9-]{1,100}$`)
	taskID       = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,500}$`)
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
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
	if !queueName.MatchString(name) {
		return invalid("%q is not a queue name: projects/PROJECT/locations/LOCATION/queues/QUEUE, where QUEUE has 1 "+
			"to 100 of [A-Za-z0-9-]", name)
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
	if !ok || !queueName.MatchString(queue) || !taskID.MatchString(id) {
		return "", "", invalid("%q is not a task name: QUEUE/tasks/TASK, where TASK has 1 to 500 of [A-Za-z0-9_-]",
			name)
	}
	return queue, id, nil
}
