package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/scattermap/scattermap/internal/apischema"
)

var writeGolden = flag.Bool("golden", false, "write what TestGolden gets into testdata")

// goldens are the commands whose outputs TestGolden compares with files in testdata. They work on a
// job with failures, a dry run of it and an undo. The field definition names the definition in
// docs/jobs-api.schema.json that describes the output with -o json.
var goldens = []struct{ line, definition string }{
	{"jobs", "jobs"},
	{"jobs --state failed", "jobs"},
	{"mappers", "mappers"},
	{"mappers set", "mapper"},
	{"mappers delete", "mapper"},
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
	{"budget held 0.0001", ""},
	{"budget held 5", "status"},
	{"describe held", "status"},
	{"resume held", "status"},
	{"stop-all --yes", ""},
	{"abort held --yes", "status"},
	{"retry held", ""},
	{"move held", ""},
	{"undo held --yes --watch", ""},
	{"clean-up held --yes", "status"},
	{"top", ""},
}

// wrong are wrong arguments for commands on one job. All these commands must print the same error.
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

// mistakes are command lines that fail: wrong arguments of commands without a job, and the other
// arguments of commands on a job.
var mistakes = []struct{ name, line, env string }{
	{"no mapper", "plan", ""},
	{"an unknown mapper", "plan nope --kind Account", ""},
	{"no kind", "plan add-credit", ""},
	{"an unknown kind", "plan add-credit --kind Acount", ""},
	{"a bad filter", "plan add-credit --kind Account --filter 'Balance >'", ""},
	{"an unknown flag", "plan add-credit --kind Account --rtae 5", ""},
	{"another format", "plan add-credit --kind Account -o csv", ""},
	{"a wrong token", "plan add-credit --kind Account", "SCATTERMAP_TOKEN=bad"},
	{"another account", "plan add-credit --kind Account", "SCATTERMAP_TOKEN=eve"},
	{"no service there", "plan add-credit --kind Account --service http://127.0.0.1:1", ""},
	{"no URL", "plan add-credit --kind Account --service nowhere", ""},
	{"no mapper", "start", ""},
	{"an unknown mapper", "start nope --kind Account", ""},
	{"no kind", "start add-credit", ""},
	{"an unknown kind", "start add-credit --kind Acount --params '{\"Amount\": 1}'", ""},
	{"bad JSON", "start add-credit --kind Account --params '{Amount: 1}'", ""},
	{"a missing parameter", "start add-credit --kind Account", ""},
	{"an unknown parameter", "start count --kind Account --params '{\"Amonut\": 1}'", ""},
	{"a wrong type", "start add-credit --kind Account --params '{\"Amount\": \"much\"}'", ""},
	{"a setting out of range", "start count --kind Account --page-size 5000", ""},
	{"a budget that is too small", "start add-credit --kind Account --params '{\"Amount\": 1}' --budget 0.0001", ""},
	{"an ID of another job", "start add-credit --kind Account --params '{\"Amount\": 2}' --id tried", ""},
	{"no ID", "start add-credit --kind Account --id 'a job'", ""},
	{"a word of the jobs API", "start touch --kind Account --id mappers", ""},
	{"a word of the jobs API", "clone tried --id plan", ""},
	{"a word of the jobs API", "describe mappers", ""},
	{"no parameters", "start set --kind Account --id set", ""},
	{"a wrong token", "start add-credit --kind Account", "SCATTERMAP_TOKEN=bad"},
	{"another account", "start add-credit --kind Account", "SCATTERMAP_TOKEN=eve"},
	{"no service there", "start add-credit --kind Account --service http://127.0.0.1:1", ""},
	{"two IDs", "clone tried again", ""},
	{"no ID", "clone tried --id 'a job'", ""},
	{"no rate", "rate tried", ""},
	{"no number", "rate tried fast", ""},
	{"a rate below 0", "rate tried -- -5", ""},
	{"a job that has ended", "rate tried 5", ""},
	{"no duration", "rate tried 5 --for long", ""},
	{"no amount", "budget tried", ""},
	{"no number", "budget tried much", ""},
	{"a job that has ended", "budget tried 5", ""},
	{"a job that has ended", "pause tried", ""},
	{"a job that has ended", "resume tried", ""},
	{"a job that was undone", "retry spring-credit-of-2026", ""},
	{"an unknown cause", "retry tried --cause nope", ""},
	{"a job that was undone", "undo spring-credit-of-2026 --yes", ""},
	{"a rehearsal", "undo tried --yes", ""},
	{"no rehearsal", "examples spring-credit-of-2026", ""},
	{"no undo", "left tried", ""},
	{"no time", "clean-up tried --expire soon", ""},
	{"not confirmed", "abort tried", ""},
	{"an unknown state", "jobs --state nope", ""},
	{"a job", "jobs tried", ""},
	{"an unknown mapper", "mappers nope", ""},
	{"two mappers", "mappers set drop", ""},
	{"no service", "mappers --straight projects/p/locations/l/queues/q", ""},
	{"an unknown flag", "mappers --all", ""},
	{"another format", "mappers -o csv", ""},
	{"a wrong token", "mappers", "SCATTERMAP_TOKEN=bad"},
	{"another account", "mappers", "SCATTERMAP_TOKEN=eve"},
	{"no service there", "mappers --service http://127.0.0.1:1", ""},
	{"no URL", "mappers --service nowhere", ""},
	{"an argument", "version 2", ""},
	{"an unknown command", "lost tried", ""},
	{"an unknown command that is nearly one", "describes tried", ""},
	{"a command of other tools", "status tried", ""},
	{"a command of no tool", "dance", ""},
	{"a negative number", "rate tried -5", ""},
	{"no number", "rate tried 5 --writes many", ""},
	{"no URL", "login", ""},
	{"no URL", "login nowhere", ""},
	{"a token is set", "login http://127.0.0.1:1", ""},
	{"no service there", "login http://127.0.0.1:1", "SCATTERMAP_TOKEN="},
	{"never logged in", "logout http://127.0.0.1:1", ""},
	{"no job", "verify", ""},
	{"no ID", "verify 'a job'", ""},
	{"an unknown flag", "verify tried --nope", ""},
	{"another format", "verify tried -o xml", ""},
	{"no kind", "splits", ""},
	{"no number", "splits --kind Account --pieces many", ""},
	{"an argument", "splits Account", ""},
	{"another format", "splits --kind Account -o xml", ""},
}

// varying matches the parts of outputs that differ from run to run, and has the texts that replace
// them.
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
	{regexp.MustCompile(`[\d,]+ entities a second at present, [\d,]+ over all`), "N entities a second"},
	{regexp.MustCompile(`[\d,]+( pages)?, [\d,]+ of them full, by [\d,]+ tasks`), "N pages"},
	{regexp.MustCompile(`(Pages: +).*`), "${1}N"},
	{regexp.MustCompile(`(Cost: +).*`), "${1}N"},
	{regexp.MustCompile(`(The plan: +).*`), "${1}N"},
	{regexp.MustCompile(`(?m)(Open ranges:|Remaining:|Total:|Progress:|Time left:|Depth:)( +).*`), "${1}${2}N"},
	{regexp.MustCompile(`(held: [a-z, ]*?), (about )?[\d,]+ entities processed( and about [\d,]+ left)?( \([^)]*\))?`),
		"$1, N entities processed"},
	// the number of lines depends on the machine's speed
	{regexp.MustCompile(`(?m)(^undo-held: .*\n)+`), "undo-held: ...\n"},
	{regexp.MustCompile(`(held: running), [a-z]+( limited)?,`), "$1, PHASE,"},
	{regexp.MustCompile(`(State: +running), .*`), "$1, PHASE"},
	{regexp.MustCompile(`-\d{8}-\d{6}-[a-z2-7]{5}`), "-DATE-TIME"},
	{regexp.MustCompile(`user-\d{6}`), "user-N"},
	{regexp.MustCompile(`"(Balance)": \d+`), `"$1": N`},
	// two examples of each page; a busy machine makes more pages
	{regexp.MustCompile(`(?m)(^/Account,"user-N"  change  .*\n)+`), "$1"},
}

// narrowed returns the output of the command list without the parts that depend on how far the
// running job is: its row, and the widths of the columns.
func narrowed(list string) string {
	list = regexp.MustCompile(`(?m)^held .*`).ReplaceAllString(list, "held  ...")
	return regexp.MustCompile(` {2,}`).ReplaceAllString(list, "  ")
}

// normal replaces the parts of an output that differ from run to run by fixed texts.
func normal(text string) string {
	for _, v := range varying {
		text = v.what.ReplaceAllString(text, v.as)
	}
	return text
}

// readSchema returns docs/jobs-api.schema.json.
func readSchema(t *testing.T) (schema map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", apischema.Path))
	if err == nil {
		err = json.Unmarshal(text, &schema)
	}
	if err != nil {
		t.Fatal(err)
	}
	return schema
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
	schema := readSchema(t)
	var got strings.Builder
	say := func(title, line string) {
		out, errs, code := command(t, "", words(line)...)
		if strings.Contains(title, "80 columns") {
			checkWidth(t, line, out)
		}
		if strings.HasPrefix(line, "jobs") {
			out = narrowed(out)
		}
		got.WriteString("$ scattermap " + line + "  # " + title + "\n" + normal(out+errs))
		if code != 0 {
			got.WriteString("exit code " + string(rune('0'+code)) + "\n")
		}
		got.WriteString("\n")
	}
	for _, g := range goldens {
		t.Setenv("COLUMNS", "80")
		say("80 columns", g.line)
		t.Setenv("COLUMNS", "")
		if name, _, _ := strings.Cut(g.line, " "); slices.Contains([]string{"jobs", "history", "mappers"}, name) {
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
	with := func(env string, do func()) {
		before := os.Getenv("SCATTERMAP_TOKEN")
		if key, value, ok := strings.Cut(env, "="); ok {
			t.Setenv(key, value)
		}
		do()
		t.Setenv("SCATTERMAP_TOKEN", before)
	}
	for _, w := range wrong {
		with(w.env, func() { say(w.name, strings.TrimSpace("describe "+w.args)) })
	}
	for _, m := range mistakes {
		with(m.env, func() { say(m.name, m.line) })
	}
	checkAlike(t, with)
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

// checkAlike runs the commands on one job with the arguments in wrong. All commands must print the
// same error as the command describe.
func checkAlike(t *testing.T, with func(env string, do func())) {
	t.Helper()
	n := 0
	for _, c := range jobCommands() {
		if !strings.HasSuffix(c.Use, " JOB") || c.Name() == "describe" {
			continue
		}
		n++
		for _, w := range wrong {
			with(w.env, func() {
				_, want, wanted := command(t, "", words("describe "+w.args)...)
				out, errs, code := command(t, "", words(c.Name()+" "+w.args)...)
				if got := strings.ReplaceAll(errs, c.Name()+":", "describe:"); out != "" || code != wanted ||
					strings.ReplaceAll(got, c.Name()+" --help", "describe --help") != want {
					t.Errorf("%s, %s: exit code %d, %q%q, want %d, %q", c.Name(), w.name, code, out, errs, wanted, want)
				}
			})
		}
	}
	if n < 10 {
		t.Errorf("only %d commands take a job", n)
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

// difference returns the lines in which two texts differ: those between their common first lines
// and their common last lines.
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
