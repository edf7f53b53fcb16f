package tasksemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/status"
)

// A delivery is one attempt to deliver a task. It has copies of the task and of its queue's
// settings, from its start.
type delivery struct {
	task   *task
	copy   task
	config *pb.Queue
	begun  time.Time
	forced bool // whether a call of RunTask started the delivery
}

// An outcome is the result of a delivery. The zero value stands for "no delivery yet".
type outcome struct {
	httpStatus int       // the HTTP status of the answer; 0: there was no answer
	code       code.Code // if there was no answer, the reason
	retryAfter time.Duration
}

// begin counts a new delivery of a task, and returns it. The caller has locked the queue, and has
// removed the task from the waiting tasks.
func (q *queue) begin(t *task, now time.Time) *delivery {
	t.dispatches++
	t.running++
	t.held = false
	if t.first.IsZero() {
		t.first = now
	}
	t.last = attempt{due: t.due, begun: now}
	return &delivery{task: t, copy: *t, config: q.config, begun: now}
}

// deliver carries out a delivery. Then it removes the task, or schedules its retry.
func (q *queue) deliver(ctx context.Context, d *delivery) {
	result := q.server.send(ctx, q.era, d)

	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	t := d.task
	t.running--
	if !d.forced {
		q.running--
		if len(q.waiting) > 0 {
			q.signal()
		}
	}
	if result.httpStatus != 0 {
		t.responses++
		if result.httpStatus < 500 {
			t.executions++
		}
	}
	t.previous = result
	if t.dispatches == d.copy.dispatches { // no later attempt was started
		t.last.ended, t.last.status = now, result.status()
	}
	retries := q.config.RetryConfig
	if t.retries != nil {
		retries = t.retries
	}
	wait := min(result.retryAfter, retries.MaxBackoff.AsDuration())
	if overloads(result.httpStatus) {
		q.throttle = q.throttle.overloaded(now, wait)
	}
	if known, _ := q.tasks.Get(t.name); known != t { // the task was deleted meanwhile
		return
	}
	// The documentation of RunTask: "schedule_time will be reset to the time that RunTask was
	// called plus the retry delay".
	from := now
	if d.forced {
		from = d.begun
	}
	due := from.Add(backoff(retries, t.dispatches))
	if after := now.Add(wait); after.After(due) {
		due = after
	}
	switch {
	case result.success():
		q.remove(t, now)
	case t.running > 0: // another delivery of the task is under way, and decides at its end
	case exhausted(retries, t.dispatches, now.Sub(t.first)) || due.Sub(t.created) >= retention:
		q.remove(t, now)
	default:
		t.due = due
		q.wait(t)
	}
}

// unwait removes a task from the waiting tasks. The caller has locked the queue.
func (q *queue) unwait(t *task) {
	if t.place >= 0 {
		q.waiting.remove(t)
	}
}

// attempt sends the request of a delivery, and waits for the answer until the deadline.
func (s *Server) attempt(ctx context.Context, d *delivery) outcome {
	s.meter.Task(d.copy.size)
	ctx, cancel := context.WithTimeout(ctx, d.copy.deadline)
	defer cancel()
	req, err := s.httpRequest(ctx, d)
	if err != nil {
		return outcome{code: code.Code_INTERNAL}
	}
	resp, err := s.client.Do(req)
	if err == nil {
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return outcome{code: code.Code_DEADLINE_EXCEEDED}
	case err != nil:
		return outcome{code: code.Code_UNAVAILABLE}
	}
	return outcome{httpStatus: resp.StatusCode, retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
}

func (o outcome) success() bool { return o.httpStatus >= 200 && o.httpStatus < 300 }

// status returns the outcome in the form of Attempt.response_status.
func (o outcome) status() *status.Status {
	c, message := o.code, "no answer"
	if o.httpStatus != 0 {
		c, message = httpCode(o.httpStatus), fmt.Sprintf("HTTP status code %d", o.httpStatus)
	}
	return &status.Status{Code: int32(c), Message: fmt.Sprintf("%v(%d): %s", c, c, message)}
}

// response returns the HTTP status in the headers of the delivery that follows this outcome. It is
// 504 after a deadline that has passed, as in production, and 0 if there is none.
func (o outcome) response() int {
	if o.code == code.Code_DEADLINE_EXCEEDED {
		return http.StatusGatewayTimeout
	}
	return o.httpStatus
}

// httpCodes has the code for each HTTP status, from the table in google/rpc/code.proto.
var httpCodes = map[int]code.Code{
	http.StatusBadRequest:          code.Code_INVALID_ARGUMENT,
	http.StatusUnauthorized:        code.Code_UNAUTHENTICATED,
	http.StatusForbidden:           code.Code_PERMISSION_DENIED,
	http.StatusNotFound:            code.Code_NOT_FOUND,
	http.StatusConflict:            code.Code_ABORTED,
	http.StatusTooManyRequests:     code.Code_RESOURCE_EXHAUSTED,
	499:                            code.Code_CANCELLED, // an unofficial status: Client Closed Request
	http.StatusInternalServerError: code.Code_INTERNAL,
	http.StatusNotImplemented:      code.Code_UNIMPLEMENTED,
	http.StatusServiceUnavailable:  code.Code_UNAVAILABLE,
	http.StatusGatewayTimeout:      code.Code_DEADLINE_EXCEEDED,
}

func httpCode(httpStatus int) code.Code {
	if c, ok := httpCodes[httpStatus]; ok {
		return c
	}
	if httpStatus >= 200 && httpStatus < 300 {
		return code.Code_OK
	}
	return code.Code_UNKNOWN
}
