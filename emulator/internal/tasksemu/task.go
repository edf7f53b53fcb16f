package tasksemu

import (
	"net/url"
	"regexp"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits of a task, as the documentation of Cloud Tasks has them.
const (
	maxTaskSize      = 1048569 // bytes of the stored form
	maxURL           = 2083
	maxHeaderSize    = 80 << 10
	maxAhead         = 30 * 24 * time.Hour
	defaultDeadline  = 10 * time.Minute
	shortestDeadline = 15 * time.Second
	longestDeadline  = 30 * time.Minute
)

var (
	queueName = regexp.MustCompile(`^projects/[a-zA-Z0-9:.-]+/locations/[a-zA-Z0-9-]+/queues/[a-zA-Z0-9-]{1,100}$`)
	taskID    = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,500}$`)
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// A task is one task of a queue. Its queue's lock guards what changes.
type task struct {
	name    string // in full
	id      string
	request *pb.HttpRequest
	created time.Time
	size    int

	deadline time.Duration // of one delivery
	due      time.Time
	place    int // in the heap of waiting tasks, or -1

	dispatches int // attempts begun
	responses  int // attempts that the handler answered
	first      time.Time
	previous   int // HTTP status of the last answer, or 0
}

// newTask checks a task, and completes it.
func newTask(p *pb.Task, name, id string, now time.Time) (*task, error) {
	request := p.GetHttpRequest()
	if request == nil {
		return nil, status.Error(codes.Unimplemented, "the embedded Cloud Tasks delivers HTTP tasks only")
	}
	target, err := url.Parse(request.Url)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" || len(request.Url) > maxURL {
		return nil, invalid("HttpRequest.url has to be an http or https URL of at most %d bytes, it is %q", maxURL, request.Url)
	}
	headers := 0
	for k, v := range request.Headers {
		headers += len(k) + len(v)
	}
	if headers > maxHeaderSize {
		return nil, invalid("HttpRequest.headers has %d bytes, above the maximum of %d", headers, maxHeaderSize)
	}
	switch request.HttpMethod {
	case pb.HttpMethod_HTTP_METHOD_UNSPECIFIED, pb.HttpMethod_POST, pb.HttpMethod_PUT, pb.HttpMethod_PATCH:
	default:
		if len(request.Body) > 0 {
			return nil, invalid("HttpRequest.body can't be set with method %v", request.HttpMethod)
		}
	}
	if request.GetOauthToken() != nil {
		return nil, status.Error(codes.Unimplemented, "the embedded Cloud Tasks does not make OAuth tokens")
	}
	size := proto.Size(p)
	if size > maxTaskSize {
		return nil, invalid("Task size too large: %d bytes, above the maximum of %d", size, maxTaskSize)
	}
	t := &task{
		name:     name,
		id:       id,
		request:  proto.CloneOf(request),
		created:  now,
		size:     size,
		deadline: defaultDeadline,
		due:      now,
		place:    -1,
	}
	if p.DispatchDeadline != nil {
		t.deadline = p.DispatchDeadline.AsDuration()
		if t.deadline < shortestDeadline || t.deadline > longestDeadline {
			return nil, invalid("Task.dispatch_deadline has to be in [%v, %v], it is %v", shortestDeadline, longestDeadline, t.deadline)
		}
	}
	if p.ScheduleTime != nil {
		if at := p.ScheduleTime.AsTime(); at.After(now) {
			t.due = at.Truncate(time.Microsecond)
		}
		if t.due.Sub(now) > maxAhead {
			return nil, invalid("Task.schedule_time is more than %d days ahead: %v", maxAhead/(24*time.Hour), t.due)
		}
	}
	return t, nil
}

// proto returns the task as the service shows it. The queue is locked.
func (t *task) proto(view pb.Task_View) *pb.Task {
	request := proto.CloneOf(t.request)
	if view != pb.Task_FULL {
		view = pb.Task_BASIC
		request.Body = nil
	}
	p := &pb.Task{
		Name:             t.name,
		MessageType:      &pb.Task_HttpRequest{HttpRequest: request},
		ScheduleTime:     timestamppb.New(t.due),
		CreateTime:       timestamppb.New(t.created.Truncate(time.Second)),
		DispatchDeadline: durationpb.New(t.deadline),
		DispatchCount:    int32(t.dispatches),
		ResponseCount:    int32(t.responses),
		View:             view,
	}
	if !t.first.IsZero() {
		p.FirstAttempt = &pb.Attempt{DispatchTime: timestamppb.New(t.first)}
	}
	return p
}
