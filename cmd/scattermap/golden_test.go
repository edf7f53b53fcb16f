package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/scattermap/scattermap/internal/apischema"
)

var writeGolden = flag.Bool("golden", false, "write what TestGolden gets into testdata")

// goldens are commands on a job with failures, a dry run of it and an undo. Their answers with -o
// json are the definition of docs/jobs-api.schema.json.
var goldens = []struct{ line, definition string }{
	{"jobs", "jobs"},
	{"jobs --state failed", "jobs"},
	{"describe spring-credit-of-2026", "status"},
	{"history spring-credit-of-2026", "history"},
	{"failures spring-credit-of-2026", "failures"},
	{"failures spring-credit-of-2026 --by-cause", "causes"},
	{"failures tried", "failures"},
	{"examples tried", "examples"},
	{"left undo-spring-credit-of-2026", "left"},
	{"plan add-credit --kind Account", "estimate"},
	{"watch spring-credit-of-2026", "status"},
	{"pause held", "status"},
	{"describe held", "status"},
	{"rate held 2", "status"},
	{"resume held", "status"},
	{"stop-all --yes", ""},
	{"abort held --yes", "status"},
	{"retry held", ""},
	{"move held", ""},
	{"undo held --yes --watch", ""},
	{"clean-up held --yes", "status"},
	{"top", ""},
}

// wrong are mistakes, which each command for a job answers with a sentence.
var wrong = []struct{ name, args, env string }{
	{"no such job", "nowhere", ""},
	{"no ID", "'a job'", ""},
	{"no job", "", ""},
	{"an unknown flag", "tried --nope", ""},
	{"another format", "tried -o xml", ""},
	{"a wrong token", "tried", "SCATTERMAP_TOKEN=bad"},
	{"another account", "tried", "SCATTERMAP_TOKEN=eve"},
	{"no service there", "tried --service http://127.0.0.1:1", ""},
	{"no URL", "tried --service nowhere", ""},
}

// varying is what differs from run to run.
var varying = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`http://127\.0\.0\.1:\d{4,}`), "http://SERVICE"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?`), "TIME"},
	{regexp.MustCompile(`\d+ (s|min) ago`), "AGO"},
	{regexp.MustCompile(`about \d+ (s|min)`), "about N s"},
	{regexp.MustCompile(`after [\d.]+m?s`), "after T"},
	{regexp.MustCompile(`\$[\d.]+`), "$$N"},
	{regexp.MustCompile(`within \d+s`), "within T"},
	{regexp.MustCompile(`[\d,]+ entities a second in the last minute, [\d,]+ over all`), "N entities a second"},
	{regexp.MustCompile(`[\d,]+( pages)?, [\d,]+ of them full, by [\d,]+ tasks`), "N pages"},
	{regexp.MustCompile(`(Pages: +).*`), "${1}N"},
	{regexp.MustCompile(`(Cost: +).*`), "${1}N"},
	{regexp.MustCompile(`(The plan: +).*`), "${1}N"},
	{regexp.MustCompile(`(?m)(Open ranges:|Remaining:|Total:|Progress:|Time left:|Depth:)( +).*`), "${1}${2}N"},
	{regexp.MustCompile(`(held: [a-z, ]*?), (about )?[\d,]+ entities processed( and about [\d,]+ left)?( \([^)]*\))?`),
		"$1, N entities processed"},
	{regexp.MustCompile(`(?m)^undo-held: .*`), "undo-held: ..."},
	{regexp.MustCompile(`(held: running), [a-z]+( limited)?,`), "$1, PHASE,"},
	{regexp.MustCompile(`(State: +running), .*`), "$1, PHASE"},
	{regexp.MustCompile(`user-\d{6}`), "user-N"},
	{regexp.MustCompile(`"(Balance)": \d+`), `"$1": N`},
}

// normal returns an output without what differs from run to run.
func normal(text string) string {
	for _, v := range varying {
		text = v.what.ReplaceAllString(text, v.as)
	}
	return text
}

// TestGolden runs each command on a terminal of 80 columns, in a pipe, with -o json, and with
// mistakes. The outputs are in testdata.
func TestGolden(t *testing.T) {
	newService(t, 60)
	broken.Store(true)
	t.Cleanup(func() { broken.Store(false) })
	const spring = "--kind Account --params '{\"Amount\": 10}' --page-size 20 --failure-limit -1 --expected-workers 4"
	for _, line := range []string{"start add-credit " + spring + " --id spring-credit-of-2026 --watch --reason " +
		"'the spring credit, which was promised in March to all who had an account in February'",
		"start add-credit " + spring + " --id tried --dry-run --watch",
		"undo spring-credit-of-2026 --yes --watch", "start add-credit " + spring + " --id held --rate 1"} {
		command(t, "", words(line)...)
	}
	var schema map[string]any
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", apischema.Path))
	if err == nil {
		err = json.Unmarshal(text, &schema)
	}
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	say := func(title, line string) {
		out, errs, code := command(t, "", words(line)...)
		if strings.Contains(title, "80 columns") {
			checkWidth(t, line, out)
		}
		if strings.HasPrefix(line, "jobs") { // columns are as wide as the running job needs
			out = regexp.MustCompile(`(?m) {2,}|^held .*`).ReplaceAllStringFunc(out, func(s string) string {
				return map[bool]string{true: "held  ...", false: "  "}[strings.HasPrefix(s, "held")]
			})
		}
		got.WriteString("$ scattermap " + line + "  # " + title + "\n" + normal(out) + normal(errs))
		if code != 0 {
			got.WriteString("exit code " + string(rune('0'+code)) + "\n")
		}
		got.WriteString("\n")
	}
	for _, g := range goldens {
		t.Setenv("COLUMNS", "80")
		say("80 columns", g.line)
		if t.Setenv("COLUMNS", ""); strings.HasPrefix(g.line, "jobs") || strings.HasPrefix(g.line, "history") {
			say("in a pipe", g.line)
		}
		if g.definition == "" || strings.HasPrefix(g.line, "abort") || strings.HasPrefix(g.line, "clean-up") {
			continue
		}
		out, errs, _ := command(t, "", words(g.line+" -o json")...)
		if err := apischema.Check(schema, g.definition, []byte(out)); err != nil {
			t.Errorf("%s -o json: %v\n%s%s", g.line, err, out, errs)
		}
	}
	for _, name := range []string{"describe", "failures", "watch", "pause"} {
		for _, w := range wrong {
			before := os.Getenv("SCATTERMAP_TOKEN")
			if key, value, ok := strings.Cut(w.env, "="); ok {
				t.Setenv(key, value)
			}
			say(w.name, strings.TrimSpace(name+" "+w.args))
			t.Setenv("SCATTERMAP_TOKEN", before)
		}
	}
	path := filepath.Join("testdata", "commands.txt")
	if *writeGolden {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got.String() != string(want) {
		t.Errorf("the commands print something else than %s has (%v); go test ./cmd/scattermap -run TestGolden -args "+
			"-golden writes it:\n%s", path, err, difference(string(want), got.String()))
	}
}

// checkWidth checks that a command's output fits a terminal of 80 columns.
func checkWidth(t *testing.T, line, out string) {
	t.Helper()
	for l := range strings.Lines(out) {
		if strings.HasPrefix(l, "held: ") || strings.HasPrefix(l, "spring-credit-of-2026: ") ||
			strings.HasPrefix(l, "undo-held: ") { // a sentence, which a terminal wraps
			continue
		}
		if n := utf8.RuneCountInString(strings.TrimRight(l, "\n")); n > 80 {
			t.Errorf("%s: a line of %d columns: %s", line, n, l)
		}
	}
}

// difference returns the lines between the common lines at the start and the end of two texts.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for len(w) > 0 && len(g) > 0 && w[0] == g[0] {
		w, g = w[1:], g[1:]
	}
	for len(w) > 0 && len(g) > 0 && w[len(w)-1] == g[len(g)-1] {
		w, g = w[:len(w)-1], g[:len(g)-1]
	}
	var b strings.Builder
	for _, l := range w {
		b.WriteString("-" + l + "\n")
	}
	for _, l := range g {
		b.WriteString("+" + l + "\n")
	}
	return b.String()
}
