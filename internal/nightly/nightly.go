// Package nightly marks tests that run only in .ci/nightly. They take long, and seldom find a fault
// that other tests do not find.
package nightly

import (
	"os"
	"testing"
)

// Env is an environment variable that .ci/nightly sets for the tests that it runs.
const Env = "SCATTERMAP_NIGHTLY"

// Is reports whether .ci/nightly runs this process.
func Is() bool { return os.Getenv(Env) != "" }

// Leave skips a test, unless .ci/nightly runs it.
func Leave(t *testing.T) {
	t.Helper()
	if !Is() {
		t.Skip("left out: .ci/nightly runs it, and " + Env + "=1 go test")
	}
}
