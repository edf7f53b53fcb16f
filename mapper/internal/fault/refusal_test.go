package fault

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags are passed to all tests
)

var errBusy = errors.New("busy")

func TestMarkedErrors(t *testing.T) {
	for _, test := range []struct {
		err              error
		fatal, permanent bool
		after            time.Duration
	}{
		{errBusy, false, false, 0},
		{Fatal(errBusy), true, false, 0},
		{fmt.Errorf("range r: %w", Fatal(errBusy)), true, false, 0},
		{Permanent(errBusy), false, true, 0},
		{fmt.Errorf("entity e: %w", Permanent(errBusy)), false, true, 0},
		{RetryAfter(errBusy, time.Minute), false, false, time.Minute},
		{Permanent(RetryAfter(errBusy, time.Minute)), false, true, time.Minute},
		{RetryAfter(errBusy, 1000*time.Hour), false, false, 7 * 24 * time.Hour},
		{Refusal{Cause: errBusy, After: time.Hour}, false, false, time.Hour},
		{Refusal{Cause: errBusy, Final: true}, true, false, 0},
	} {
		if IsFatal(test.err) != test.fatal || IsPermanent(test.err) != test.permanent ||
			After(test.err) != test.after || !errors.Is(test.err, errBusy) && !Refused(test.err) {
			t.Errorf("%#v: %v, %v, %v", test.err, IsFatal(test.err), IsPermanent(test.err), After(test.err))
		}
	}
	if Permanent(nil) != nil || RetryAfter(nil, time.Hour) != nil {
		t.Error("no error is marked")
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Max: 1000 * time.Second}
	for failed, want := range map[int64]time.Duration{0: time.Second, 1: time.Second, 2: 4 * time.Second,
		4: 64 * time.Second, 5: 256 * time.Second, 6: 1000 * time.Second, 1 << 40: 1000 * time.Second} {
		if d := b.Delay(failed); d != want {
			t.Errorf("after %d attempts: %v, want %v", failed, d, want)
		}
	}
}

func TestText(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{errBusy, "busy"},
		{errors.New(""), "an error without a text"},
		{Refusal{Summary: "the function failed", Cause: errBusy}, "the function failed: busy"},
		{errors.New("\xff"), "\uFFFD"},
	} {
		if text := Text(test.err); text != test.want {
			t.Errorf("%q, want %q", text, test.want)
		}
	}
	if text := Text(errors.New(strings.Repeat("x", 1<<20))); len(text) > 2*maxErrorText {
		t.Errorf("%d bytes", len(text))
	}
}
