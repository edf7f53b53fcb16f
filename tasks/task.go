package tasks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A Task is a message that a queue delivers to a path below its URL: see [Queue.Enqueue].
type Task struct {
	// ID names the task in its queue: 1 to 500 letters, digits, '-' and '_'. The function [ID]
	// makes one.
	ID string

	// Path is joined to the queue's URL, and is where the task is delivered.
	Path string

	// Body is the message. The receiver gets it as [Delivery].Body. Cloud Tasks limits the whole
	// task to about 1 MiB.
	Body []byte

	// ScheduleTime is the earliest time of the delivery, by this process' clock. The zero time, or
	// a past one, means now.
	ScheduleTime time.Time

	// NewTrace asks the receiver to start a new trace: see [Delivery].NewTrace.
	NewTrace bool
}

// ID makes a task's ID from some parts: 40 hexadecimal digits. Equal parts have equal IDs, and
// different parts have different IDs. The ID is a hash, because IDs with a common prefix slow down
// all operations of a queue (documentation of Cloud Tasks, CreateTask).
func ID(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		var length [8]byte
		for i := range length {
			length[i] = byte(len(p) >> (8 * i))
		}
		h.Write(length[:])
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil)[:20])
}

// queueHeader is the header of a delivery that names the task's queue. Cloud Tasks' own header
// lacks the project and the location.
const queueHeader = "Scattermap-Queue"

// newTraceHeader is the header of a delivery which says that the receiver starts a new trace.
const newTraceHeader = "Scattermap-New-Trace"

// traces writes and reads the header traceparent, by which a delivery knows the span that has
// enqueued its task.
var traces propagation.TraceContext

// QueueOf returns the name of the queue in a delivery's header. The header is not verified. Use the
// name only to choose among the handlers of several queues, which verify the request themselves.
func QueueOf(r *http.Request) string { return r.Header.Get(queueHeader) }

// request returns the request that creates a task, with the span of ctx.
func (q *Queue) request(ctx context.Context, t Task, now time.Time) *cloudtaskspb.CreateTaskRequest {
	message := &cloudtaskspb.HttpRequest{
		Url:        q.url.JoinPath(t.Path).String(),
		HttpMethod: cloudtaskspb.HttpMethod_POST,
		Headers:    map[string]string{"Content-Type": "application/json", queueHeader: q.name},
		Body:       t.Body,
	}
	if trace.SpanContextFromContext(ctx).IsValid() {
		traces.Inject(ctx, propagation.MapCarrier(message.Headers))
		if t.NewTrace {
			message.Headers[newTraceHeader] = "true"
		}
	}
	if q.opts.ServiceAccount != "" {
		message.AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{OidcToken: &cloudtaskspb.OidcToken{
			ServiceAccountEmail: q.opts.ServiceAccount,
			Audience:            q.opts.Audience,
		}}
	}
	task := &cloudtaskspb.Task{
		Name:             q.name + "/tasks/" + t.ID,
		MessageType:      &cloudtaskspb.Task_HttpRequest{HttpRequest: message},
		DispatchDeadline: durationpb.New(q.opts.DispatchDeadline),
	}
	if t.ScheduleTime.After(now) {
		task.ScheduleTime = timestamppb.New(t.ScheduleTime.Add(time.Duration(q.ahead.Load())))
	}
	return &cloudtaskspb.CreateTaskRequest{Parent: q.name, Task: task}
}
