package tasks

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A TaskInfo is what a queue says of one of its tasks.
type TaskInfo struct {
	URL          string    // that it is delivered to
	ScheduleTime time.Time // when it is, or was, to be delivered next
	Attempts     int       // that were begun
	Ended        bool      // so has the last one of them, with what follows
	Code         codes.Code
	Message      string // in the queue's words, such as "NOT_FOUND(5): HTTP status code 404"

	// TargetChanged says that the task is delivered to another URL, or with a token of another
	// account or for another audience, than if it were enqueued now: a task keeps what it was
	// created with.
	TargetChanged bool
}

// Exists reports whether a task waits in the queue or is being delivered. One that is delivered
// elsewhere (see [TaskInfo]), and was not accepted there, does not count: it may never be. The
// caller needs the permission cloudtasks.tasks.get.
func (q *Queue) Exists(ctx context.Context, t Task) (bool, error) {
	s, err := q.Lookup(ctx, t)
	return s != nil && (!s.TargetChanged || !s.Ended), err
}

// Lookup asks the queue about a task, or returns nil if the task is gone. The caller needs the
// permission cloudtasks.tasks.get.
func (q *Queue) Lookup(ctx context.Context, of Task) (*TaskInfo, error) {
	name := q.name + "/tasks/" + of.ID
	t, err := q.client.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: name})
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("tasks: get %s: %w", name, err)
	}
	last, made, now := t.GetLastAttempt(), t.GetHttpRequest(),
		q.request(ctx, of, time.Time{}).GetTask().GetHttpRequest()
	return &TaskInfo{
		URL: made.GetUrl(), ScheduleTime: t.GetScheduleTime().AsTime(), Attempts: int(t.GetDispatchCount()),
		// The status of an attempt that is under way means nothing, and it has no response time.
		// One that nobody has answered may have none either: then the task is due later than that
		// attempt.
		Ended: last != nil &&
			(last.ResponseTime != nil || t.GetScheduleTime().AsTime().After(last.GetDispatchTime().AsTime())),
		Code: codes.Code(last.GetResponseStatus().GetCode()), Message: last.GetResponseStatus().GetMessage(),
		TargetChanged: made.GetUrl() != now.Url || made.GetOidcToken() != nil &&
			!proto.Equal(made.GetOidcToken(), now.GetOidcToken()),
	}, nil
}

// Paused reports whether the queue delivers nothing because somebody has paused or disabled it. The
// caller needs the permission cloudtasks.queues.get.
func (q *Queue) Paused(ctx context.Context) (bool, error) {
	queue, err := q.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: q.name})
	if err != nil {
		return false, fmt.Errorf("tasks: get %s: %w", q.name, err)
	}
	return queue.State == cloudtaskspb.Queue_PAUSED || queue.State == cloudtaskspb.Queue_DISABLED, nil
}
