package main

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/setting"
)

// naming returns an error whose text is the parts in order. Every second part is a setting's name
// in JSON, which inFlags can replace.
func naming(parts []string) error {
	args := make([]any, len(parts))
	for i, p := range parts {
		if args[i] = p; i%2 == 1 {
			args[i] = setting.Name(p)
		}
	}
	return setting.Errorf(strings.Repeat("%s", len(parts)), args...)
}

// jsonName matches a setting's name in an error of the jobs API: words in quotes, joined by dots or
// underscores. A name of one word is not matched, because a user's text may look like that.
var jsonName = regexp.MustCompile(`"[a-z]+(?:[._][a-z]+)+"`)

// partsOf makes an error of an answer's text. It finds the settings' names by their form, because
// older services do not mark them.
func partsOf(text string) error {
	var parts []string
	from := 0
	for _, at := range jsonName.FindAllStringIndex(text, -1) {
		parts = append(parts, text[from:at[0]], text[at[0]+1:at[1]-1])
		from = at[1]
	}
	return naming(append(parts, text[from:]))
}

// inFlags returns an error that names settings by their flags: page_size becomes --page-size, and
// rate.entities becomes --rate. The command c has the flags; the screen passes nil.
func inFlags(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return worded{err, operator.Say(err, func(name string) string { return flagOf(c, name) })}
}

// called has the flags of settings whose flags have other names.
var called = map[string]string{
	"-1": "always", "filters": "--filter", "start": "--filter", "end": "--filter", "ancestor": "--filter",
	"entities": "the rate", "move": `"scattermap move"`, "retry": `"scattermap retry"`,
	"failures": `"scattermap failures"`, "params.files": `"files" in --params`,
}

// flagOf returns the flag for a setting's name in JSON. For "rate.ramp" it tries the flag of both
// words, then that with the last word, then that with the first.
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

// A worded is an error whose text was replaced.
type worded struct {
	error

	text string
}

func (w worded) Error() string { return w.text }
func (w worded) Unwrap() error { return w.error }
