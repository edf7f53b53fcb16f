package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var writePage = flag.Bool("write", false, "write what TestCommandLinePage gets into docs/command-line.md")

// perJob returns the flags that all commands on a job have.
func perJob() *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(service).define(flags)
	return flags
}

// shared returns the flags that several commands have. docs/command-line.md describes them once.
func shared() *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	outputFlag(flags)
	new(service).defineReason(flags)
	flags.BoolP("watch", "w", false, "follow the job to its end, like the command watch")
	flags.BoolP("yes", "y", false, "do not ask")
	return flags
}

// has reports whether flags has a flag with the same name and description as f.
func has(flags *pflag.FlagSet, f *pflag.Flag) bool {
	other := flags.Lookup(f.Name)
	return other != nil && other.Usage == f.Usage
}

// code matches the parts of a help text that the page shows as code: flags and variables.
var code = regexp.MustCompile(`--[a-z]+(?:-[a-z]+)*|-o \w+|\$[A-Z_]+|__\w+__`)

// flagList returns a Markdown list of the flags that none of the sets in but has.
func flagList(flags *pflag.FlagSet, but ...*pflag.FlagSet) string {
	var rows strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || slices.ContainsFunc(but, func(b *pflag.FlagSet) bool { return has(b, f) }) {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		usage = code.ReplaceAllString(usage, "`$0`")
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		if f.NoOptDefVal != "" && f.Value.Type() != "bool" {
			usage += fmt.Sprintf("; without a value `%s`", f.NoOptDefVal)
		}
		if d := f.DefValue; d != "" && d != "0" && d != "0s" && d != "[]" && d != "false" {
			usage += fmt.Sprintf("; by default `%s`", strings.Trim(d, "[]"))
		}
		fmt.Fprintf(&rows, "- `%s`: %s\n", name, usage)
	})
	if rows.Len() == 0 {
		return ""
	}
	return "\n" + rows.String()
}

// paragraphs converts a command's help to Markdown. It joins lines, and makes indented lines code.
func paragraphs(text string) string {
	var b strings.Builder
	inside := false
	for part := range strings.SplitSeq(text, "\n\n") {
		b.WriteString("\n")
		for line := range strings.Lines(part + "\n") {
			if is := strings.HasPrefix(line, "  "); is != inside {
				b.WriteString(map[bool]string{true: "\n\n```text\n", false: "```\n\n"}[is])
				inside = is
			}
			if inside {
				b.WriteString(strings.TrimPrefix(line, "  "))
				continue
			}
			b.WriteString(code.ReplaceAllString(strings.TrimSuffix(line, "\n"), "`$0`") + " ")
		}
		if inside {
			b.WriteString("```")
		}
		inside = false
		b.WriteString("\n")
	}
	return regexp.MustCompile(`(?m) +$`).ReplaceAllString(b.String(), "")
}

// commandPage returns the part of docs/command-line.md that is made from the commands' help texts.
func commandPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("\nA flag inside a command's usage is required; all others are optional. Common flags of " +
		"a command follow its usage, after the word \"with\":\n" +
		flagList(shared()))
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		but := []*pflag.FlagSet{shared()}
		if g.ID == jobsGroup {
			b.WriteString("\nAll of these commands but `login` and `logout` also have flags that choose the " +
				"service, or the database and the queue:\n" + flagList(perJob()))
			but = append(but, perJob())
		}
		if g.ID == databaseGroup {
			db := pflag.NewFlagSet("", pflag.ContinueOnError)
			new(database).define(db)
			b.WriteString("\n`splits` chooses the database by `--project` and `--database`.\n")
			but = append(but, db)
		}
		for _, c := range root.Commands() {
			if c.GroupID != g.ID {
				continue
			}
			usage, with := strings.TrimSuffix(c.UseLine(), " [flags]"), ""
			c.Flags().VisitAll(func(f *pflag.Flag) {
				if has(shared(), f) {
					with += fmt.Sprintf(" `-%s`", cmp.Or(f.Shorthand, "-"+f.Name))
				}
			})
			if with != "" {
				with = ", with" + strings.ReplaceAll(with, "` `", "`, `")
			}
			fmt.Fprintf(&b, "\n### %s\n\n`%s`%s\n%s", c.Name(), usage, with, paragraphs(cmp.Or(c.Long, c.Short+".")))
			if c.Example != "" {
				b.WriteString("\n```sh\n" + regexp.MustCompile(`(?m)^  `).ReplaceAllString(c.Example, "") + "\n```\n")
			}
			if c.Name() != "plan" {
				b.WriteString(flagList(c.Flags(), but...))
				continue
			}
			// The page describes the flags of a job only once, with the command start.
			job := pflag.NewFlagSet("", pflag.ContinueOnError)
			new(jobFlags).define(job)
			b.WriteString(flagList(c.Flags(), append(but, job)...))
			b.WriteString("\nA plan also has the flags of [start](#start), except")
			comma := ""
			newStart().Flags().VisitAll(func(f *pflag.Flag) {
				if job.Lookup(f.Name) == nil && c.Flags().Lookup(f.Name) == nil {
					fmt.Fprintf(&b, "%s `--%s`", comma, f.Name)
					comma = ","
				}
			})
			b.WriteString(".\n")
		}
	}
	return b.String()
}

// TestCommandLinePage checks that docs/command-line.md describes all commands, flags and
// environment variables.
func TestCommandLinePage(t *testing.T) {
	t.Setenv("SCATTERMAP_SERVICE", "") // it would change the default value of a flag
	const path, begin, end = "../../docs/command-line.md", "<!-- commands -->\n", "\n<!-- end -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), begin)
	got, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s has no commands", path)
	}
	want := commandPage(newRoot())
	switch {
	case *writePage:
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case got != want:
		wanted := strings.Split(want, "\n")
		for i, line := range strings.Split(got, "\n") {
			if i >= len(wanted) || line != wanted[i] {
				t.Errorf("docs/command-line.md has\n\t%s\nwant\n\t%s\ngo test ./cmd/scattermap -run "+
					"TestCommandLinePage "+
					"-args -write writes it", line, wanted[min(i, len(wanted)-1)])
				break
			}
		}
	}
	checkFacts(t, before)
}

// checkFacts checks that the page has the exit codes, and the variables that the commands read.
func checkFacts(t *testing.T, page string) {
	t.Helper()
	for _, code := range []int{0, exitError, exitUsage, exitJob} {
		if !strings.Contains(page, fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("docs/command-line.md lacks the exit code %d", code)
		}
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		source, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`os\.Getenv\("(\w+)"\)`).FindAllStringSubmatch(string(source), -1) {
			if !strings.Contains(page, "`"+m[1]+"`") {
				t.Errorf("docs/command-line.md lacks the variable %s, which %s reads", m[1], f.Name())
			}
		}
	}
}
