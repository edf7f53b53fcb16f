package docs_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// leastPromises is the minimum number of promises in robustness.md.
const leastPromises = 20

// TestPromises checks that every promise of robustness.md names existing tests. It runs the tests
// of a row only if -run has the row's number, as in TestPromises/^3$.
func TestPromises(t *testing.T) {
	page, err := os.ReadFile("robustness.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, problems := promiseRows(string(page))
	for _, p := range problems {
		t.Error(p)
	}
	run := strings.Contains(flag.Lookup("test.run").Value.String(), "TestPromises/")
	for i, named := range rows {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			for folder, tests := range named {
				checkPromise(t, folder, tests, run)
			}
		})
	}
}

// checkPromise checks that the named tests exist in a folder or below it. If run is set, it also
// runs them there.
func checkPromise(t *testing.T, folder string, tests []string, run bool) {
	t.Helper()
	missing := make(map[string]bool)
	for _, name := range tests {
		missing[name] = true
	}
	err := filepath.WalkDir(filepath.Join("..", folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		there, err := testsOf(path)
		there = slices.DeleteFunc(there, func(name string) bool { return !slices.Contains(tests, name) })
		if err != nil || len(there) == 0 {
			return err
		}
		for _, name := range there {
			delete(missing, name)
		}
		if run {
			pkg := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
			results := runNamed(t, pkg, there)
			for _, name := range there {
				if err := results.check(name); err != nil {
					t.Errorf("%s of ./%s: %v", name, pkg, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range missing {
		t.Errorf("no package in ./%s has %s", folder, name)
	}
}

// promiseRows reads the table of promises. For each promise it returns the names of its tests, by
// folder. It also returns the mistakes in the table.
func promiseRows(page string) (rows []map[string][]string, problems []error) {
	_, section, _ := strings.Cut(page, "\n## Promises\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| row |") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if want := fmt.Sprint(len(rows) + 1); len(cells) != 4 || strings.TrimSpace(cells[0]) != want {
			problems = append(problems, fmt.Errorf("it is not row %s with 4 cells: %s", want, line))
		}
		tests, err := seedTests(cells[len(cells)-1])
		if err != nil {
			problems = append(problems, fmt.Errorf("%w: %s", err, line))
		}
		rows = append(rows, tests)
	}
	if len(rows) < leastPromises {
		problems = append(problems, fmt.Errorf("%d promises, want %d or more", len(rows), leastPromises))
	}
	return rows, problems
}

// TestPromiseRows checks that promiseRows finds mistakes in a table.
func TestPromiseRows(t *testing.T) {
	table := "\n## Promises\n\n| row | promise | conditions | tests |\n|---|---|---|---|\n"
	for i := range leastPromises {
		table += fmt.Sprintf("| %d | a | b | `docs` `TestA` |\n", i+1)
	}
	for what, test := range map[string]struct{ page, want string }{
		"all rows":    {table, "[]"},
		"few rows":    {strings.Replace(table, "| 20 |", "20 |", 1), "19 promises"},
		"no table":    {"# Page\n", "0 promises"},
		"no test":     {strings.Replace(table, "`TestA`", "", 1), "no test"},
		"a wrong row": {strings.Replace(table, "| 7 |", "| 8 |", 1), "not row 7"},
	} {
		if _, problems := promiseRows(test.page); !strings.Contains(fmt.Sprint(problems), test.want) {
			t.Errorf("%s: %v, want %q", what, problems, test.want)
		}
	}
}
