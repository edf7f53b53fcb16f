// Package nightly leaves tests that take long, and seldom find what others do not, to .ci/nightly.
package nightly

import (
	"os"
	"testing"
)

// Env is set where these tests run.
const Env = "SCATTERMAP_NIGHTLY"

// Is reports whether they do.
func Is() bool { return os.Getenv(Env) != "" }

// Leave leaves a test out, unless it is night.
func Leave(t *testing.T) {
	t.Helper()
	if !Is() {
		t.Skip("left out: .ci/nightly runs it, and " + Env + "=1 go test")
	}
}
