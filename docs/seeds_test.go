package docs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/nightly"
)

// Minimum sizes of seeds.md: the number of sections, one for each document, and the number of rows
// in each.
const (
	leastSections = 5
	leastRows     = 10
)

// TestSeeds runs the tests that seeds.md names, and fails if one does not exist, is skipped or
// fails. If -run does not name TestSeeds, it only checks that they exist, because a run of all
// packages includes them.
func TestSeeds(t *testing.T) {
	page, err := os.ReadFile("seeds.md")
	if err != nil {
		t.Fatal(err)
	}
	named, problems := seedPage(string(page))
	for _, p := range problems {
		t.Error(p)
	}
	run := byName(flag.Lookup("test.run").Value.String()) || nightly.Is()
	if !run {
		t.Log("left out: the tests that seeds.md names run in their own packages; " +
			"`go test ./docs -run TestSeeds` and .ci/nightly run them by name")
	}
	for pkg, tests := range named {
		t.Run(pkg, func(t *testing.T) {
			there, err := testsOf(filepath.Join("..", pkg))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range tests {
				if !slices.Contains(there, name) {
					t.Errorf("./%s has no %s", pkg, name)
				}
			}
			if !run {
				return
			}
			results := runNamed(t, pkg, tests)
			for _, name := range tests {
				if err := results.check(name); err != nil {
					t.Errorf("%s of ./%s: %v", name, pkg, err)
				}
			}
		})
	}
}

// byName reports whether the value of the flag -run names TestSeeds.
func byName(run string) bool { return strings.Contains(run, "TestSeeds") }

// TestSeedRows checks that seedPage finds these mistakes: a row without a test, a test without a
// package, and a table with too few rows.
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
	const row = "| a | b | `docs` `TestA` |\n"
	section := func(rows int) string {
		return "\n## A document\n\n| the document | here | tests |\n|---|---|---|\n" + strings.Repeat(row, rows)
	}
	whole := "# A page\n" + strings.Repeat(section(leastRows), leastSections)
	for what, test := range map[string]struct {
		page string
		want string // a part of the mistake; empty: there is none
	}{
		"all rows":        {whole, ""},
		"no rows":         {strings.ReplaceAll(whole, row, ""), "0 rows"},
		"no tables":       {regexp.MustCompile(`(?m)^\|.*$`).ReplaceAllString(whole, ""), "0 rows"},
		"a section less":  {strings.Replace(whole, section(leastRows), "", 1), "4 sections"},
		"few rows in one": {whole + section(leastRows-1), "9 rows"},
		"two cells":       {whole + section(leastRows) + "| a | `docs` `TestA` |\n", "2 cells"},
		"no test":         {whole + section(leastRows) + "| a | b | c |\n", "no test"},
	} {
		named, problems := seedPage(test.page)
		said := fmt.Sprint(problems)
		if test.want == "" && len(problems) > 0 || !strings.Contains(said, test.want) {
			t.Errorf("%s: %s, want %q", what, said, test.want)
		}
		if test.want == "" && !slices.Equal(named["docs"], []string{"TestA"}) {
			t.Errorf("%s: %v", what, named)
		}
	}
}

// TestSeedResults checks which results of a test prove that the row's statement holds.
func TestSeedResults(t *testing.T) {
	for what, test := range map[string]struct {
		events string // the events of TestA: an action, and perhaps the name of a subtest
		shows  bool
	}{
		"it passed":                        {"pass", true},
		"it failed":                        {"fail", false},
		"it was skipped":                   {"skip", false},
		"it is missing":                    {"", false},
		"subtests passed":                  {"pass /a, pass /b, pass", true},
		"all subtests were skipped":        {"skip /a, skip /b, pass", false},
		"one subtest was skipped":          {"skip /a, pass /b, pass", true},
		"all subtests below were skipped":  {"skip /a/x, pass /a, pass", false},
		"one of them passed":               {"skip /a/x, pass /a/y, pass /a, pass", true},
		"a subtest failed":                 {"fail /a, pass /b, fail", false},
		"another test's subtest passed":    {"skip /a, pass B/x, pass B, pass", false},
		"another test's subtest was left":  {"skip B/x, pass B, pass", true},
		"it died before it was at its end": {"run", false},
	} {
		var out strings.Builder
		for event := range strings.SplitSeq(test.events, ", ") {
			action, sub, _ := strings.Cut(event, " ")
			fmt.Fprintf(&out, "{\"Action\":%q,\"Test\":%q}\n", action, "TestA"+sub)
		}
		r, err := readResults(strings.NewReader(out.String()))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.check("TestA"); (err == nil) != test.shows {
			t.Errorf("%s: %v, want that it shows its row: %v", what, err, test.shows)
		}
	}
}

// TestSeedNames checks how testsOf finds a package's tests, and which values of -run byName
// accepts.
func TestSeedNames(t *testing.T) {
	there, err := testsOf(".")
	if err != nil || !slices.Contains(there, "TestSeedNames") || slices.Contains(there, "TestA") {
		t.Errorf("%v, %v", there, err)
	}
	if _, err := testsOf("none"); err == nil {
		t.Error("a folder that is not there is no error")
	}
	for run, want := range map[string]bool{"": false, "TestSeed": false, "TestLinks": false, "TestSeeds": true,
		"^TestSeeds$": true, "TestLinks|TestSeeds/docs": true} {
		if byName(run) != want {
			t.Errorf("-run %q asks for them: %v, want %v", run, !want, want)
		}
	}
}

// TestScatterIsFree checks that entities with the property __scatter__, by which queries sample
// keys, cost no more operations than entities without it.
func TestScatterIsFree(t *testing.T) {
	var billed []emulator.Usage
	for _, oneIn := range []int{1, 65536} {
		e := emulator.ForTest(t, &emulator.Options{ScatterOneIn: oneIn})
		client, err := e.DatastoreClient(t.Context(), "docs")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var keys []*datastore.Key
		for i := range 100 {
			keys = append(keys, datastore.IDKey("K", int64(i+1), nil))
		}
		entities := make([]datastore.PropertyList, len(keys))
		before := e.Usage()
		_, err = client.PutMulti(t.Context(), keys, entities)
		if err == nil {
			err = client.GetMulti(t.Context(), keys, entities)
		}
		if err == nil {
			err = client.DeleteMulti(t.Context(), keys[1:])
		}
		if err != nil {
			t.Fatal(err)
		}
		billed = append(billed, e.Usage().Sub(before))
		n, err := client.Count(t.Context(), datastore.NewQuery("K").Order("__scatter__"))
		if want := map[bool]int{true: 1, false: 0}[oneIn == 1]; err != nil || n != want {
			t.Errorf("%d, %v, want %d of the entities to have __scatter__", n, err, want)
		}
	}
	if fmt.Sprint(billed[0]) != fmt.Sprint(billed[1]) || billed[0].Writes == 0 {
		t.Errorf("with __scatter__ %+v is billed, and without %+v", billed[0], billed[1])
	}
}

// seedPage returns the tests that seeds.md names, by package folder, and the mistakes in the page.
func seedPage(page string) (named map[string][]string, problems []error) {
	named = make(map[string][]string)
	sections := strings.Split(page, "\n## ")[1:]
	if len(sections) < leastSections {
		problems = append(problems, fmt.Errorf("%d sections, want %d or more", len(sections), leastSections))
	}
	for _, section := range sections {
		rows := 0
		for line := range strings.Lines(section) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") ||
				strings.HasPrefix(line, "| the document |") {
				continue
			}
			rows++
			cells := strings.Split(strings.Trim(line, "|"), "|")
			if len(cells) != 3 {
				problems = append(problems, fmt.Errorf("%d cells, want 3: %s", len(cells), line))
				continue
			}
			tests, err := seedTests(cells[2])
			if err != nil {
				problems = append(problems, fmt.Errorf("%w: %s", err, line))
			}
			for pkg, of := range tests {
				named[pkg] = append(named[pkg], of...)
			}
		}
		if rows < leastRows {
			problems = append(problems, fmt.Errorf("%d rows in the section %.40q, want %d or more", rows, section,
				leastRows))
		}
	}
	for pkg, tests := range named {
		slices.Sort(tests)
		named[pkg] = slices.Compact(tests)
	}
	return named, problems
}

// seedTests parses a cell of a table. The cell has a package's folder with its tests, or several of
// these.
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

// testsOf returns the names of a package's tests, except those that are not built on this system.
func testsOf(dir string) (names []string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		if built, err := build.Default.MatchFile(dir, f.Name()); err != nil || !built {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, f.Name()), nil, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names, nil
}

// results has the result of each test and subtest (pass, fail or skip) and its output, by name. The
// name "" has the output outside of tests.
type results struct{ of, said map[string]string }

// readResults parses the output of go test -json.
func readResults(out io.Reader) (results, error) {
	r := results{make(map[string]string), make(map[string]string)}
	for d := json.NewDecoder(out); ; {
		var e struct{ Action, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return r, err
		}
		switch e.Action {
		case "pass", "fail", "skip":
			if e.Test != "" {
				r.of[e.Test] = e.Action
			}
		case "output":
			r.said[e.Test] += e.Output
		}
	}
}

// check returns an error unless a test proves its row. The test must pass. If some of its subtests
// were skipped, for example because a program is not installed, at least one other must pass. A
// subtest that has subtests does not count, because it passes even if all of them are skipped.
func (r results) check(name string) error {
	if got := r.of[name]; got != "pass" {
		return fmt.Errorf("its result is %q, want it to pass", got)
	}
	passed, skipped := 0, 0
	for sub, result := range r.of {
		if !strings.HasPrefix(sub, name+"/") || r.hasSubtests(sub) {
			continue
		}
		switch result {
		case "pass":
			passed++
		case "skip":
			skipped++
		}
	}
	if skipped > 0 && passed == 0 {
		return fmt.Errorf("all of its subtests (%d) were skipped", skipped)
	}
	return nil
}

func (r results) hasSubtests(name string) bool {
	for other := range r.of {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

// runNamed runs the named tests of a package, and returns their results.
func runNamed(t *testing.T, pkg string, tests []string) results {
	t.Helper()
	var out, stderr bytes.Buffer
	cmd := exec.Command("go", "test", "-vet=off", "-json", "-run", "^("+strings.Join(tests, "|")+")$", "./"+pkg)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "..", &out, &stderr
	runErr := cmd.Run()
	r, err := readResults(&out)
	if err != nil {
		t.Fatalf("go test -json: %v\n%s", err, stderr.String())
	}
	if runErr != nil {
		for name, text := range r.said {
			if r.of[name] == "fail" || name == "" {
				t.Logf("%s %s:\n%.4000s", pkg, name, text)
			}
		}
		t.Errorf("go test ./%s: %v\n%.2000s", pkg, runErr, stderr.String())
	}
	return r
}
