package fault

import (
	"cmp"
	"errors"
	"strings"
	"time"
)

// ErrArguments says that an argument of a call is invalid. The text of the error that wraps it
// names the argument.
var ErrArguments = errors.New("bad arguments")

// A Refusal is the error of a task if the mapper's function has failed on a page, a group of
// entities that are committed together. The page is retried up to the limit in the job's Backoff.
// The text of a Refusal leaves out the function's error, which may quote an entity and must not be
// logged. Records contain the function's error, see [Text].
type Refusal struct {
	Summary string
	Cause   error         // the error of the function
	Final   bool          // whether further attempts would fail in the same way
	After   time.Duration // the least wait before the next attempt
	// Later says that the page is not at fault: a service has temporarily refused calls, or Own is
	// set.
	Later bool
	// Own says that the page had to wait too long because of the job's own rate limit. No service
	// has refused a call.
	Own bool
}

func (r Refusal) Error() string { return r.Summary }

// Fatal marks an error as final: every further attempt of the task would fail in the same way.
func Fatal(err error) error { return fatalError{err} }

type fatalError struct{ err error }

func (e fatalError) Error() string { return e.err.Error() }
func (e fatalError) Unwrap() error { return e.err }

// IsFatal reports whether an error was marked by Fatal.
func IsFatal(err error) bool {
	var r Refusal
	return errors.As(err, new(fatalError)) || errors.As(err, &r) && r.Final
}

// Permanent marks an error of the mapper's function as final: its author says that another attempt
// would fail in the same way.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

type permanentError struct{ err error }

func (e permanentError) Error() string { return e.err.Error() }
func (e permanentError) Unwrap() error { return e.err }

// IsPermanent reports whether an error was marked by Permanent.
func IsPermanent(err error) bool {
	var p permanentError
	return errors.As(err, &p)
}

// IsOnly reports whether err is the error other, or wraps it. If err joins several errors
// (errors.Join), it returns false.
func IsOnly(err, other error) bool {
	for err != nil && any(err) != any(other) { // errors.Is would also look into joined errors
		err = errors.Unwrap(err)
	}
	return err != nil
}

// Text returns the full text of an error for a record, cut to maxErrorText bytes. For a [Refusal],
// it includes the error of the mapper's function.
func Text(err error) string {
	text := cmp.Or(err.Error(), "an error without a text")
	var r Refusal
	if errors.As(err, &r) {
		text += ": " + r.Cause.Error()
	}
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

const maxErrorText = 1000 // the maximum length in bytes
