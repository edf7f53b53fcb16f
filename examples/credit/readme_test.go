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

// readmeOutput returns the README's code block with the command's output.
func readmeOutput(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fenced.FindAllStringSubmatch(string(readme), -1) {
		if strings.Contains(m[1], "Checked by reading all accounts back") {
			return m[1]
		}
	}
	t.Fatal("the README does not show what the command prints")
	return ""
}

// TestReadmeOutput checks that the README shows the command's output, except for numbers that
// differ from run to run.
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
	for line := range strings.Lines(readmeOutput(t)) {
		if !strings.Contains(line, "|█") { // the bar is on the standard error, and not in this output
			shown.WriteString(line)
		}
	}
	if got, want := shape(out.String()), shape(shown.String()); got != want {
		t.Errorf("the README shows\n%s\nthe command prints\n%s", shown.String(), out.String())
	}
}
