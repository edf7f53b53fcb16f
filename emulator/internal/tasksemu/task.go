package tasksemu

import (
	"cmp"
	"strings"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits and defaults of a task, from the documentation of Cloud Tasks.
const (
	maxTaskSize      = 1048569 // the maximum size of the stored form in bytes
	maxAhead         = 30 * 24 * time.Hour
	retention        = 31 * 24 * time.Hour // the age at which a task is deleted, delivered or not
	defaultDeadline  = 10 * time.Minute
	shortestDeadline = 15 * time.Second
	longestDeadline  = 30 * time.Minute
)

// pacific is the time zone of times in production's errors, in winter.
var pacific = time.FixedZone("", -8*60*60)

// A task is a task in a queue. Fields that change are guarded by the queue's lock.
type task struct {
	name    string // the full name of the task
	id      string
	request *pb.HttpRequest
	retries *pb.RetryConfig // the task's own retry settings; nil: the queue's settings apply
	created time.Time
	size    int

	deadline time.Duration // how long a delivery may take
	due      time.Time     // the schedule_time
	at       time.Time     // the time at which to dispatch the task: due, unless a fault has delayed it
	held     bool          // whether a fault has already delayed this delivery
	number   uint64        // the order in which tasks joined the waiting tasks
	place    int           // the index in the heap of waiting tasks; -1 if the task does not wait
	running  int           // number of deliveries under way

	dispatches int // number of attempts started
	responses  int // number of attempts that the handler has answered
	// executions is the number of attempts that were answered with a status below 500. The
	// documentation of the header TaskExecutionCount: "this number does not include failures due to
	// 5XX error codes".
	executions int
	first      time.Time
	last       attempt
	previous   outcome // outcome of the last attempt that has ended
}

// An attempt has the times and the status of a delivery, as GetTask shows them.
type attempt struct {
	due, begun, ended time.Time
	status            *status.Status
}

// newTask checks the task in a request, and fills in its defaults.
func newTask(p *pb.Task, name, id string, now time.Time) (*task, error) {
	if p.GetAppEngineHttpRequest() != nil {
		return nil, unimplemented("delivers to HTTP targets only: use Task.http_request in place of " +
			"Task.app_engine_http_request")
	}
	request := p.GetHttpRequest()
	if request == nil {
		return nil, invalid("Task.http_request is not set")
	}
	if err := checkRequest(request); err != nil {
		return nil, err
	}
	t := &task{
		name:     name,
		id:       id,
		request:  stored(request),
		created:  now,
		deadline: defaultDeadline,
		due:      now,
		place:    -1,
	}
	if p.RetryConfig != nil {
		var err error
		if t.retries, err = completeRetries(p.RetryConfig); err != nil {
			return nil, err
		}
	}
	if p.DispatchDeadline != nil {
		if err := p.DispatchDeadline.CheckValid(); err != nil {
			return nil, invalid("Task.dispatch_deadline: %v", err)
		}
		t.deadline = p.DispatchDeadline.AsDuration().Truncate(time.Millisecond)
		if t.deadline < shortestDeadline || t.deadline > longestDeadline {
			return nil, invalid("Task.dispatchDeadline must be between [15s, 30m].")
		}
	}
	if p.ScheduleTime != nil {
		if err := p.ScheduleTime.CheckValid(); err != nil {
			return nil, invalid("Task.schedule_time: %v", err)
		}
		if at := p.ScheduleTime.AsTime(); at.After(now) {
			t.due = at.Truncate(time.Microsecond)
		}
		if t.due.Sub(now) > maxAhead {
			return nil, invalid("The Task.scheduleTime, %s, is too far in the future. Schedule time must be no more "+
				"than 720h in the future.", p.ScheduleTime.AsTime().In(pacific).Format(time.RFC3339Nano))
		}
	}
	t.at = t.due
	form := t.proto(pb.Task_FULL)
	form.View = pb.Task_VIEW_UNSPECIFIED
	if t.size = proto.Size(form); t.size > maxTaskSize {
		return nil, invalid("Task size too large")
	}
	return t, nil
}

// userAgent is the value of the header User-Agent of each delivery.
const userAgent = "Google-Cloud-Tasks"

// stored returns a request as Cloud Tasks stores it and shows it to clients: with a method, and
// with the User-Agent of the delivery.
func stored(r *pb.HttpRequest) *pb.HttpRequest {
	headers := map[string]string{"User-Agent": userAgent}
	for k, v := range r.Headers {
		if !strings.EqualFold(k, "User-Agent") {
			headers[k] = v
		}
	}
	return &pb.HttpRequest{
		Url: r.Url, HttpMethod: cmp.Or(r.HttpMethod, pb.HttpMethod_POST), Headers: headers, Body: r.Body,
		AuthorizationHeader: r.AuthorizationHeader,
	}
}

func checkRequest(r *pb.HttpRequest) error {
	const field = "HttpRequest"
	if err := checkURL(field+".url", r.Url); err != nil {
		return err
	}
	if err := checkMethod(field+".http_method", r.HttpMethod); err != nil {
		return err
	}
	if err := checkHeaders(field+".headers", r.Headers); err != nil {
		return err
	}
	if len(r.Body) > 0 && !takesBody(r.HttpMethod) {
		return invalid("%s.body can't be set with http_method %v", field, r.HttpMethod)
	}
	if token := r.GetOidcToken(); token != nil && token.ServiceAccountEmail == "" {
		return invalid("%s.oidc_token needs service_account_email", field)
	}
	if token := r.GetOauthToken(); token != nil && token.ServiceAccountEmail == "" {
		return invalid("%s.oauth_token needs service_account_email", field)
	}
	return nil
}

// expired reports whether the task has reached the age at which it is deleted.
func (t *task) expired(now time.Time) bool { return now.Sub(t.created) >= retention }

// proto returns the task in the protocol's form. The caller has locked the queue.
func (t *task) proto(view pb.Task_View) *pb.Task {
	// The parts of a request never change, so they can be shared.
	request := &pb.HttpRequest{
		Url: t.request.Url, HttpMethod: t.request.HttpMethod, Headers: t.request.Headers,
		AuthorizationHeader: t.request.AuthorizationHeader,
	}
	if view == pb.Task_FULL {
		request.Body = t.request.Body
	} else {
		view = pb.Task_BASIC
	}
	p := &pb.Task{
		Name:             t.name,
		MessageType:      &pb.Task_HttpRequest{HttpRequest: request},
		ScheduleTime:     stamp(t.due),
		CreateTime:       timestamppb.New(t.created.Truncate(time.Second)),
		DispatchDeadline: durationpb.New(t.deadline),
		DispatchCount:    int32(t.dispatches),
		ResponseCount:    int32(t.responses),
		RetryConfig:      t.retries,
		View:             view,
	}
	if t.dispatches > 0 {
		p.FirstAttempt = &pb.Attempt{DispatchTime: stamp(t.first)}
		p.LastAttempt = &pb.Attempt{
			ScheduleTime: stamp(t.last.due), DispatchTime: stamp(t.last.begun),
			ResponseTime: stamp(t.last.ended), ResponseStatus: t.last.status,
		}
	}
	return p
}

// stamp converts a time into the protocol's form. It returns nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t.Truncate(time.Microsecond))
}
