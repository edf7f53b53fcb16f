package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/scattermap/scattermap/internal/operator"
)

// An output is the format in which a command prints its result: a value of the flag --output.
type output string

const (
	table     output = "table"
	asJSON    output = "json"
	asYAML    output = "yaml"
	allOutput        = "table, json or yaml"
)

// outputFlag defines the flag --output.
func outputFlag(flags *pflag.FlagSet) *output {
	o := table
	flags.VarP(&o, "output", "o", "the output `format`: "+allOutput)
	return &o
}

// String returns the format. With Set and Type it implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Set sets the format. It returns an error for an unknown one.
func (o *output) Set(s string) error {
	switch output(s) {
	case table, asJSON, asYAML:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("it has to be %s", allOutput)
}

// Type returns the name of the flag's value in the help.
func (o *output) Type() string { return "format" }

// write prints a value as JSON or YAML. Both have the names that the value has in JSON.
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

// escaped returns a JSON text in which characters are escaped that a terminal would interpret or
// hide, such as \u009b. encoding/json escapes only the control characters below U+0020.
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

// rows prints a table. The first row has the headings. On a terminal, rows fits the table to the
// width: it leaves out empty columns, and cuts off texts in wide ones. It cuts the first column
// last, because users pass its values to other commands. If the output is no terminal, rows cuts
// nothing.
func rows(w io.Writer, all ...[]string) error {
	most := widthOf(w)
	widths := make([]int, len(all[0]))
	for n, row := range all {
		for i, cell := range row {
			if n > 0 || most == 0 {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for i, heading := range all[0] {
		if widths[i] > 0 {
			widths[i] = max(widths[i], utf8.RuneCountInString(heading))
		}
	}
	fit(widths, most)
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, row := range all {
		var cells []string
		for i, cell := range row {
			if widths[i] > 0 {
				cells = append(cells, operator.Line(cell, widths[i]))
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// gap is the number of blanks between columns.
const gap = 2

// narrowest is the smallest width to which fit narrows a column.
const narrowest = 8

// fit reduces the widths of the widest columns until a row fits into a line. The parameter most is
// the largest number of characters in a line; 0 means no limit. If all columns are narrow already,
// rows stay too wide.
func fit(widths []int, most int) {
	for most > 0 {
		sum, widest := -gap, 0
		for i, n := range widths {
			if n > 0 {
				sum += n + gap
			}
			if i > 0 && n > narrowest && (widest == 0 || n > widths[widest]) {
				widest = i
			}
		}
		if sum <= most || widths[widest] <= narrowest {
			return
		}
		widths[widest] = max(narrowest, widths[widest]-(sum-most), widths[widest]*3/4)
	}
}

// facts prints names and values, each pair on a line of its own. On a terminal it wraps long
// values.
func facts(w io.Writer, all ...[]string) error {
	first := 0
	for _, row := range all {
		first = max(first, len(row[0])+gap)
	}
	most := widthOf(w) - first
	for _, row := range all {
		lines := []string{row[1]}
		if most >= 20 {
			lines = wrapped(row[1], most)
		}
		for i, line := range lines {
			name := row[0]
			if i > 0 {
				name = ""
			}
			if _, err := fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-*s%s", first, name, line), " ")); err != nil {
				return err
			}
		}
	}
	return nil
}

// wrapped breaks a text into lines, if possible at spaces. The parameter most is the largest number
// of characters in a line.
func wrapped(text string, most int) (lines []string) {
	for rest := []rune(text); ; {
		if len(rest) <= most {
			return append(lines, string(rest))
		}
		at := most
		for at > 0 && rest[at] != ' ' {
			at--
		}
		if at == 0 {
			lines, rest = append(lines, string(rest[:most])), rest[most:]
		} else {
			lines, rest = append(lines, string(rest[:at])), rest[at+1:]
		}
	}
}

// widthOf returns the width of the terminal w, or else the value of $COLUMNS. If w is no terminal
// and $COLUMNS is not set, it returns 0.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	width, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil {
		return 0
	}
	return max(0, width)
}
