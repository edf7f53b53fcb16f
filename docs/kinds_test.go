package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestKindsOfRecords checks the page about personal data against the code. The page must list
// exactly the kinds of scattermap's records. The name of each kind must have the prefix by which an
// erasure finds records.
func TestKindsOfRecords(t *testing.T) {
	page, err := os.ReadFile("retention.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile("`(Scattermap[A-Za-z]+)`").FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = false
	}
	constant := regexp.MustCompile(`(?m)^\s*(?:const\s+)?\w*Kind\s*=\s*"(\w+)"`)
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.Contains(path, "examples") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range constant.FindAllStringSubmatch(string(source), -1) {
			kind := m[1]
			if !strings.HasPrefix(kind, "Scattermap") {
				continue // the kind is not one of scattermap's records, but for example one of the emulator's
			}
			if _, ok := listed[kind]; !ok {
				t.Errorf("%s has records of the kind %s, which retention.md does not name", path, kind)
			}
			listed[kind] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for kind, there := range listed {
		if !there {
			t.Errorf("retention.md names the kind %s, and the code has none", kind)
		}
	}
}
