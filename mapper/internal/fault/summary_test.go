package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestSummary checks that a log summary has no text of a function's or a database's error.
func TestSummary(t *testing.T) {
	secret := errors.New("secret")
	for want, err := range map[string]error{
		"": nil,
		"the function failed on 2 entities": fmt.Errorf("range 1: %w",
			Refusal{Summary: "the function failed on 2 entities", Cause: secret}),
		"a mistake": fmt.Errorf("secret: %w", Fatal(errors.New("a mistake"))),
		"the finalizer failed": fmt.Errorf("secret: %w",
			Summarized("the finalizer failed", Permanent(secret))),
		"the database answers NotFound":      fmt.Errorf("secret: %w", status.Error(codes.NotFound, "secret")),
		"Cloud Tasks answers NotFound":       queueError{status.Error(codes.NotFound, "secret")},
		"an error that the job's record has": secret,
	} {
		if got := Summary(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	for want, err := range map[string]error{
		"panic":                   fmt.Errorf("secret: %w", Panicked("secret")),
		"permanent error":         Permanent(secret),
		"refused by the database": Permanent(AsCommitRefusal(status.Error(codes.InvalidArgument, "secret"))),
		"error Unavailable":       fmt.Errorf("secret: %w", status.Error(codes.Unavailable, "secret")),
		"*fs.PathError": fmt.Errorf("secret: %w",
			&fs.PathError{Op: "secret", Path: "secret", Err: secret}),
		"permanent *strconv.NumError": Permanent(fmt.Errorf("secret: %w",
			&strconv.NumError{Func: "secret", Num: "secret", Err: secret})),
		"error": RetryAfter(secret, 1),
	} {
		want += " (cause " + Digest(Cause(Text(err))) + ")"
		if got := Kind(err); got != want || strings.Contains(got, "secret") {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if err := Summarized("short", secret); err.Error() != "secret" || !errors.Is(err, secret) {
		t.Errorf("%v", err)
	}
}
