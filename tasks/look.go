package tasks

import (
	"context"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A TaskInfo is the state of a task, as Cloud Tasks reports it: see [Queue.Lookup].
type TaskInfo struct {
	URL          string     // the URL to which the task is delivered
	ScheduleTime time.Time  // time of the next attempt, or of the attempt under way, by this process' clock
	Attempts     int        // the number of attempts started so far
	Ended        bool       // whether the last attempt, not the task, has ended: with Code and Message
	Code         codes.Code // result of the last attempt; OK until one has failed
	Message      string     // message of the last attempt, such as "NOT_FOUND(5): HTTP status code 404"

	// TargetChanged says that the task was enqueued with another URL, account or audience than the
	// queue has now. The task still has the old ones.
	TargetChanged bool
}

// Exists reports whether a task waits in the queue or is being delivered. A task with an old target
// ([TaskInfo].TargetChanged) does not count if its last attempt has failed, because it may fail
// forever. The caller needs the permission cloudtasks.tasks.get.
func (q *Queue) Exists(ctx context.Context, t Task) (bool, error) {
	s, err := q.Lookup(ctx, t)
	return s != nil && (!s.TargetChanged || !s.Ended), err
}

// Lookup returns the state of the task with of.ID, or nil if the queue does not have it: it was
// done, or never enqueued. The caller needs the permission cloudtasks.tasks.get.
func (q *Queue) Lookup(ctx context.Context, of Task) (*TaskInfo, error) {
	name := q.name + "/tasks/" + of.ID
	t, err := q.client.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: name})
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		return nil, nil
	default:
		return nil, q.failed("get", name, err)
	}
	last, made, now := t.GetLastAttempt(), t.GetHttpRequest(),
		q.request(ctx, of, time.Time{}).GetTask().GetHttpRequest()
	return &TaskInfo{
		URL: made.GetUrl(), ScheduleTime: q.local(t.GetScheduleTime().AsTime()), Attempts: int(t.GetDispatchCount()),
		// An attempt that still runs has no response time, and its status means nothing. An attempt
		// that ended without an answer may lack a response time, too. In that case the task is
		// scheduled for a later time than that attempt.
		Ended: last != nil &&
			(last.ResponseTime != nil || t.GetScheduleTime().AsTime().After(last.GetDispatchTime().AsTime())),
		Code: codes.Code(last.GetResponseStatus().GetCode()), Message: last.GetResponseStatus().GetMessage(),
		TargetChanged: made.GetUrl() != now.Url || made.GetOidcToken() != nil &&
			!proto.Equal(made.GetOidcToken(), now.GetOidcToken()),
	}, nil
}

// Paused reports whether an operator has paused or disabled the queue, so that it delivers nothing.
// The caller needs the permission cloudtasks.queues.get.
func (q *Queue) Paused(ctx context.Context) (bool, error) {
	queue, err := q.client.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: q.name})
	if err != nil {
		return false, q.failed("get", q.name, err)
	}
	return queue.State == cloudtaskspb.Queue_PAUSED || queue.State == cloudtaskspb.Queue_DISABLED, nil
}
