package main

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/setting"
)

// naming returns an error whose text is the concatenation of the parts. Every second part is the
// name of a setting in JSON, which inFlags can replace by the name of a flag.
func naming(parts []string) error {
	args := make([]any, len(parts))
	for i, p := range parts {
		if args[i] = p; i%2 == 1 {
			args[i] = setting.Name(p)
		}
	}
	return setting.Errorf(strings.Repeat("%s", len(parts)), args...)
}

// jsonName matches the name of a setting in an error of the jobs API: words in quotes, joined by
// dots or underscores. A name of one word is not matched, because a user's text may look like that.
var jsonName = regexp.MustCompile(`"[a-z]+(?:[._][a-z]+)+"`)

// partsOf returns an error with the text of the jobs API's answer. It marks the names of settings,
// so that inFlags can replace them by flags. It finds the names by their form, because older
// services do not mark them. It leaves the text after "params:" unchanged, because that has the
// names of the mapper's own parameters.
func partsOf(text string) error {
	var parts []string
	from := 0
	settings, _, _ := strings.Cut(text, "params: ")
	for _, at := range jsonName.FindAllStringIndex(settings, -1) {
		parts = append(parts, text[from:at[0]], text[at[0]+1:at[1]-1])
		from = at[1]
	}
	return naming(append(parts, text[from:]))
}

// inFlags returns an error that names settings by their flags: page_size becomes --page-size, and
// rate.entities becomes --rate. The flags are looked up in the command c, which is nil if there is
// no command line.
func inFlags(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return worded{err, operator.Say(err, func(name string) string { return flagOf(c, name) })}
}

// called has the texts for settings without a flag of the same name, by the setting's name in JSON.
var called = map[string]string{
	"-1": "always", "filters": "--filter", "start": "--filter", "end": "--filter", "ancestor": "--filter",
	"entities": "the rate", "move": `"scattermap move"`, "retry": `"scattermap retry"`,
	"failures": `"scattermap failures"`, "params.files": `"files" in --params`,
}

// flagOf returns the flag for a setting's name in JSON. For "rate.ramp" it tries the flags
// --rate-ramp, --ramp and --rate, in this order.
func flagOf(c *cobra.Command, name string) string {
	has := func(flag string) bool { return c != nil && c.Flags().Lookup(flag) != nil }
	if text := called[name]; text != "" && !has(name) {
		return text
	}
	words := strings.Split(strings.ReplaceAll(strings.TrimSuffix(name, "_ns"), "_", "-"), ".")
	for _, flag := range []string{strings.Join(words, "-"), words[len(words)-1], words[0]} {
		if has(flag) {
			return "--" + flag
		}
	}
	return operator.Elsewhere(name)
}

// A worded replaces the text of the error that it wraps.
type worded struct {
	error

	text string
}

func (w worded) Error() string { return w.text }
func (w worded) Unwrap() error { return w.error }

// A given wraps the value of a flag, and returns an error if the flag is given twice. It also
// refuses empty and zero values that have the same effect as no flag. Without this, a script's
// unset variable could make a command change more than intended.
type given struct {
	pflag.Value

	name  string
	twice bool // whether a second value may replace the first one
	set   bool
}

var (
	mayBeEmpty = []string{"namespace", "database", "reason"}
	// mayReplace lists the flags that may be given twice; the last value counts. An alias in the
	// user's shell may contain one of these flags, and the user may then add another value.
	mayReplace = []string{"service", "token-command", "straight", "target", "task-account", "project", "database",
		"output", "reason"}
	mayNotBeZero = []string{"page-size", "expected-workers", "concurrency", "failure-limit", "per-entity", "attempts",
		"page-time", "entity-timeout"}
)

// guardFlags wraps the values of all flags of a command and its subcommands in a given. It leaves
// out boolean flags, and flags that may be repeated.
func guardFlags(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if _, several := f.Value.(pflag.SliceValue); !several && f.Value.Type() != "bool" {
			f.Value = &given{Value: f.Value, name: f.Name, twice: slices.Contains(mayReplace, f.Name)}
		}
	})
	for _, sub := range c.Commands() {
		guardFlags(sub)
	}
}

func (g *given) Set(text string) error {
	switch {
	case text == "" && !slices.Contains(mayBeEmpty, g.name):
		return errors.New("it is empty: give it a value, or leave the flag out")
	case g.set && !g.twice:
		return errors.New("the flag is given twice")
	}
	switch err := g.Value.Set(text); {
	case errors.Is(err, strconv.ErrRange):
		return errors.New("it is out of range")
	case errors.Is(err, strconv.ErrSyntax) && g.Type() == "float64":
		return errors.New("it has to be a number")
	case err != nil && g.Type() == "duration":
		return errors.New("it has to be a time such as 90s or 2h")
	case errors.Is(err, strconv.ErrSyntax):
		return errors.New("it has to be a whole number")
	case err != nil:
		return err
	}
	g.set = true
	switch value := g.String(); {
	case g.Type() == "float64" && slices.Contains([]string{"NaN", "+Inf", "-Inf"}, value):
		return errors.New("it has to be a finite number")
	case slices.Contains([]string{"0", "0s"}, value) && slices.Contains(mayNotBeZero, g.name):
		if g.name == "failure-limit" {
			return errors.New("it has to be more than 0, or -1 for no limit")
		}
		return errors.New("it has to be more than 0")
	}
	return nil
}
