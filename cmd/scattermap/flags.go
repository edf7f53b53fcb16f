package main

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/setting"
)

// naming returns an error made of parts. Each second part is the name of a setting in JSON.
func naming(parts []string) error {
	args := make([]any, len(parts))
	for i, p := range parts {
		if args[i] = p; i%2 == 1 {
			args[i] = setting.Name(p)
		}
	}
	return setting.Errorf(strings.Repeat("%s", len(parts)), args...)
}

// jsonName matches how an answer of the jobs API names a setting, if no word of a user is like it.
var jsonName = regexp.MustCompile(`"[a-z]+(?:[._][a-z]+)+"`)

// partsOf returns the error of an answer that does not say which settings it names.
func partsOf(text string) error {
	var parts []string
	from := 0
	for _, at := range jsonName.FindAllStringIndex(text, -1) {
		parts = append(parts, text[from:at[0]], text[at[0]+1:at[1]-1])
		from = at[1]
	}
	return naming(append(parts, text[from:]))
}

// inFlags has an error of a command, or of nil for a screen, name settings as the command line
// does: page_size is --page-size, and rate.entities --rate.
func inFlags(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return worded{err, operator.Say(err, func(name string) string { return flagOf(c, name) })}
}

// called are what commands call what has no flag of its name.
var called = map[string]string{
	"-1": "always", "filters": "--filter", "start": "--filter", "end": "--filter", "ancestor": "--filter",
	"entities": "the rate", "move": `"scattermap move"`, "retry": `"scattermap retry"`,
	"failures": `"scattermap failures"`, "params.files": `"files" in --params`,
}

// flagOf returns the flag for a setting's name in JSON. For "rate.ramp" it is the flag of both
// words, of the last word, or of the first.
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

// A worded is an error with another text.
type worded struct {
	error

	text string
}

func (w worded) Error() string { return w.text }
func (w worded) Unwrap() error { return w.error }
