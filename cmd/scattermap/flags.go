package main

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// jsonName matches how an answer of the jobs API names a setting, if no word of a user is like it.
var jsonName = regexp.MustCompile(`"[a-z]+(?:[._][a-z]+)+"`)

// inFlags has an error name settings as the command line does, where the command has a flag for
// them: "page_size" is --page-size, and "rate.entities" --rate.
func inFlags(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	text := jsonName.ReplaceAllStringFunc(err.Error(), func(found string) string {
		name, _, _ := strings.Cut(strings.Trim(found, `"`), ".")
		name = strings.ReplaceAll(strings.TrimSuffix(name, "_ns"), "_", "-")
		if c.Flags().Lookup(name) == nil {
			return found
		}
		return "--" + name
	})
	return worded{err, text}
}

// A worded error is another one in other words.
type worded struct {
	error

	text string
}

func (w worded) Error() string { return w.text }
func (w worded) Unwrap() error { return w.error }
