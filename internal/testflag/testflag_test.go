package testflag

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryPackageKnowsTheFlags checks that the tests of each package below emulator/ and mapper/
// import this one.
func TestEveryPackageKnowsTheFlags(t *testing.T) {
	knows := make(map[string]bool)
	look := func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testdata/") {
			return err
		}
		source, err := os.ReadFile(path)
		dir := filepath.Dir(path)
		knows[dir] = knows[dir] ||
			strings.Contains(string(source), `"github.com/scattermap/scattermap/internal/testflag"`)
		return err
	}
	if err := errors.Join(filepath.WalkDir("../../emulator", look),
		filepath.WalkDir("../../mapper", look)); err != nil || len(knows) < 7 {
		t.Fatalf("%v, %v", knows, err)
	}
	for dir, ok := range knows {
		if !ok {
			t.Errorf("the tests in %s do not import testflag: go test ./emulator/... ./mapper/... -args -seed 7 "+
				"fails there", dir)
		}
	}
}
