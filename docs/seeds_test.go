package docs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A seedRow is a row of seeds.md: what a document says, and the tests that show that it holds here.
type seedRow struct {
	line  string
	tests map[string][]string // by the package's folder
}

// TestSeeds runs the tests that seeds.md names, and fails where one is missing, skipped or fails.
func TestSeeds(t *testing.T) {
	page, err := os.ReadFile("seeds.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := seedRows(t, string(page))
	named := make(map[string][]string)
	for _, r := range rows {
		for pkg, tests := range r.tests {
			named[pkg] = append(named[pkg], tests...)
		}
	}
	for pkg, tests := range named {
		slices.Sort(tests)
		tests = slices.Compact(tests)
		t.Run(pkg, func(t *testing.T) {
			results := runNamed(t, pkg, tests)
			for _, name := range tests {
				if got := results[name]; got != "pass" {
					t.Errorf("%s of ./%s: %q, want it to pass", name, pkg, got)
				}
			}
		})
	}
}

// TestSeedRows checks that a row without a test, and a test without a package, are seen.
func TestSeedRows(t *testing.T) {
	for _, cell := range []string{"", "none", "`TestA`", "`examples/feed`", "`examples/feed` `TestA` `examples/cron`"} {
		if _, err := seedTests(cell); err == nil {
			t.Errorf("the tests %q are no error", cell)
		}
	}
	got, err := seedTests("`examples/feed` `TestA`, `TestB`; `docs` `TestC`")
	if err != nil || len(got) != 2 || !slices.Equal(got["examples/feed"], []string{"TestA", "TestB"}) {
		t.Errorf("got %v, %v", got, err)
	}
}

// seedRows returns the rows of a page's tables.
func seedRows(t *testing.T, page string) []seedRow {
	t.Helper()
	var rows []seedRow
	for section := range strings.SplitSeq(page, "\n## ") {
		before := len(rows)
		for line := range strings.Lines(section) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| the document |") {
				continue
			}
			cells := strings.Split(strings.Trim(line, "|"), "|")
			if len(cells) != 3 {
				t.Errorf("%d cells, want 3: %s", len(cells), line)
				continue
			}
			tests, err := seedTests(cells[2])
			if err != nil {
				t.Errorf("%v: %s", err, line)
			}
			rows = append(rows, seedRow{line, tests})
		}
		if strings.Contains(section, "\n|---") && len(rows) == before {
			t.Errorf("no row in the section %.40q", section)
		}
	}
	return rows
}

// seedTests returns the tests of a cell: each package's folder, and then its tests.
func seedTests(cell string) (map[string][]string, error) {
	tests := make(map[string][]string)
	pkg := ""
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		switch {
		case !strings.HasPrefix(m[1], "Test"):
			if pkg != "" && tests[pkg] == nil {
				return nil, errors.New("no test of " + pkg)
			}
			pkg = m[1]
		case pkg == "":
			return nil, errors.New("no package before " + m[1])
		default:
			tests[pkg] = append(tests[pkg], m[1])
		}
	}
	if pkg == "" || tests[pkg] == nil {
		return nil, errors.New("no test")
	}
	return tests, nil
}

// runNamed runs some tests of a package, and returns their results: "pass", "fail" or "skip".
func runNamed(t *testing.T, pkg string, tests []string) map[string]string {
	t.Helper()
	var out, stderr bytes.Buffer
	cmd := exec.Command("go", "test", "-vet=off", "-json", "-run", "^("+strings.Join(tests, "|")+")$", "./"+pkg)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "..", &out, &stderr
	runErr := cmd.Run()
	results, said := make(map[string]string), make(map[string]string)
	for d := json.NewDecoder(&out); ; {
		var e struct{ Action, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go test -json: %v\n%s", err, stderr.String())
		}
		switch e.Action {
		case "pass", "fail", "skip":
			if e.Test != "" {
				results[e.Test] = e.Action
			}
		case "output":
			said[e.Test] += e.Output
		}
	}
	if runErr != nil {
		for name, text := range said {
			if results[name] == "fail" || name == "" {
				t.Logf("%s %s:\n%.4000s", pkg, name, text)
			}
		}
		t.Errorf("go test ./%s: %v\n%.2000s", pkg, runErr, stderr.String())
	}
	return results
}
