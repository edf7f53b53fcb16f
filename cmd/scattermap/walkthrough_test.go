package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/scattermap/scattermap/mapper"
)

var writeWalk = flag.Bool("walk", false, "write what TestWalkthrough gets into docs/quickstart.md")

// A ledgerStub has every account, or all but one in a hundred while it is broken.
type ledgerStub struct{ broken atomic.Bool }

func (l *ledgerStub) has(account string) bool {
	return !l.broken.Load() || !strings.HasSuffix(account, "77")
}

var ledger ledgerStub

// docs/quickstart.md shows the code from here to the test.

type Account struct{ Balance int64 }

type Credit struct{ Amount int64 }

var AddCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[Account], p Credit) error {
	if !ledger.has(a.Key.Name) {
		return mapper.Permanent(fmt.Errorf("the ledger has no %s", a.Key.Name)) // another attempt would not help
	}
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// varies is what differs from run to run in what commands print.
var varies = regexp.MustCompile(`(?m)^(Pages|The plan|Takes|Cost|Rate|Started|Ended|Time ` +
	`left|Progress|Queue|TIME|\d{4}-\d{2}-\d{2}).*$|\b(?:about )?[\d.,]+ ?(?:ms|s|min|h)( ` +
	`ago)?\b|\b\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\b|"user-\d+"|^.*: running, .*$|\b[\d,]+ pages\b|^undo-\w+ ` +
	`+(?:rehearsal:)?undo:.*$`)

// TestWalkthrough checks that the commands of docs/quickstart.md print what the page shows, and
// that the page shows the function that they run.
func TestWalkthrough(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves jobs over 50,000 entities out")
	}
	const page = "../../docs/quickstart.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	checkShown(t, string(text))
	newService(t, 50_000, AddCredit)
	ledger.broken.Store(true)
	t.Cleanup(func() { ledger.broken.Store(false) })
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
			ledger.broken.Store(line == "<!-- broken -->")
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
			t.Fatalf("line %d is %q, and docs/quickstart.md has %q; go test ./cmd/scattermap -run TestWalkthrough "+
				"-args -walk writes it again", i+1, line, want[min(i, len(want)-1)])
		}
	}
}

// checkShown checks that the Go code of a page is in this file.
func checkShown(t *testing.T, page string) {
	t.Helper()
	source, err := os.ReadFile("walkthrough_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(page, "\n```go\n")[1:]
	if len(blocks) == 0 {
		t.Error("docs/quickstart.md shows no function")
	}
	for _, block := range blocks {
		if code, _, _ := strings.Cut(block, "\n```"); !strings.Contains(string(source), "\n"+code+"\n") {
			t.Errorf("docs/quickstart.md shows code that walkthrough_test.go does not run:\n%s", code)
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
