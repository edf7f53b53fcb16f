package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamesOfFiles checks that every Go file named in a page exists. The changelog may also name
// removed files.
func TestNamesOfFiles(t *testing.T) {
	files := make(map[string]bool)
	var pages []string
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		files[filepath.Base(path)] = true
		if strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil || len(pages) < 5 {
		t.Fatalf("%q, %v", pages, err)
	}
	name := regexp.MustCompile("`([a-z0-9_/.]+\\.go)`")
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(content), -1) {
			path := m[1]
			if _, err := os.Stat(filepath.Join("..", path)); err != nil &&
				(strings.Contains(path, "/") || !files[path]) {
				t.Errorf("%s names the file %s, which is gone", page, path)
			}
		}
	}
}
