package google

import (
	"context"
	"errors"

	"github.com/scattermap/scattermap/emulator"
)

// ForTest starts one of Google's emulators, and ends it with the test. If it is not on this
// machine, it skips the test.
func ForTest(t emulator.TB, p Product) *Emulator {
	t.Helper()
	g, err := Start(context.Background(), p)
	switch {
	case errors.Is(err, ErrNotInstalled):
		t.Skipf("left out: %v", err)
	case err != nil:
		t.Fatalf("%v", err)
	}
	t.Cleanup(g.Close)
	return g
}
