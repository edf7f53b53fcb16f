// Package nightly marks tests that run only in .ci/nightly, because they take long and seldom find
// faults that other tests do not.
package nightly

import (
	"os"
	"testing"
)

// Env is the environment variable that tells tests that .ci/nightly runs them.
const Env = "SCATTERMAP_NIGHTLY"

// Is reports whether .ci/nightly started this process.
func Is() bool { return os.Getenv(Env) != "" }

// Leave skips a test, unless .ci/nightly runs it.
func Leave(t *testing.T) {
	t.Helper()
	if !Is() {
		t.Skip("left out: .ci/nightly runs it, and " + Env + "=1 go test")
	}
}
