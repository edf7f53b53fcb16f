package mutation

import (
	_ "embed"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/mutation/mutant"
	"github.com/scattermap/scattermap/internal/nightly"
)

const root = "../.."

// TestNames checks that each mutant has a unique name that does not depend on its place in the
// file. It also checks that the lists of mutants name only existing ones.
func TestNames(t *testing.T) {
	mutants, files, err := Generate(root, Targets)
	if err != nil {
		t.Fatal(err)
	}
	names, targets := make(map[string]bool), make(map[string]int)
	for i, m := range mutants {
		if m.ID != i || names[m.Name()] || strings.ContainsAny(m.Name(), "\t\n") {
			t.Errorf("mutant %d has the number %d and the name %q", i, m.ID, m.Name())
		}
		names[m.Name()] = true
		targets[m.Target]++
	}
	for _, target := range Targets {
		if targets[target.Name] == 0 {
			t.Errorf("%s has no mutants", target.Name)
		}
	}
	for name, source := range files {
		if _, err := parser.ParseFile(token.NewFileSet(), name, source, 0); err != nil {
			t.Error(err)
		}
	}
	reasons, err := Survivors()
	if err != nil {
		t.Fatal(err)
	}
	for name := range reasons {
		if !names[name] {
			t.Errorf("survivors.txt: there is no mutant %q any more", name)
		}
	}
	for line := range strings.Lines(sample) {
		name, _, fence := strings.Cut(line, "\t")
		if fence && !strings.HasPrefix(line, "#") && !names[name] {
			t.Errorf("sample.txt: there is no mutant %q any more: name the one that is there instead", name)
		}
	}
}

//go:embed testdata/example.txt
var example string

// TestGenerate checks which mutants are made of an example function.
func TestGenerate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source, want, _ := strings.Cut(example, "\n-- mutants --\n")
	write("go.mod", "module "+module+"\n\ngo 1.26\n")
	write("some/some.go", source)
	mutants, files, err := Generate(dir, []Target{{Name: "some", Dir: "some"}})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, m := range mutants {
		got.WriteString(m.Name() + "\n")
	}
	if got.String() != want {
		t.Errorf("the mutants are\n%s\nwant\n%s", got.String(), want)
	}
	mutated := string(files[filepath.Join(dir, "some/some.go")])
	if lines := strings.Count(mutated, "\n"); lines != strings.Count(source, "\n") {
		t.Errorf("lines have moved:\n%s", mutated)
	}
}

//go:embed sample.txt
var sample string

// seeds is the largest number of seeds with which a test tries to find a mutant of the sample. Most
// mutants are found with the first seed.
const seeds = 10

// seeded returns the test with a flag for its seed.
func (t Test) seeded(seed int) *Test {
	t.Args = append(slices.Clip(t.Args), "-seed", strconv.Itoa(seed))
	return &t
}

// TestMutations turns on the mutants in sample.txt, one at a time. Each of them removes a condition
// that protects data. TestMutations checks that the listed test fails with the mutant, and passes
// without a mutant.
func TestMutations(t *testing.T) {
	nightly.Leave(t)
	var suites []string
	for _, s := range Suites {
		if strings.Contains(sample, "\t"+path.Base(s)+".") {
			suites = append(suites, s)
		}
	}
	lab, err := Build(t.Context(), root, t.TempDir(), Targets, suites, 2)
	if err != nil {
		t.Fatal(err)
	}
	mutants := make(map[string]Mutant)
	for _, m := range lab.Mutants {
		mutants[m.Name()] = m
	}
	used := make(map[string]*Test)
	for line := range strings.Lines(sample) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, by, _ := strings.Cut(line, "\t")
		m, ok := mutants[name]
		if !ok {
			t.Errorf("sample.txt: there is no mutant %q any more: name the one that is there instead", name)
			continue
		}
		test := lab.test(by)
		if test == nil {
			t.Errorf("sample.txt: no package has the test %q, which is to find %q", by, name)
			continue
		}
		if used[by] == nil {
			used[by] = test
		}
		test = used[by]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds { // with other seeds, because goroutines run in a different order each time
				r, err := lab.confirmed(t.Context(), []*Test{test.seeded(1 + seed)}, time.Minute, m)
				if err != nil {
					t.Fatal(err)
				}
				if r.failed {
					return
				}
			}
			t.Errorf("%s does not find it on %d seeds", by, seeds)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		for _, test := range used {
			lim := limits{cpu: 5 * time.Minute, wall: 10 * time.Minute}
			if r := run(t.Context(), []*Test{test.seeded(1)}, lim, mutant.OnEnv+"="); r.err != nil {
				t.Errorf("%s fails with no mutant on: %v\n%.2000s", test, r.err, r.out)
			}
		}
	})
}

// TestSwitch checks that the functions of package mutant behave like the original code while no
// mutant is on.
func TestSwitch(t *testing.T) {
	for _, c := range []bool{false, true} {
		if mutant.Not(1, c) != c || mutant.Never(1, c) != c || mutant.Always(1, c) != c {
			t.Errorf("of %v: another condition", c)
		}
	}
	for a := range 3 {
		for b := range 3 {
			s, r := strconv.Itoa(a), strconv.Itoa(b)
			if mutant.Less(1, a, b) != (a < b) || mutant.AtMost(1, a, b) != (a <= b) ||
				mutant.More(1, a, b) != (a > b) || mutant.AtLeast(1, a, b) != (a >= b) ||
				mutant.Equal(1, a, b) != (a == b) || mutant.Unequal(1, a, b) != (a != b) ||
				mutant.NoNumber(1, a, b) != b || mutant.AnyCase(1, a, b) != b || mutant.NoCase(1, s, r) != r {
				t.Errorf("of %d and %d: another comparison", a, b)
			}
		}
	}
	if !mutant.Do(1) || !errors.Is(mutant.Step(1, func() error { return os.ErrExist }), os.ErrExist) {
		t.Error("a step is left out")
	}
}

// BenchmarkSwitch measures the time of a call of package mutant while no mutant is on.
func BenchmarkSwitch(b *testing.B) {
	n := 0
	for b.Loop() {
		if mutant.Not(1, n < 0) {
			n++
		}
	}
}
