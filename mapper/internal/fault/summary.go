package fault

import (
	"errors"
	"reflect"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Summarized attaches a summary to an error. The summary may be logged. The error's own text may
// not, because it may quote an entity.
func Summarized(summary string, err error) error { return summarizedError{summary, err} }

type summarizedError struct {
	summary string
	err     error
}

func (e summarizedError) Error() string { return e.err.Error() }
func (e summarizedError) Unwrap() error { return e.err }

// Summary describes an error for the log. It leaves out all texts that may come from a user's
// function, an entity or the database. Records have the full text.
func Summary(err error) string {
	var s summarizedError
	var r Refusal
	var f fatalError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &s):
		return s.summary
	case errors.As(err, &r):
		return r.Summary
	case errors.As(err, &f):
		return f.Error()
	case status.Code(err) != codes.Unknown && ofQueue(err):
		return "Cloud Tasks answers " + status.Code(err).String()
	case status.Code(err) != codes.Unknown:
		return "the database answers " + status.Code(err).String()
	}
	return "an error that the job's record has"
}

// Panicked returns an error for a panic of the function, with the given text.
func Panicked(text string) error { return panicError(text) }

type panicError string

func (e panicError) Error() string { return string(e) }
func (e panicError) Kind() string  { return "panic" }

// Kind describes an error of a user's function without data of the entity. It is the result of the
// error's own Kind method, or else the error's type, followed by the [Digest] of the [Cause]. The
// argument names has the names in the entity's key, which do not affect the digest.
func Kind(err error, names ...string) string {
	return kind(err) + " (cause " + Digest(Cause(Text(err), names...)) + ")"
}

// Read calls the methods of err that [Text] and [Kind] call. These methods are a user's code and
// may panic. So a caller recovers from Read once, and can call Text and Kind later without a panic.
func Read(err error) {
	_, _ = Text(err), kind(err)
}

func kind(err error) string {
	var k interface{ Kind() string }
	switch {
	case errors.As(err, &k):
		return k.Kind()
	case errors.As(err, new(CommitRefusal)):
		return "refused by the database"
	case status.Code(err) != codes.Unknown && status.Code(err) != codes.OK:
		return "error " + status.Code(err).String()
	case IsPermanent(err):
		return "permanent " + typeOf(err)
	}
	return typeOf(err)
}

// typeOf returns the Go type of an error. It looks through errors from errors.New, fmt.Errorf and
// this package to the error that they wrap. If there is no other type, it returns "error".
func typeOf(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		t := reflect.TypeOf(err)
		of := t
		if t.Kind() == reflect.Pointer {
			of = t.Elem()
		}
		if !slices.Contains([]string{"fmt", "errors", own.PkgPath()}, of.PkgPath()) {
			return t.String()
		}
	}
	return "error"
}

var own = reflect.TypeFor[summarizedError]()
