package fault

import (
	"errors"
	"fmt"
	"testing"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A queueError is like the errors of package tasks.
type queueError struct{ error }

func (queueError) Queue() string   { return "q" }
func (e queueError) Unwrap() error { return e.error }

// TestTransactionErrors checks how errors of transactions are classified, with the texts of
// production and of Google's emulators.
func TestTransactionErrors(t *testing.T) {
	for _, test := range []struct {
		err                          error
		contended, refused, contents bool
	}{
		{datastore.ErrConcurrentTransaction, true, false, false},
		{status.Error(codes.Aborted, "too much contention on these datastore entities"), true, false, false},
		{status.Error(codes.InvalidArgument, "The referenced transaction has expired or is no longer valid."), true,
			false, false},
		{status.Error(codes.InvalidArgument, "transaction has expired or is invalid"), true, false, false},
		{status.Error(codes.InvalidArgument, "Transaction is invalid or closed."), true, false, false},
		{status.Error(codes.InvalidArgument, "The value of property \"a\" is longer than 1048487 bytes."), false, true,
			true},
		{status.Error(codes.PermissionDenied, "Missing or insufficient permissions."), false, true, false},
		{status.Error(codes.FailedPrecondition, "no matching index found."), false, true, false},
		{status.Error(codes.Unavailable, "connection refused"), false, false, false},
		{status.Error(codes.DeadlineExceeded, "too late"), false, false, false},
		{queueError{status.Error(codes.PermissionDenied, "no")}, false, false, false},
		{fmt.Errorf("enqueue: %w", queueError{status.Error(codes.InvalidArgument, "no")}), false, false, false},
		{Refusal{Cause: queueError{errBusy}}, false, true, false},
		{Refusal{Cause: errBusy}, false, true, false},
		{errBusy, false, false, false},
	} {
		if Contended(test.err) != test.contended || Refused(test.err) != test.refused ||
			errors.As(AsCommitRefusal(test.err), new(CommitRefusal)) != test.contents {
			t.Errorf("%v: contended %v, refused %v, %v", test.err, Contended(test.err), Refused(test.err),
				AsCommitRefusal(test.err))
		}
	}
}
