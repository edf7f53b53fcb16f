package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/stranger"
)

// Limits of a request to the handler, because anybody may send one.
const (
	// the maximum size of a body in bytes, above the largest task that Cloud Tasks accepts
	maxBody   = 1 << 20
	maxTaskID = 500              // the maximum length of an ID in bytes, as in Cloud Tasks
	bodyTime  = 10 * time.Second // time within which the whole body must arrive
)

// A Delivery is one attempt to deliver a task, as [Queue.Handler] passes it on.
type Delivery struct {
	// TaskID is the task's ID, at most 500 bytes, from a header of the request. Use it only for
	// logs, and to distinguish deliveries: a caller with a valid token can forge it.
	TaskID string

	// Queue is the name of the queue that has the task, from a header. It is empty for tasks that
	// an older build has enqueued.
	Queue string

	// RetryCount is how many attempts were made before this one, from a header.
	RetryCount int

	// ScheduleTime is the time for which the task was scheduled, from a header, converted to this
	// process' clock. It is zero if it is not known.
	ScheduleTime time.Time

	// NewTrace says that [Task].NewTrace was set: start a new trace, with a link to the span that
	// enqueued the task. Otherwise continue that span's trace. The context has the span.
	NewTrace bool

	// Body is the task's message, from [Task].Body.
	Body []byte
}

// errDropped marks an error after which the queue must not deliver the task again: see [Drop].
type errDropped struct{ err error }

func (e errDropped) Error() string { return e.err.Error() }
func (e errDropped) Unwrap() error { return e.err }

// Drop marks an error that would occur again in every delivery. The handler answers with success,
// so that the queue forgets the task, and logs the error. Drop(nil) is nil.
func Drop(err error) error {
	if err == nil {
		return nil
	}
	return errDropped{err}
}

// errElsewhere marks an error after which the queue should deliver the task to another process: see
// [Redeliver].
type errElsewhere struct{ err error }

func (e errElsewhere) Error() string { return e.err.Error() }
func (e errElsewhere) Unwrap() error { return e.err }

// Redeliver marks an error of a process that is about to end: the queue should deliver the task to
// another process. The handler answers with 421, and logs the error at the level Debug only.
// Redeliver(nil) is nil.
func Redeliver(err error) error {
	if err == nil {
		return nil
	}
	return errElsewhere{err}
}

// Errors about requests that the handler refuses, because they are not deliveries of its queue.
var (
	errMethod   = errors.New("the method is not POST: Cloud Tasks sends nothing else")
	errTooLarge = fmt.Errorf("the body has more than %d bytes", maxBody)
	errTooLate  = fmt.Errorf("the body did not arrive within %v", bodyTime)
)

// statusOf returns the HTTP status with which the handler answers after an error. Cloud Tasks
// retries a task after every answer that is not a success. It also slows the whole queue down after
// 429 or 503, so these are not among the answers.
func statusOf(err error) int {
	var dropped errDropped
	switch {
	case err == nil, errors.As(err, &dropped):
		return http.StatusOK
	case errors.Is(err, errMethod):
		return http.StatusMethodNotAllowed
	case errors.Is(err, auth.ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, auth.ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errTooLate):
		return http.StatusRequestTimeout
	case errors.As(err, new(errElsewhere)):
		return http.StatusMisdirectedRequest
	default:
		return http.StatusInternalServerError
	}
}

// Handler returns the handler of the queue's deliveries. It calls run for each authentic delivery:
// one whose token has the account and audience of [Options], or any request with
// InsecureSkipVerify.
//
// If run returns nil, the queue forgets the task. If it returns an error, the queue delivers the
// task again later, unless the error is marked by [Drop]. The handler logs errors, and its answers
// do not contain them.
//
// It refuses other requests before it reads their bodies. The body of a delivery must arrive within
// 10 s.
func (q *Queue) Handler(log *slog.Logger, run func(context.Context, Delivery) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		delivery, err := q.receive(w, r)
		received := err == nil
		if received {
			err = run(traces.Extract(r.Context(), propagation.HeaderCarrier(r.Header)), delivery)
		}
		code := statusOf(err)
		if err != nil {
			level := slog.LevelWarn
			switch {
			case code == http.StatusOK:
				level = slog.LevelError // the task is not delivered again
			case errors.As(err, new(errElsewhere)):
				level = slog.LevelDebug
				w.Header().Set("Connection", "close") // so that the client's next request goes to another process
			}
			log.LogAttrs(r.Context(), level, "task not done",
				slog.String("task", stranger.Shown(r.Header.Get("X-CloudTasks-TaskName"))),
				slog.String("retries", stranger.Shown(r.Header.Get("X-CloudTasks-TaskRetryCount"))),
				slog.Int("answer", code),
				slog.String("error", stranger.Shorten(err.Error(), stranger.MaxError)))
		}
		if !received {
			stranger.Refuse(w, code)
			return
		}
		w.WriteHeader(code)
	})
}

func (q *Queue) receive(w http.ResponseWriter, r *http.Request) (Delivery, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return Delivery{}, errMethod
	}
	if q.verifier != nil {
		if _, err := q.verifier.Authenticate(r); err != nil {
			return Delivery{}, err
		}
	}
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTime)) // the error is ignored: a test's request has no connection
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	tooLarge := new(http.MaxBytesError)
	switch {
	case errors.As(err, &tooLarge):
		return Delivery{}, errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Delivery{}, errTooLate
	case err != nil:
		return Delivery{}, fmt.Errorf("read the body: %w", err)
	}
	_ = connection.SetReadDeadline(time.Time{}) // no deadline while the task runs
	name := r.Header.Get("X-CloudTasks-TaskName")
	retries, _ := strconv.Atoi(r.Header.Get("X-CloudTasks-TaskRetryCount")) // 0 if the header is absent or invalid
	return Delivery{
		TaskID: name[:min(len(name), maxTaskID)], Queue: QueueOf(r), RetryCount: max(retries, 0), Body: body,
		ScheduleTime: q.local(dueOf(r.Header.Get("X-CloudTasks-TaskETA"))),
		NewTrace:     r.Header.Get(newTraceHeader) != "",
	}, nil
}

// dueOf parses the header with the time for which a task was scheduled: seconds since 1970. It
// returns the zero time if the header is absent or invalid.
func dueOf(header string) time.Time {
	seconds, err := strconv.ParseFloat(header, 64)
	if err != nil || !(seconds > 0 && seconds < 1e11) {
		return time.Time{}
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9))
}
