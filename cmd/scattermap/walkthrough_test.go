package main

import (
	"bufio"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var writeWalk = flag.Bool("walk", false, "write what TestWalkthrough gets into docs/quickstart.md")

// walkService is the folder of the service on which the commands of docs/quickstart.md work.
const walkService = "../../examples/quickstart"

// startWalk builds and starts the program as a reader would, and returns the service's URL.
func startWalk(t *testing.T) (url string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "quickstart")
	if out, err := exec.Command("go", "build", "-ldflags=-s", "-o", program, walkService).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := exec.Command(program, "-address", "127.0.0.1:0")
	c.Stderr = t.Output()
	printed, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		if err := c.Wait(); err != nil {
			t.Errorf("the service ends with %v", err)
		}
	})
	for lines := bufio.NewScanner(printed); lines.Scan(); {
		if _, url, found := strings.Cut(lines.Text(), "export SCATTERMAP_SERVICE="); found {
			return url
		}
	}
	t.Fatal("the service has ended")
	return ""
}

// post sends a request to the service, as the page does with curl, and returns the answer.
func post(t *testing.T, service, path string) string {
	t.Helper()
	answer, err := http.Post(service+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s, %v", path, answer.StatusCode, text, err)
	}
	return string(text)
}

// varies matches the parts of outputs that differ from run to run.
var varies = regexp.MustCompile(`(?m)^(Pages|The plan|Takes|Cost|Rate|Started|Ended|Time ` +
	`left|Progress|Queue|TIME|\d{4}-\d{2}-\d{2}).*$|\b(?:about )?[\d.,]+ ?(?:ms|s|min|h)( ` +
	`ago)?\b|\b\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\b|"user-\d+"|^.*: running, .*$|\b[\d,]+ pages\b|^undo-\w+ ` +
	`+(?:rehearsal:)?undo:.*$`)

// postWith is the start of the page's commands that send a request with curl.
const postWith = "$ curl -X POST http://localhost:8080"

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
	service := startWalk(t)
	t.Setenv("SCATTERMAP_SERVICE", service)
	t.Setenv("SCATTERMAP_TOKEN", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // the test's user has not logged in
	var written, printed []string            // the lines of the page, and the lines that the commands print
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
		case inside && strings.HasPrefix(line, postWith):
			expect()
			written = append(written, line)
			printed = append(printed, strings.TrimSpace(post(t, service, strings.TrimPrefix(line, postWith))))
		case inside && strings.HasPrefix(line, "$ scattermap "):
			expect()
			written = append(written, line)
			out, errs, _ := command(t, "", shellWords(strings.TrimPrefix(line, "$ scattermap "))...)
			for l := range strings.SplitSeq(strings.TrimRight(errs+out, "\n"), "\n") {
				if !strings.Contains(l, ": running, ") { // the number of these lines depends on the machine's speed
					printed = append(printed, strings.TrimRight(l, " "))
				}
			}
		case inside: // the line belongs to the output of the previous command in the page
		default:
			written = append(written, line)
		}
	}
	checkWalked(t, page, string(text), strings.Join(written, "\n")+"\n")
}

// checkWalked compares the page with the outputs of its commands. With the flag -walk it writes the
// outputs to the page.
func checkWalked(t *testing.T, page, text, got string) {
	t.Helper()
	if *writeWalk {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := steady(text)
	for i, line := range steady(got) {
		if i >= len(want) || line != want[i] {
			t.Fatalf("line %d is %q, and docs/quickstart.md has %q; go test ./cmd/scattermap -run TestWalkthrough "+
				"-args -walk writes it again", i+1, line, want[min(i, len(want)-1)])
		}
	}
}

// checkShown checks that the Go code in a page is a part of the service's program.
func checkShown(t *testing.T, page string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(walkService, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(page, "\n```go\n")[1:]
	if len(blocks) == 0 {
		t.Error("docs/quickstart.md shows no function")
	}
	for _, block := range blocks {
		if code, _, _ := strings.Cut(block, "\n```"); !strings.Contains(string(source), "\n"+code+"\n") {
			t.Errorf("docs/quickstart.md shows code that the service does not have:\n%s", code)
		}
	}
}

// steady returns the lines of a text without the parts that differ from run to run, and with one
// blank between columns.
func steady(text string) []string {
	text = regexp.MustCompile(` +`).ReplaceAllString(varies.ReplaceAllString(text, "…"), " ")
	return strings.Split(text, "\n")
}

// shellWords splits a command line at spaces outside of quotes.
func shellWords(s string) (all []string) {
	for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(s, -1) {
		if w[0] == '\'' || w[0] == '"' {
			w = w[1 : len(w)-1]
		}
		all = append(all, w)
	}
	return all
}
