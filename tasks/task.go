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

// A Task is a message to the queue's target.
type Task struct {
	// ID names the task in its queue, see [ID]. Letters, digits, '-' and '_',
	// at most 500.
	ID string

	// Path is added to the queue's URL.
	Path string

	// Body is the message, at most about 1 MiB with everything else.
	Body []byte

	// ScheduleTime is when the task is delivered at the earliest. Defaults to at once.
	ScheduleTime time.Time

	// NewTrace has the delivery begin a trace of its own, see [Delivery.NewTrace].
	NewTrace bool
}

// ID returns a task ID made of parts: always the same for the same parts, and
// different for others. IDs start with a hash, because a common prefix slows
// down all of a queue's operations [Cloud Tasks documentation, CreateTask].
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

// queueHeader names the queue that a task was put into. Cloud Tasks' own header has no project and
// no location.
const queueHeader = "Scattermap-Queue"

// newTraceHeader says that a delivery begins a trace of its own.
const newTraceHeader = "Scattermap-New-Trace"

// traces carries the span in which a task is enqueued to its deliveries, in the header traceparent.
var traces propagation.TraceContext

// QueueOf returns the name of the queue that the task of a delivery was put into, as the sender
// says. It is for the choice among queues whose handlers verify the request themselves.
func QueueOf(r *http.Request) string { return r.Header.Get(queueHeader) }

// request builds the request that creates a task, in a span.
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
		task.ScheduleTime = timestamppb.New(t.ScheduleTime)
	}
	return &cloudtaskspb.CreateTaskRequest{Parent: q.name, Task: task}
}
