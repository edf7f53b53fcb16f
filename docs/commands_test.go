package docs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/scattermap/scattermap/internal/cloudstandin"
)

var writeTree = flag.Bool("gcloud", false, "write what the installed gcloud says of the commands of the pages into "+
	"internal/cloudstandin/tree.json")

// tools are the commands whose lines are checked.
var tools = []string{"gcloud", "terraform", "tofu", "curl", "scattermap"}

// A commandLine is a command line in a page, split into words.
type commandLine struct {
	at       string
	words    []string
	sentence bool // whether it is inside a sentence, and not in a code block
}

// names are texts in the pages that look like command lines and are not: they are names of spans of
// traces.
var names = map[string]string{
	"scattermap range": "a span", "scattermap finalize": "a span", "scattermap sweep": "a span", "scattermap " +
		"start": "a span, and a command",
}

// commandLines returns the lines of the pages that run one of the tools: in code blocks, and in
// sentences.
func commandLines(t *testing.T) (all []commandLine) {
	t.Helper()
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../deploy/terraform/README.md") {
		blocks, spans := readPage(t, page)
		add := func(at, script string, sentence bool) {
			commands, err := commandsOf(script)
			if err != nil {
				t.Errorf("%s: %v", at, err)
			}
			for _, words := range commands {
				if slices.Contains(tools, words[0]) {
					all = append(all, commandLine{at, words, sentence})
				}
			}
		}
		for _, b := range blocks {
			switch b.language {
			case "sh":
				add(b.String(), b.text, false)
			case "":
				// A block without a language may also be the output of a program.
				if script, is := sessionOf(b.text); is {
					add(b.String(), script, false)
				}
			}
		}
		for line, texts := range spans {
			for _, text := range texts {
				if name, rest, _ := strings.Cut(text, " "); slices.Contains(tools, name) && rest != "" &&
					names[text] == "" {
					add(fmt.Sprintf("%s:%d", page, line), text, true)
				}
			}
		}
	}
	return all
}

// sessionOf returns the commands in a block without a language. If some lines start with "$ ", the
// commands are these lines. Otherwise the commands are the whole block, if it starts with one of
// the tools. The result is tells whether there are any commands.
func sessionOf(text string) (script string, is bool) {
	for line := range strings.Lines(text) {
		if typed, ok := strings.CutPrefix(line, "$ "); ok {
			script, is = script+typed, true
		}
	}
	if is {
		return script, true
	}
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, " ")
		if slices.Contains(tools, name) {
			return text, true
		}
	}
	return "", false
}

// TestCommandLines checks every line of the pages that runs gcloud, Terraform, curl or scattermap.
// The command and its flags must exist, and the line must have all required arguments.
func TestCommandLines(t *testing.T) {
	lines := commandLines(t)
	count := make(map[string]int)
	help := newScattermapHelp(t)
	for _, l := range lines {
		count[l.words[0]]++
		var err error
		switch l.words[0] {
		case "gcloud":
			err = checkGcloud(l.words[1:])
		case "terraform", "tofu":
			_, err = cloudstandin.ParseTerraform("..", l.words[1:])
		case "curl":
			_, _, err = cloudstandin.ParseCurl(l.words[1:])
		case "scattermap":
			err = help.check(l.words[1:], l.sentence)
		}
		if err != nil {
			t.Errorf("%s: %s\n\t%v", l.at, strings.Join(l.words, " "), err)
		}
	}
	if count["gcloud"] < 40 || count["terraform"] < 4 || count["curl"] < 3 || count["scattermap"] < 30 {
		t.Errorf("the pages have so few lines: %v", count)
	}
}

// checkGcloud checks a command line of gcloud. It also requires the flags without which gcloud
// would ask the user a question.
func checkGcloud(args []string) error {
	call, err := cloudstandin.Gcloud().Parse(args)
	if err != nil {
		return err
	}
	needs := []string{call.Place()}
	if call.Path == "run deploy" {
		needs = append(needs, "--service-account", "--set-env-vars")
		if call.Get("--source") != "" {
			needs = append(needs, "--build-service-account")
		}
		if call.Positional(0) == "" {
			return fmt.Errorf("it names no service")
		}
	}
	for _, flag := range needs {
		if flag != "" && call.Get(flag) == "" {
			return fmt.Errorf("it has no %s", flag)
		}
	}
	return nil
}

// TestCommandLinesAreChecked checks that the checks find mistakes in command lines.
func TestCommandLinesAreChecked(t *testing.T) {
	help := newScattermapHelp(t)
	for line, want := range map[string]string{
		"gcloud tasks list --location=LOCATION":                                  "--queue",
		"gcloud tasks queues resume QUEUE":                                       "--location",
		"gcloud scheduler jobs describe NAME":                                    "--location",
		"gcloud tasks queues create q --location=x --max-concurent-dispatches=3": "unrecognized",
		"gcloud task queues create q --location=x":                               "Invalid choice: 'task'",
		"gcloud tasks queues create --location=x":                                "QUEUE",
		"gcloud tasks queues create q r --location=x":                            "unrecognized arguments: r",
		"gcloud run deploy --source=.":                                           "names no service",
		"gcloud run deploy s --region=r --source=. --service-account=a " +
			"--set-env-vars=A=b": "--build-service-account",
		"gcloud run deploy s --region=r --image=i --service-account=a --set-env-vars=A=b --update-env-vars=C": "At " +
			"most one",
		"gcloud firestore databases create --location=x --type=datastore": "Invalid choice",
		"gcloud firestore fields ttls update f --collection-group=K":      "--disable-ttl",
		"gcloud scheduler jobs create http j --location=x --schedule=s":   "--uri",
		"terraform aply": "aply",
		"terraform -chdir=deploy/terraform/example apply -var=project=p -var=operator=o":               "image",
		"terraform -chdir=deploy/terraform/example apply -var=project=p -var=operators=o -var=image=i": "operators",
		"terraform -chdir=deploy/terraform/example apply -yes -var=project=p":                          "-yes",
		"terraform output -row url":      "-row",
		"curl --fial https://x":          "--fial",
		"curl --request POST":            "no URL",
		"scattermap begin add-credit":    "unknown command",
		"scattermap start add --knd=A":   "--knd",
		"scattermap describe":            "JOB",
		"scattermap describe spring two": "two",
	} {
		commands, err := commandsOf(line)
		if err != nil {
			t.Fatal(err)
		}
		args := commands[0][1:]
		switch commands[0][0] {
		case "gcloud":
			err = checkGcloud(args)
		case "terraform":
			_, err = cloudstandin.ParseTerraform("..", args)
		case "curl":
			_, _, err = cloudstandin.ParseCurl(args)
		case "scattermap":
			err = help.check(args, false)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// installedGcloud returns the folder of an installed gcloud, and the path of its Python. It returns
// "" if gcloud is not installed.
func installedGcloud(t *testing.T) (sdk, python string) {
	t.Helper()
	path, err := exec.LookPath("gcloud")
	if err != nil {
		return "", ""
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	sdk = filepath.Dir(filepath.Dir(path))
	if _, err := os.Stat(filepath.Join(sdk, "lib", "googlecloudsdk")); err != nil {
		return "", ""
	}
	python = filepath.Join(sdk, "platform", "bundledpythonunix", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		if python, err = exec.LookPath("python3"); err != nil {
			return "", ""
		}
	}
	return sdk, python
}

// askGcloud runs the script tree.py with the Python of the installed gcloud. It returns the arguments
// of commands, and what gcloud's own parser says against command lines.
func askGcloud(t *testing.T, sdk, python string, commands []string, lines [][]string) (*cloudstandin.Tree, []string) {
	t.Helper()
	input, err := json.Marshal(map[string]any{"extract": commands, "parse": lines})
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../internal/cloudstandin/tree.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), python, "-S", script, sdk)
	cmd.Dir = t.TempDir()
	// The command lines name these files, and gcloud reads them when it parses its arguments.
	if err := os.WriteFile(filepath.Join(cmd.Dir, "alarm.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = bytes.NewReader(input)
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, says.Bytes())
	}
	var answer struct {
		Extract cloudstandin.Tree
		Parse   []string
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return &answer.Extract, answer.Parse
}

// placeholder matches a text in a command line that the reader has to replace: $NAME, and words
// such as PROJECT.
var placeholder = regexp.MustCompile(`\$\{?\w+\}?|\b[A-Z][A-Z_]{3,}\b`)

// plausible returns a value that gcloud accepts for a placeholder with the given name.
func plausible(name string) string {
	switch name = strings.Trim(name, "${}"); {
	case strings.HasSuffix(name, "ACCOUNT"):
		return "somebody@my-project-123.iam.gserviceaccount.com"
	case strings.HasSuffix(name, "PROJECT"):
		return "my-project-123"
	case strings.HasSuffix(name, "URL"):
		return "https://credit-123456789012.europe-west1.run.app"
	case name == "ENVIRONMENT":
		return "NAME=value"
	}
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}

// wrongForGcloud are lines that gcloud's own parser refuses.
var wrongForGcloud = []string{
	"tasks list --location=l", "task list", "tasks queues create --location=l", "tasks queues create q r " +
		"--location=l",
	"tasks queues create q --location", "tasks queues create q --locaton=l", "run deploy s --set-env-vars=A=b " +
		"--update-env-vars=C=d",
	"firestore databases create --location=l --type=datastore", "firestore fields ttls update f --collection-group=K",
	"firestore fields ttls update f --collection-group=K --enable-ttl --disable-ttl", "scheduler jobs create http " +
		"j --location=l --schedule=s",
	"projects add-iam-policy-binding p --role=roles/run.invoker", "iam service-accounts create", "artifacts " +
		"repositories create r",
}

// TestInstalledGcloud compares this repository's list of gcloud's commands with an installed
// gcloud. It also parses every line of the pages with gcloud's own parser.
func TestInstalledGcloud(t *testing.T) {
	sdk, python := installedGcloud(t)
	if sdk == "" {
		t.Skip("gcloud is not installed: the pages were compared with the commands of " +
			cloudstandin.Gcloud().Version + " only")
	}
	lines := slices.DeleteFunc(commandLines(t), func(l commandLine) bool { return l.words[0] != "gcloud" })
	known := cloudstandin.Gcloud()
	if *writeTree {
		writeCommands(t, sdk, python, lines)
		return
	}
	var args [][]string
	for _, l := range lines {
		words := slices.Clone(l.words[1:])
		for i, w := range words {
			words[i] = placeholder.ReplaceAllStringFunc(w,
				plausible)
		}
		args = append(args, words)
	}
	for _, wrong := range wrongForGcloud {
		args = append(args, strings.Fields(wrong))
	}
	installed, said := askGcloud(t, sdk, python, slices.Sorted(maps.Keys(known.Commands)), args)
	if installed.Version == known.Version && !reflect.DeepEqual(installed, known) {
		t.Error("gcloud says otherwise than internal/cloudstandin/tree.json; go test ./docs -run " +
			"TestInstalledGcloud -args -gcloud writes it")
	}
	for path := range known.Commands {
		if installed.Commands[path] == nil {
			t.Errorf("gcloud %s has no command %s", installed.Version, path)
		}
	}
	for i, wrong := range wrongForGcloud {
		if said[len(lines)+i] == "" {
			t.Errorf("gcloud %s takes gcloud %s, and this repository does not", installed.Version, wrong)
		}
		if _, err := known.Parse(strings.Fields(wrong)); err == nil {
			t.Errorf("this repository takes gcloud %s", wrong)
		}
	}
	for i, l := range lines {
		if said[i] != "" {
			text, _, _ := strings.Cut(said[i], "\nUsage: ")
			t.Errorf("%s: %s\n\tgcloud %s says: %s", l.at, strings.Join(l.words, " "), installed.Version, text)
		}
	}
}

// writeCommands writes tree.json, the list of gcloud's commands. It has the commands in the pages,
// and the commands that the file already has.
func writeCommands(t *testing.T, sdk, python string, lines []commandLine) {
	t.Helper()
	paths := make(map[string]bool)
	for path := range cloudstandin.Gcloud().Commands {
		paths[path] = true
	}
	for _, l := range lines {
		var path []string
		for _, w := range l.words[1:] {
			if !strings.HasPrefix(w, "-") {
				path = append(path, w)
				paths[strings.Join(path, " ")] = true // gcloud's answer leaves out words that are not commands
			}
		}
	}
	tree, _ := askGcloud(t, sdk, python, slices.Sorted(maps.Keys(paths)), nil)
	var out bytes.Buffer
	fmt.Fprintf(&out, "{\n\"version\": %q,\n\"global\": ", tree.Version)
	write := func(v any) {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
	}
	write(tree.Global)
	out.WriteString(",\n\"commands\": {")
	for i, path := range slices.Sorted(maps.Keys(tree.Commands)) {
		fmt.Fprintf(&out, "%s\n%q: ", map[bool]string{true: ","}[i > 0], path)
		write(tree.Commands[path])
	}
	out.WriteString("\n}\n}\n")
	if err := os.WriteFile("../internal/cloudstandin/tree.json", out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A scattermapHelp has the commands of scattermap with their flags, read from its help texts.
type scattermapHelp struct {
	commands map[string]scattermapCommand
}

type scattermapCommand struct {
	usage string
	flags map[string]bool // by flag: whether it takes a value
}

// newScattermapHelp builds the command and reads its help, once for all tests.
func newScattermapHelp(t *testing.T) *scattermapHelp {
	t.Helper()
	h, err := readHelp()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var readHelp = sync.OnceValues(func() (_ *scattermapHelp, failed error) {
	binary, err := cloudstandin.Program(context.Background(), "..", "./cmd/scattermap")
	if err != nil {
		return nil, err
	}
	ask := func(args ...string) string {
		out, err := exec.Command(binary, args...).CombinedOutput()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%q: %w\n%s", args, err, out))
		}
		return string(out)
	}
	h := &scattermapHelp{commands: make(map[string]scattermapCommand)}
	flagLine := regexp.MustCompile(`(?m)^\s+(?:-(\w), )?--([\w-]+)(?: (\S+))?(?:  |$)`)
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+) {2,}\S`).FindAllStringSubmatch(ask("help"), -1) {
		text := ask("help", m[1])
		c := scattermapCommand{flags: make(map[string]bool)}
		_, usage, _ := strings.Cut(text, "\nUsage:\n  scattermap "+m[1])
		c.usage, _, _ = strings.Cut(usage, "\n")
		for _, f := range flagLine.FindAllStringSubmatch(text, -1) {
			c.flags["--"+f[2]] = f[3] != ""
			if f[1] != "" {
				c.flags["-"+f[1]] = f[3] != ""
			}
		}
		h.commands[m[1]] = c
	}
	return h, failed
})

// check checks a command line of scattermap. In a sentence, a command may lack its arguments.
func (h *scattermapHelp) check(args []string, sentence bool) error {
	if len(args) == 1 && args[0] == "--version" { // a flag of no command
		return nil
	}
	c, ok := h.commands[args[0]]
	if !ok {
		return fmt.Errorf("unknown command %q", args[0])
	}
	var positionals []string
	for i := 1; i < len(args); i++ {
		name, _, has := strings.Cut(args[i], "=")
		if !strings.HasPrefix(name, "-") {
			positionals = append(positionals, name)
			continue
		}
		value, known := c.flags[name]
		if !known {
			return fmt.Errorf("%s has no flag %s", args[0], name)
		}
		if value && !has {
			i++
		}
		if i >= len(args) {
			return fmt.Errorf("the flag %s has no value", name)
		}
	}
	least, most := 0, 0
	var names []string
	// leave out the flags that only some mappers need
	usage := regexp.MustCompile(` --\S+ \S+`).ReplaceAllString(c.usage, "")
	for word := range strings.FieldsSeq(usage) {
		switch {
		case word == "[flags]" || word == "[command]":
		case strings.HasSuffix(word, "...") || strings.HasSuffix(word, "...]"):
			most = 1000
		case strings.HasPrefix(word, "["):
			most++
		default:
			least, most = least+1, most+1
			names = append(names, word)
		}
	}
	switch {
	case len(positionals) < least && !sentence:
		return fmt.Errorf("%s needs %s", args[0], strings.Join(names[len(positionals):], " "))
	case len(positionals) > most:
		return fmt.Errorf("%s has arguments too many: %s", args[0], strings.Join(positionals[most:], " "))
	}
	return nil
}
