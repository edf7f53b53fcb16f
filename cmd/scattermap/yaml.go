package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// toYAML converts JSON to YAML that every reader understands in the same way. It keeps the order of
// names. A reader of YAML 1.1, for example, parses no and on as booleans, and 12:30:45 as a number.
// So toYAML quotes each string that some reader could parse as another type.
func toYAML(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	w := &yamlWriter{Decoder: d}
	if err := w.value(0, ""); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// A yamlWriter converts a stream of JSON to YAML.
type yamlWriter struct {
	*json.Decoder
	out bytes.Buffer
}

// value converts the next value. It first writes the text in the parameter before: an indentation,
// and a name with a colon, or a dash. A value of one line follows on the same line.
func (w *yamlWriter) value(depth int, before string) error {
	token, err := w.Token()
	if err != nil {
		return err
	}
	switch token := token.(type) {
	case json.Delim:
		return w.block(token, depth, before)
	case string:
		w.line(before, yamlText(token))
	case json.Number:
		w.line(before, yamlNumber(token.String()))
	default: // null or a boolean
		text, err := json.Marshal(token)
		if err != nil {
			return err
		}
		w.line(before, string(text))
	}
	return nil
}

func (w *yamlWriter) line(before, text string) {
	if before != "" && !strings.HasSuffix(before, " ") {
		before += " "
	}
	fmt.Fprintf(&w.out, "%s%s\n", before, text)
}

// block converts the rest of an object or an array. The caller has already read the opening
// delimiter open. Like value, block first writes the text in the parameter before.
func (w *yamlWriter) block(open json.Delim, depth int, before string) error {
	if !w.More() {
		w.line(before, map[json.Delim]string{'{': "{}", '[': "[]"}[open])
		_, err := w.Token()
		return err
	}
	indent := strings.Repeat("  ", depth)
	inItem := strings.HasSuffix(before, "- ") // the first line of the block follows the dash
	if before != "" && !inItem {
		w.out.WriteString(before + "\n")
	}
	for first := true; w.More(); first = false {
		lead := indent
		if first && inItem {
			lead = before
		}
		if open == '[' {
			lead += "- "
		} else {
			name, err := w.Token()
			if err != nil {
				return err
			}
			lead += yamlText(name.(string)) + ":"
		}
		if err := w.value(depth+1, lead); err != nil {
			return err
		}
	}
	_, err := w.Token()
	return err
}

// plainYAML matches strings that need no quotes in any version of YAML: words of letters, digits
// and a few signs. The words in wordsYAML are exceptions.
var plainYAML = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*$`)

// wordsYAML has words that some version of YAML reads as booleans or null.
var wordsYAML = map[string]bool{"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true, "true": true,
	"false": true, "null": true}

func yamlText(s string) string {
	if plainYAML.MatchString(s) && !wordsYAML[strings.ToLower(s)] {
		return s
	}
	b := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case strconv.IsPrint(r):
			b = append(b, string(r)...)
		case r > 0xffff:
			b = fmt.Appendf(b, `\U%08x`, r)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return string(append(b, '"'))
}

// yamlNumber converts a number from JSON to a form that every version of YAML parses as a number. A
// float with an exponent gets a decimal point, because YAML 1.1 requires one.
func yamlNumber(s string) string {
	mantissa, power, floats := strings.Cut(strings.ToLower(s), "e")
	if !floats {
		return s
	}
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if power[0] != '-' && power[0] != '+' {
		power = "+" + power
	}
	return mantissa + "e" + power
}
