// Package docs_test checks that the pages of this folder, and the README, agree with the code.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamesOfTests checks that every test and benchmark named in a page exists.
func TestNamesOfTests(t *testing.T) {
	defined := make(map[string]bool)
	definition, name := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`),
		regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w*`)
	read := func(path string) string {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	var pages []string
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range definition.FindAllStringSubmatch(read(path), -1) {
				defined[m[1]] = true
			}
		}
		if strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil || len(pages) < 5 {
		t.Fatalf("%q, %v", pages, err)
	}
	for _, path := range pages {
		for _, n := range name.FindAllString(read(path), -1) {
			if !defined[n] {
				t.Errorf("%s names %s, which is no test", path, n)
			}
		}
	}
}
