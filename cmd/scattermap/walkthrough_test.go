package main

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var writeWalk = flag.Bool("walk", false, "write what TestWalkthrough gets into README.md")

// varies is what differs from run to run in what commands print.
var varies = regexp.MustCompile(`(?m)^(Pages|The plan|Takes|Cost|Rate|Started|Ended|Time ` +
	`left|Progress|Queue|TIME|\d{4}-\d{2}-\d{2}).*$|\b(?:about )?[\d.,]+ ?(?:ms|s|min|h)( ` +
	`ago)?\b|\b\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\b|"user-\d+"|^.*: running, .*$|\b[\d,]+ pages\b|^undo-\w+ ` +
	`+(?:rehearsal:)?undo:.*$`)

// TestWalkthrough has the commands of README.md print what it says.
func TestWalkthrough(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves jobs over 50,000 entities out")
	}
	const page = "../../README.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	newService(t, 50_000)
	rarely.Store(true)
	quick.Store(true)
	t.Cleanup(func() { rarely.Store(false); quick.Store(false) })
	var written, printed []string // lines
	inside, walks := false, false
	expect := func() {
		t.Helper()
		if len(printed) > 0 {
			written = append(written, printed...)
		}
		printed = nil
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		walks = line == "<!-- walk -->" || walks && line != "<!-- walked -->"
		switch {
		case !walks:
			written = append(written, line)
		case line == "```":
			expect()
			inside = !inside
			written = append(written, line)
		case line == "<!-- broken -->", line == "<!-- mended -->":
			rarely.Store(line == "<!-- broken -->")
			written = append(written, line)
		case inside && strings.HasPrefix(line, "$ scattermap "):
			expect()
			written = append(written, line)
			out, errs, _ := command(t, "", shellWords(strings.TrimPrefix(line, "$ scattermap "))...)
			for l := range strings.SplitSeq(strings.TrimRight(errs+out, "\n"), "\n") {
				if !strings.Contains(l, ": running, ") { // how often that is said depends on the machine
					printed = append(printed, strings.TrimRight(l, " "))
				}
			}
		case inside: // what was printed before
		default:
			written = append(written, line)
		}
	}
	got := strings.Join(written, "\n") + "\n"
	if *writeWalk {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := steady(string(text))
	for i, line := range steady(got) {
		if i >= len(want) || line != want[i] {
			t.Fatalf("line %d is %q, and README.md has %q; go test ./cmd/scattermap -run TestWalkthrough -args -walk "+
				"writes it again", i+1, line, want[min(i, len(want)-1)])
		}
	}
}

// steady returns the lines of a text without what differs from run to run, and the widths of
// columns with it.
func steady(text string) []string {
	text = regexp.MustCompile(` +`).ReplaceAllString(varies.ReplaceAllString(text, "…"), " ")
	return strings.Split(text, "\n")
}

// shellWords splits a command line at its spaces, but for those between quotes.
func shellWords(s string) (all []string) {
	for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(s, -1) {
		if w[0] == '\'' || w[0] == '"' {
			w = w[1 : len(w)-1]
		}
		all = append(all, w)
	}
	return all
}
