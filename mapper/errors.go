package mapper

import (
	"cmp"
	"errors"
	"regexp"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A refusal is what a task says when the mapper's function has failed: the range
// is tried again, but only [MaxAttempts] times in all. It does not say what the
// function's error says, which may be of the entity and has no place in a log:
// that is for the records, see explain.
type refusal struct {
	summary string
	cause   error // of the function
	final   bool  // another attempt would only repeat it
	after   time.Duration
}

func (r refusal) Error() string { return r.summary }

// A commitRefusal is what a task says when the database does not want a page's
// commit: something that the function wrote is not allowed.
type commitRefusal struct{ err error }

func (r commitRefusal) Error() string { return r.err.Error() }
func (r commitRefusal) Unwrap() error { return r.err }

// fatal marks an error that a task which fails with it would always fail with.
func fatal(err error) error { return fatalError{err} }

type fatalError struct{ err error }

func (e fatalError) Error() string { return e.err.Error() }
func (e fatalError) Unwrap() error { return e.err }

// isFatal reports whether a task that failed with an error would always.
func isFatal(err error) bool {
	var r refusal
	return errors.As(err, new(fatalError)) || errors.As(err, &r) && r.final
}

// permanent marks an error of a function that another attempt would only repeat.
func permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

type permanentError struct{ err error }

func (e permanentError) Error() string { return e.err.Error() }
func (e permanentError) Unwrap() error { return e.err }

func isPermanent(err error) bool {
	var p permanentError
	return errors.As(err, &p)
}

// refusalDelay returns how long a refusal wants its next attempt to wait.
func refusalDelay(err error) time.Duration {
	var r refusal
	errors.As(err, &r)
	return r.after
}

// contended reports whether a transaction met others that changed the same
// entities, or took longer than the database waits.
func contended(err error) bool {
	return errors.Is(err, datastore.ErrConcurrentTransaction) || status.Code(err) == codes.Aborted ||
		status.Code(err) == codes.InvalidArgument && !refused(err)
}

// asCommitRefusal marks the error of a transaction if the database has refused
// its contents.
func asCommitRefusal(err error) error {
	if status.Code(err) == codes.InvalidArgument && refused(err) {
		return commitRefusal{err}
	}
	return err
}

// explain returns the text of an error for a record, which says everything.
func explain(err error) string {
	text := cmp.Or(err.Error(), "an error without a text")
	var r refusal
	if errors.As(err, &r) {
		text += ", the first with: " + r.cause.Error()
	}
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

const maxErrorText = 1000 // bytes of an error in a record

// refused reports whether an error is a refusal, by the function or by a
// database that does not want what it was asked for. All others are of the kind
// that passes.
func refused(err error) bool {
	var r refusal
	if errors.As(err, &r) {
		return true
	}
	switch status.Code(err) {
	case codes.InvalidArgument:
		return !transactionGone.MatchString(err.Error())
	case codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return true
	}
	return false
}

// transactionGone matches the answers to a transaction that is over: because it
// took too long, or because its commit is repeated, after the first answer was
// lost. They come with the code of bad requests, and only their texts tell them
// apart: "The referenced transaction has expired or is no longer valid"
// (production), "transaction has expired or is invalid" (Google's classic
// emulator, and the embedded one), "Transaction is invalid or closed"
// (Google's Firestore emulator).
var transactionGone = regexp.MustCompile(`(?i)transaction (has|is|was)\b.*\b(expired|invalid|closed|no longer valid)`)
