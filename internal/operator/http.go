package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/stranger"
	"github.com/scattermap/scattermap/mapper"
)

var errNobody = errors.New("Options.Allow is nil: nobody is allowed anything")

// Allowed returns a handler that calls allow to find the sender of a request. It passes allowed
// requests to next, with their sender in the context, and answers all others by refuse. If allow is
// nil, it refuses all requests.
func Allowed(
	allow auth.Func, log *slog.Logger,
	refuse func(w http.ResponseWriter, code int, text string), next http.Handler,
) http.Handler {
	if allow == nil {
		allow = func(*http.Request) (string, error) { return "", errNobody }
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := allow(r)
		if err == nil {
			next.ServeHTTP(w, r.WithContext(mapper.WithCaller(r.Context(), who)))
			return
		}
		log.LogAttrs(r.Context(), slog.LevelWarn, "request refused", slog.String("path", stranger.Shown(r.URL.Path)),
			slog.String("error", stranger.Shown(err.Error())))
		code, text := http.StatusForbidden, "this is not allowed"
		if errors.Is(err, auth.ErrUnauthenticated) {
			code, text = http.StatusUnauthorized, auth.ErrUnauthenticated.Error()
			if advice := auth.Advice(err); advice != "" {
				text += ": " + advice
			}
			w.Header().Set("WWW-Authenticate", "Bearer") // with a 401, RFC 9110 requires this header
		}
		w.Header().Set("Connection", "close") // so that the server need not read the request's body
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		refuse(w, code, text)
	})
}

// A BadRequest is an error that is the fault of the request itself. Its HTTP status code is 400.
type BadRequest string

func (e BadRequest) Error() string { return string(e) }

// Bad returns an error that counts as a [BadRequest]. Its arguments are as for fmt.Errorf.
func Bad(format string, args ...any) error { return bad{fmt.Errorf(format, args...)} }

type bad struct{ error }

func (b bad) Unwrap() error { return b.error }

// Code returns the HTTP status code of the answer to a request that failed with err.
func Code(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, mapper.ErrNoSuchJob):
		return http.StatusNotFound
	case errors.Is(err, mapper.ErrIDTaken), errors.Is(err, mapper.ErrWrongState),
		errors.Is(err, mapper.ErrWrongQueue), errors.Is(err, mapper.ErrNewer):
		return http.StatusConflict
	case errors.As(err, new(BadRequest)), errors.As(err, new(bad)), errors.Is(err, mapper.ErrUnknownMapper),
		errors.Is(err, mapper.ErrInvalidArgument):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// FailureLevel returns the level at which the log has the failure of a request: an error, unless the
// sender has gone and waits for no answer any more.
func FailureLevel(r *http.Request) slog.Level {
	if errors.Is(r.Context().Err(), context.Canceled) {
		return slog.LevelInfo
	}
	return slog.LevelError
}

// SafeCause returns the reason why a request failed, as a text for its sender. The text has no data
// of an entity, and no message of the database.
func SafeCause(err error) string {
	var of interface { // an error of package tasks about a call of Cloud Tasks
		error
		Queue() string
	}
	code, tasks := status.Code(err), errors.As(err, &of)
	switch {
	case errors.Is(err, context.Canceled), code == codes.Canceled:
		return "it was cancelled"
	case errors.Is(err, context.DeadlineExceeded), code == codes.DeadlineExceeded:
		return "the database or the queue did not answer in time"
	case code == codes.PermissionDenied || code == codes.Unauthenticated:
		text := fmt.Sprintf("the service's account may not do this (%v)", code)
		if tasks {
			text += " in queue " + of.Queue()
		}
		return text
	case code == codes.NotFound && tasks:
		return "there is no queue " + of.Queue()
	case code != codes.Unknown && tasks:
		return fmt.Sprintf("Cloud Tasks answered %v about the queue %s", code, of.Queue())
	case code != codes.Unknown:
		return fmt.Sprintf("the database answered %v", code)
	}
	return "its cause may quote data, and is not shown"
}
