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

// Bounds of a request, which may be anybody's.
const (
	maxBody   = 1 << 20          // above the largest task that Cloud Tasks takes
	maxTaskID = 500              // bytes; no task of Cloud Tasks has a longer one
	bodyTime  = 10 * time.Second // in which the body has to come
)

// A Delivery is one attempt to deliver a task.
type Delivery struct {
	// TaskID is the task's ID, as the sender says, of at most 500 bytes. A header can be forged by
	// whom the handler lets in: it is for logs, and to tell deliveries apart.
	TaskID string

	// Queue is the name of the queue that the task was put into, as the sender says. It is
	// empty if an older build has put it there.
	Queue string

	// RetryCount is how many attempts were made before this one, as the sender
	// says.
	RetryCount int

	// ScheduleTime is when the task was to be delivered, as the sender says; zero if that is not
	// known.
	ScheduleTime time.Time

	// NewTrace says that the delivery is to begin a trace of its own, with a link to the span in
	// which the task was enqueued, and not to be part of that one's. The context of the handler has
	// that span.
	NewTrace bool

	// Body is the task's message.
	Body []byte
}

// errDropped marks an error after which the task must not come again.
type errDropped struct{ err error }

func (e errDropped) Error() string { return e.err.Error() }
func (e errDropped) Unwrap() error { return e.err }

// Drop marks an error that another delivery would only repeat: the task is
// answered with success, so that the queue forgets it, and the error is logged.
func Drop(err error) error { return errDropped{err} }

// errElsewhere marks an error that is only that of this process.
type errElsewhere struct{ err error }

func (e errElsewhere) Error() string { return e.err.Error() }
func (e errElsewhere) Unwrap() error { return e.err }

// Redeliver marks an error of a process that is about to end: the queue delivers the task again, to
// another process, and nobody needs to know. It is answered with 421, and logged at the level
// Debug.
func Redeliver(err error) error { return errElsewhere{err} }

// Errors of requests that are not deliveries of the queue.
var (
	errMethod   = errors.New("the method is not POST: Cloud Tasks sends nothing else")
	errTooLarge = fmt.Errorf("the body has more than %d bytes", maxBody)
	errTooLate  = fmt.Errorf("the body did not arrive within %v", bodyTime)
)

// statusOf is the table from errors to answers. Cloud Tasks retries whatever is
// not a success, and slows the whole queue down after a 429 or 503, which is
// why these are not among the answers.
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

// Handler returns the handler of the queue's deliveries. It calls run for each
// one that is authentic; an error has the queue deliver the task again later,
// unless it is marked by [Drop]. Answers say nothing of the error: the log does. A
// request that is not authentic is refused before its body is read, and the body of
// one that is has to come within 10 s.
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
				level = slog.LevelError // nothing will bring the task back
			case errors.As(err, new(errElsewhere)):
				level = slog.LevelDebug
				w.Header().Set("Connection", "close") // the next request finds another process
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
	_ = connection.SetReadDeadline(time.Now().Add(bodyTime)) // a test's has no connection
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
	_ = connection.SetReadDeadline(time.Time{}) // it would end the delivery
	name := r.Header.Get("X-CloudTasks-TaskName")
	retries, _ := strconv.Atoi(r.Header.Get("X-CloudTasks-TaskRetryCount")) // absent or bad: 0
	return Delivery{
		TaskID: name[:min(len(name), maxTaskID)], Queue: QueueOf(r), RetryCount: max(retries, 0), Body: body,
		ScheduleTime: dueOf(r.Header.Get("X-CloudTasks-TaskETA")), NewTrace: r.Header.Get(newTraceHeader) != "",
	}, nil
}

// dueOf returns the time that a header has, in seconds since 1970; zero if that is absent or bad.
func dueOf(header string) time.Time {
	seconds, err := strconv.ParseFloat(header, 64)
	if err != nil || !(seconds > 0 && seconds < 1e11) {
		return time.Time{}
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9))
}
