package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	fenced = regexp.MustCompile("(?s)```[a-z]*\n(.*?)```")
	number = regexp.MustCompile(`[0-9][0-9,.]*`)
	space  = regexp.MustCompile(` +`)
)

// blocks returns the README's code blocks.
func blocks(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range fenced.FindAllStringSubmatch(string(readme), -1) {
		all = append(all, m[1])
	}
	return all
}

// TestReadmeCode checks that the lines of the README's job are those of the
// example that the tests run, in that order.
func TestReadmeCode(t *testing.T) {
	example, err := os.ReadFile("../../mapper/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(example)
	for line := range strings.Lines(blocks(t)[0]) {
		if line == "\n" {
			continue
		}
		_, after, found := strings.Cut(rest, "\n"+line)
		if !found {
			t.Fatalf("not in mapper/example_test.go, or not behind the lines before it: %q", line)
		}
		rest = "\n" + after
	}
}

// TestReadmeOutput checks that the README shows what the command prints, but for
// the numbers that differ from run to run.
func TestReadmeOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves large runs out")
	}
	c, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	shape := func(s string) string { return space.ReplaceAllString(number.ReplaceAllString(s, "N"), " ") }
	var shown strings.Builder
	for line := range strings.Lines(blocks(t)[2]) {
		if !strings.Contains(line, "|█") { // the bar, on the standard error
			shown.WriteString(line)
		}
	}
	if got, want := shape(out.String()), shape(shown.String()); got != want {
		t.Errorf("the README shows\n%s\nthe command prints\n%s", shown.String(), out.String())
	}
}
