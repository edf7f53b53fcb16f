package fault

import (
	"errors"
	"regexp"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A CommitRefusal is the error of a task if the database rejects the contents of its commit: the
// mapper's function has written something invalid.
type CommitRefusal struct{ err error }

func (r CommitRefusal) Error() string { return r.err.Error() }
func (r CommitRefusal) Unwrap() error { return r.err }

// Contended reports whether an error means that a transaction conflicted with others over the same
// entities, or was too slow.
func Contended(err error) bool {
	return errors.Is(err, datastore.ErrConcurrentTransaction) || status.Code(err) == codes.Aborted ||
		status.Code(err) == codes.InvalidArgument && !Refused(err) && !ofQueue(err)
}

// AsCommitRefusal turns the error of a transaction into a CommitRefusal if the database has
// rejected the transaction's contents. It returns other errors unchanged.
func AsCommitRefusal(err error) error {
	if status.Code(err) == codes.InvalidArgument && Refused(err) {
		return CommitRefusal{err}
	}
	return err
}

// Refused reports whether the function or the database has rejected the work. Then a retry of the
// same work does not help. All other errors are temporary, and so is every error of Cloud Tasks: it
// says nothing about the work.
func Refused(err error) bool {
	var r Refusal
	if errors.As(err, &r) {
		return true
	}
	if ofQueue(err) {
		return false
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

// ofQueue reports whether an error of package tasks says that a call of Cloud Tasks has failed.
func ofQueue(err error) bool {
	var of interface {
		error
		Queue() string
	}
	return errors.As(err, &of)
}

// transactionGone matches the texts of errors which mean that a transaction is over. Either it took
// too long, or its commit was sent twice because the first answer was lost. The code of these
// errors is InvalidArgument, as for bad requests, so only the text shows the difference.
//
// Production says "The referenced transaction has expired or is no longer valid". Google's classic
// emulator and the embedded one say "transaction has expired or is invalid". Google's Firestore
// emulator says "Transaction is invalid or closed".
var transactionGone = regexp.MustCompile(`(?i)transaction (has|is|was)\b.*\b(expired|invalid|closed|no longer valid)`)
