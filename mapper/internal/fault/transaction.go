package fault

import (
	"errors"
	"regexp"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A CommitRefusal is what a task says when the database does not want a page's
// commit: something that the function wrote is not allowed.
type CommitRefusal struct{ err error }

func (r CommitRefusal) Error() string { return r.err.Error() }
func (r CommitRefusal) Unwrap() error { return r.err }

// Contended reports whether a transaction met others that changed the same
// entities, or took longer than the database waits.
func Contended(err error) bool {
	return errors.Is(err, datastore.ErrConcurrentTransaction) || status.Code(err) == codes.Aborted ||
		status.Code(err) == codes.InvalidArgument && !Refused(err)
}

// AsCommitRefusal marks the error of a transaction if the database has refused
// its contents.
func AsCommitRefusal(err error) error {
	if status.Code(err) == codes.InvalidArgument && Refused(err) {
		return CommitRefusal{err}
	}
	return err
}

// Refused reports whether an error is a refusal, by the function or by a
// database that does not want what it was asked for. All others are of the kind
// that passes.
func Refused(err error) bool {
	var r Refusal
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
