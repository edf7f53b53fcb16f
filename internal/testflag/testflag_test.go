package testflag

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryPackageKnowsTheFlags checks that the tests of each package below
// emulator/ import this one.
func TestEveryPackageKnowsTheFlags(t *testing.T) {
	knows := make(map[string]bool)
	err := filepath.WalkDir("../../emulator", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		dir := filepath.Dir(path)
		knows[dir] = knows[dir] || strings.Contains(string(source), `"github.com/scattermap/scattermap/internal/testflag"`)
		return err
	})
	if err != nil || len(knows) < 5 {
		t.Fatalf("%v, %v", knows, err)
	}
	for dir, ok := range knows {
		if !ok {
			t.Errorf("the tests in %s do not import testflag: go test ./emulator/... -args -sequences 20 fails there", dir)
		}
	}
}
