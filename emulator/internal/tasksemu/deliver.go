package tasksemu

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
)

// deliver makes one attempt, and decides what becomes of the task.
func (q *queue) deliver(ctx context.Context, t *task) {
	begun := time.Now()
	q.mu.Lock()
	if t.first.IsZero() {
		t.first = begun
	}
	attempt := *t
	q.mu.Unlock()

	code := q.server.attempt(ctx, q, &attempt)

	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.signal()
	if code != 0 {
		t.responses++
		t.previous = code
	}
	retries := q.config.RetryConfig
	switch {
	case q.tasks[t.name] != t: // deleted meanwhile
	case code >= 200 && code < 300 || exhausted(retries, t.dispatches, now.Sub(t.first)):
		q.remove(t, now)
	default:
		t.due = now.Add(backoff(retries, t.dispatches))
		q.wait(t)
	}
}

// attempt sends the task's request, and returns the status of the answer, or 0
// if there was none before the deadline.
func (s *Server) attempt(ctx context.Context, q *queue, t *task) int {
	s.meter.Task(t.size)
	ctx, cancel := context.WithTimeout(ctx, t.deadline)
	defer cancel()
	req, err := s.httpRequest(ctx, q, t)
	if err != nil {
		return 0
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)); err != nil {
		return 0
	}
	return resp.StatusCode
}

func (s *Server) httpRequest(ctx context.Context, q *queue, t *task) (*http.Request, error) {
	method := "POST"
	if m := t.request.HttpMethod; m != pb.HttpMethod_HTTP_METHOD_UNSPECIFIED {
		method = m.String()
	}
	req, err := http.NewRequestWithContext(ctx, method, t.request.Url, bytes.NewReader(t.request.Body))
	if err != nil {
		return nil, err
	}
	for k, v := range t.request.Headers {
		if k := http.CanonicalHeaderKey(k); k != "Host" && !strings.HasPrefix(k, "X-Cloudtasks-") {
			req.Header.Set(k, v)
		}
	}
	queueID := q.config.Name[strings.LastIndexByte(q.config.Name, '/')+1:]
	for k, v := range map[string]string{
		"User-Agent":                      "Google-Cloud-Tasks",
		"X-CloudTasks-QueueName":          queueID,
		"X-CloudTasks-TaskName":           t.id,
		"X-CloudTasks-TaskRetryCount":     strconv.Itoa(t.dispatches - 1),
		"X-CloudTasks-TaskExecutionCount": strconv.Itoa(t.responses),
		"X-CloudTasks-TaskETA":            fmt.Sprintf("%d.%06d", t.due.Unix(), t.due.Nanosecond()/1000),
	} {
		req.Header.Set(k, v)
	}
	if t.previous != 0 {
		req.Header.Set("X-CloudTasks-TaskPreviousResponse", strconv.Itoa(t.previous))
		req.Header.Set("X-CloudTasks-TaskRetryReason", "HTTP status "+strconv.Itoa(t.previous))
	}
	if token := t.request.GetOidcToken(); token != nil {
		audience := token.Audience
		if audience == "" {
			audience = t.request.Url
		}
		jwt, err := s.signer.sign(token.ServiceAccountEmail, audience, time.Now())
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+jwt)
	}
	return req, nil
}
