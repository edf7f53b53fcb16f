package emulator

import (
	"context"
	"errors"
)

// TB is what this package needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// ForTest starts an emulator, which is closed at the end of the test. The test's clients must be
// closed first: register that with t.Cleanup after this call.
func ForTest(t TB, o *Options) *Emulator {
	t.Helper()
	e, err := Start(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(e.Close)
	return e
}

// GoogleForTest starts one of Google's emulators, and ends it with the test. If it is not on this
// machine, it skips the test.
func GoogleForTest(t TB, p Product) *Google {
	t.Helper()
	g, err := StartGoogle(context.Background(), p)
	switch {
	case errors.Is(err, ErrNotInstalled):
		t.Skipf("left out: %v", err)
	case err != nil:
		t.Fatalf("%v", err)
	}
	t.Cleanup(g.Close)
	return g
}
