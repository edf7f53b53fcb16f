package docs_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// outer are packages for tests, and for packages beside mapper. They are not in the picture.
var outer = map[string]bool{"bridge": true, "testworld": true}

// TestPackagePicture checks that design.md's picture and table have every package of
// mapper/internal, and that each package only imports packages on lower lines of the picture.
func TestPackagePicture(t *testing.T) {
	line, described := packagesOfDesign(t)
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`,
		"../mapper/internal/...").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const inside = "github.com/scattermap/scattermap/mapper/internal/"
	exists := map[string]bool{"mapper": true}
	for text := range strings.Lines(string(out)) {
		path, imports, _ := strings.Cut(strings.TrimSpace(text), " ")
		name := strings.TrimPrefix(path, inside)
		exists[name] = true
		if !described[name] {
			t.Errorf("design.md's table of packages lacks %s", name)
		}
		if outer[name] {
			continue
		}
		if line[name] == 0 {
			t.Errorf("design.md's picture of packages lacks %s", name)
		}
		for imported := range strings.FieldsSeq(imports) {
			lower, ok := strings.CutPrefix(imported, inside)
			if ok && line[lower] <= line[name] {
				t.Errorf("%s imports %s, which is on no lower line of design.md's picture", name, lower)
			}
		}
	}
	for name := range line {
		if !exists[name] {
			t.Errorf("design.md's picture of packages has %s, which is gone", name)
		}
	}
	for name := range described {
		if !exists[name] {
			t.Errorf("design.md's table of packages has %s, which is gone", name)
		}
	}
}

// packagesOfDesign reads design.md. It returns the line of each package in the picture, from 1, and
// the packages in the table.
func packagesOfDesign(t *testing.T) (line map[string]int, described map[string]bool) {
	t.Helper()
	content, err := os.ReadFile("design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), "\nInside `mapper/internal/`")
	_, rest, _ = strings.Cut(rest, "\n```\n")
	picture, rest, _ := strings.Cut(rest, "\n```\n")
	table, _, _ := strings.Cut(rest, "\n## ")
	line, described = make(map[string]int), make(map[string]bool)
	// matches the names of packages in a line, without the explanation after them
	names := regexp.MustCompile(`(?m)^ (?:act|decide|) +((?:[a-z]+ ?)+)`)
	for i, m := range names.FindAllStringSubmatch(picture, -1) {
		for name := range strings.FieldsSeq(m[1]) {
			line[name] = i + 1
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
		described[m[1]] = true
	}
	return line, described
}
