package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
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
			_, err = fmt.Fprintln(w, string(text))
		}
		return err
	}
	var node yaml.Node // YAML is a superset of JSON, and the order of the names stays
	if err := yaml.Unmarshal(text, &node); err != nil {
		return err
	}
	plain(&node)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&node); err != nil {
		return err
	}
	return e.Close()
}

// plain has a node be written in YAML's own style, and not in JSON's.
func plain(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		plain(c)
	}
}

// rows writes lines of columns.
func rows(w io.Writer, all ...[]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range all {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// grouped writes a number with its thousands apart.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counted writes a number of things.
func counted(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + several
}

// ago writes how long ago a time was.
func ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

// line returns a text that may be anybody's in one line, without what a terminal would act on, and cut off.
func line(s string, most int) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x200e && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if runes := []rune(clean); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return clean
}
