package fault

import (
	"cmp"
	"errors"
	"strings"
	"time"
)

// ErrArguments says that something can't be done with such arguments; the error names the one that
// is wrong.
var ErrArguments = errors.New("bad arguments")

// A Refusal is what a task says when the mapper's function has failed: the range
// is tried again, as often as the job's Backoff says. It does not say what the
// function's error says, which may be of the entity and has no place in a log:
// that is for the records, see [Text].
type Refusal struct {
	Summary string
	Cause   error // of the function
	Final   bool  // another attempt would only repeat it
	After   time.Duration
	Later   bool // the service that the function calls has refused it: the range is not to blame
}

func (r Refusal) Error() string { return r.Summary }

// Fatal marks an error that a task which fails with it would always fail with.
func Fatal(err error) error { return fatalError{err} }

type fatalError struct{ err error }

func (e fatalError) Error() string { return e.err.Error() }
func (e fatalError) Unwrap() error { return e.err }

// IsFatal reports whether a task that failed with an error would always.
func IsFatal(err error) bool {
	var r Refusal
	return errors.As(err, new(fatalError)) || errors.As(err, &r) && r.Final
}

// Permanent marks an error of a function that another attempt would only repeat.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

type permanentError struct{ err error }

func (e permanentError) Error() string { return e.err.Error() }
func (e permanentError) Unwrap() error { return e.err }

// IsPermanent reports whether another attempt would only repeat an error.
func IsPermanent(err error) bool {
	var p permanentError
	return errors.As(err, &p)
}

// IsOnly reports whether an error is another one, by itself or wrapped, and says nothing else: it
// is no join of several.
func IsOnly(err, other error) bool {
	for err != nil && any(err) != any(other) { // errors.Is looks into joins
		err = errors.Unwrap(err)
	}
	return err != nil
}

// Text returns the text of an error for a record, which says everything.
func Text(err error) string {
	text := cmp.Or(err.Error(), "an error without a text")
	var r Refusal
	if errors.As(err, &r) {
		text += ", the first with: " + r.Cause.Error()
	}
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

const maxErrorText = 1000 // bytes of an error in a record
