package emulator_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackages checks that no package of the emulator outgrows a reader: none has
// more lines, without its tests, than maxLines.
func TestPackages(t *testing.T) {
	const maxLines = 2200
	lines := make(map[string]int)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		lines[filepath.Dir(path)] += bytes.Count(source, []byte("\n"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) < 10 {
		t.Errorf("only %d packages were found", len(lines))
	}
	for dir, n := range lines {
		if n > maxLines {
			t.Errorf("%s has %d lines, want at most %d", dir, n, maxLines)
		}
	}
}
