package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf16"

	"github.com/spf13/pflag"
)

// An output is a format of what a command prints.
type output string

const (
	table     output = "table"
	asJSON    output = "json"
	asYAML    output = "yaml"
	allOutput        = "table, json or yaml"
)

// outputFlag defines the flag that chooses one.
func outputFlag(flags *pflag.FlagSet) *output {
	o := table
	flags.VarP(&o, "output", "o", "the `format` of what is printed: "+allOutput)
	return &o
}

// String, Set and Type make it a flag's value.
func (o *output) String() string { return string(*o) }

// Set sets it.
func (o *output) Set(s string) error {
	switch output(s) {
	case table, asJSON, asYAML:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("it has to be %s", allOutput)
}

// Type names it.
func (o *output) Type() string { return "format" }

// write writes a value as JSON or YAML: with the names of its JSON in both.
func (o *output) write(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil || *o == asJSON {
		if err == nil {
			_, err = fmt.Fprintln(w, escaped(string(text)))
		}
		return err
	}
	if text, err = toYAML(text); err == nil {
		_, err = w.Write(text)
	}
	return err
}

// escaped escapes the characters of JSON that a terminal would act on or hide, as in \u009b.
// encoding/json escapes only those below a blank.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < 0x7f || strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// rows writes lines of columns.
func rows(w io.Writer, all ...[]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range all {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}
