package docs_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/nightly"
)

// A suite has the names of tests and programs that commands in the Makefile may use. Packages are
// named by folder, such as ./mapper.
type suite struct {
	tests    map[string][]string // by package: its tests, benchmarks and fuzz targets
	programs map[string]bool
}

func readSuite(t *testing.T) suite {
	t.Helper()
	s := suite{make(map[string][]string), make(map[string]bool)}
	definition := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`)
	program := regexp.MustCompile(`(?m)^package main$`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		source, err := os.ReadFile(path)
		folder := "." + filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), ".."))
		if program.Match(source) {
			s.programs[folder] = true
		}
		tests := s.tests[folder]
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range definition.FindAllStringSubmatch(string(source), -1) {
				tests = append(tests, m[1])
			}
		}
		s.tests[folder] = tests
		return err
	})
	if err != nil || len(s.tests) < 20 {
		t.Fatalf("%d packages, %v", len(s.tests), err)
	}
	return s
}

// in returns the folders of the packages that match a pattern such as ./mapper/....
func (s suite) in(pattern string) (folders []string) {
	above, all := strings.CutSuffix(pattern, "/...")
	for folder := range s.tests {
		if folder == pattern || all && (folder == above || strings.HasPrefix(folder, above+"/")) {
			folders = append(folders, folder)
		}
	}
	return folders
}

// has reports whether a test in one of the folders has a name that matches the pattern.
func (s suite) has(folders []string, pattern string) bool {
	name := regexp.MustCompile(pattern)
	return slices.ContainsFunc(folders, func(folder string) bool {
		return slices.ContainsFunc(s.tests[folder], name.MatchString)
	})
}

// lacks describes the names in a command that do not exist. It returns "" if all exist.
func (s suite) lacks(command []string) string {
	if i := slices.Index(command, "-args"); i >= 0 {
		command = command[:i]
	}
	if first := command[0]; strings.HasPrefix(first, ".ci/") {
		if info, err := os.Stat("../" + first); err != nil || info.Mode()&0o111 == 0 {
			return first + " is no command"
		}
		return ""
	} else if first != "go" {
		if slices.Contains([]string{"grep", "sed", "expand", "test", "gofmt", "exit", "{", "}"}, first) {
			return ""
		}
		return "nothing is known of the command " + first
	}
	var folders []string
	for i, word := range command {
		if !strings.HasPrefix(word, "./") {
			continue
		}
		in := s.in(word)
		if len(in) == 0 || i == 2 && command[1] == "run" && !s.programs[word] {
			return word + " is no package, or no program"
		}
		folders = append(folders, in...)
	}
	for i, word := range command[:len(command)-1] {
		pattern := command[i+1]
		if slices.Contains([]string{"-run", "-fuzz", "-bench"}, word) && pattern != "^$" && !s.has(folders, pattern) {
			return "no test of " + strings.Join(folders, ", ") + " matches " + pattern
		}
	}
	return ""
}

// wantFuzzed checks that the output of "make -n fuzz" runs every fuzz target. It returns the lines
// of the output that are commands.
func (s suite) wantFuzzed(t *testing.T, said string) (script string) {
	t.Helper()
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "go ") {
			script += line
		}
	}
	for folder, tests := range s.tests {
		for _, name := range tests {
			if strings.HasPrefix(name, "Fuzz") && !strings.Contains(script, " "+folder+" -run ^$ -fuzz ^"+name+"$ ") {
				t.Errorf("make fuzz leaves %s of %s out", name, folder)
			}
		}
	}
	return script
}

// runMake runs make in the repository's root.
func runMake(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "make", args...)
	c.Dir = ".."
	// without the settings of a make that may have started this test
	c.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestMakefile checks the commands of each target of the Makefile. The packages, tests and programs
// in them must exist, and every fuzz target must be run. The test also runs the targets that take
// only seconds.
func TestMakefile(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("left out: the targets of the Makefile, because make is not installed")
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	help, err := runMake(t, "help")
	if err != nil {
		t.Errorf("make help: %v: %s", err, help)
	}
	s := readSuite(t)
	targets := regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(string(makefile), -1)
	if len(targets) < 5 {
		t.Fatalf("the targets are %q", targets)
	}
	for _, m := range targets {
		target := m[1]
		if !strings.Contains("\n"+help, "\n"+target+" ") ||
			!strings.Contains(string(makefile), ".PHONY: "+target+"\n") {
			t.Errorf("make help does not say what %s is for, or it is not .PHONY", target)
		}
		script, err := runMake(t, "-n", target)
		if target == "fuzz" { // the commands of this target are in a loop
			script, err = runMake(t, target, "GO=echo go")
			script = s.wantFuzzed(t, script)
		}
		commands, problem := commandsOf(script)
		if err != nil || problem != nil || len(commands) == 0 {
			t.Errorf("make %s runs %q: %v, %v", target, script, err, problem)
		}
		for _, command := range commands {
			if lacks := s.lacks(command); lacks != "" {
				t.Errorf("make %s runs %q: %s", target, command, lacks)
			}
		}
	}
	if out, err := runMake(t, "fuzz", "FUZZ=FuzzNothing"); err == nil {
		t.Errorf("make fuzz passes without a target: %s", out)
	}
	if !nightly.Is() { // building all packages for it takes almost a minute
		t.Log("left out: .ci/nightly runs a target of make fuzz")
		return
	}
	if out, err := runMake(t, "fuzz", "FUZZ=FuzzParseTask", "FUZZTIME=1x"); err != nil ||
		!strings.Contains(out, "ok ") {
		t.Errorf("make fuzz: %v: %s", err, out)
	}
}

// TestLacks checks that suite.lacks finds names that do not exist.
func TestLacks(t *testing.T) {
	s := suite{map[string][]string{"./mapper": {"TestOne", "FuzzOne"}, "./cmd/tool": nil},
		map[string]bool{"./cmd/tool": true}}
	for command, lacks := range map[string]bool{
		"go test ./...": false, "go test -race ./mapper/... ./cmd/...": false, "go test ./mapper/none/...": true,
		"go test ./mapper -run TestO -args -seeds 1": false, "go test ./mapper -run TestTwo": true,
		"go test ./mapper -run ^$ -fuzz ^FuzzOne$": false, "go test ./cmd/tool -run ^$ -fuzz ^FuzzOne$": true,
		"go run ./cmd/tool": false, "go run ./mapper": true, "go run ./none": true,
		"go run example.com/tool@v1 run ./...": false, ".ci/run": false, ".ci/none": true, "unknown": true,
	} {
		if got := s.lacks(strings.Fields(command)); (got != "") != lacks {
			t.Errorf("%s: %q", command, got)
		}
	}
}

// TestNamesInCI checks .ci/run and .ci/nightly. Each test and package that .ci/run leaves out of
// its race step must exist. .ci/nightly must set the number of seeds of every simulation.
func TestNamesInCI(t *testing.T) {
	s := readSuite(t)
	read := func(name string) string {
		content, err := os.ReadFile("../.ci/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	for _, m := range regexp.MustCompile(`(?m)^(slow|pure)\+?='([^']*)'`).FindAllStringSubmatch(read("run"), -1) {
		for name := range strings.SplitSeq(strings.Trim(m[2], "|"), "|") {
			if m[1] == "slow" && !s.has(s.in("./..."), "^"+name+"$") {
				t.Errorf(".ci/run leaves out %s, which is no test", name)
			}
			if m[1] == "pure" && len(s.in("./"+name)) == 0 {
				t.Errorf(".ci/run leaves out %s, which is no package", name)
			}
		}
	}
	m := regexp.MustCompile(`(?s)for pkg in ([^;]*); do.*?-list '([^']*)'`).FindStringSubmatch(read("nightly"))
	if m == nil {
		t.Fatal(".ci/nightly lists no simulations")
	}
	simulates, folders := regexp.MustCompile(m[2]), strings.Fields(m[1])
	for name := range strings.SplitSeq(m[2], "|") {
		if !s.has(folders, name) {
			t.Errorf(".ci/nightly names %s, which matches no test of %q", name, folders)
		}
	}
	for folder, tests := range s.tests {
		for _, name := range tests {
			if simulates.MatchString(name) && !slices.Contains(folders, folder) {
				t.Errorf(".ci/nightly leaves out %s of %s", name, folder)
			}
		}
	}
}
