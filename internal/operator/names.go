package operator

import (
	"encoding/csv"
	"errors"
	"io"
	"strings"
)

// JoinNames returns names as a text that [NameList] parses.
func JoinNames(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		var text strings.Builder
		out := csv.NewWriter(&text)
		_ = out.Write([]string{name}) // can't fail: a strings.Builder takes everything
		out.Flush()
		all[i] = strings.TrimSuffix(text.String(), "\n")
	}
	return strings.Join(all, ", ")
}

// NameList parses names with commas between them, in the form of a line of CSV. It removes white
// space around names.
func NameList(text string) ([]string, error) {
	in := csv.NewReader(strings.NewReader(text))
	in.TrimLeadingSpace = true
	all, err := in.Read()
	if err == nil {
		_, err = in.Read() // at the end of the first line, so that no names are left out
	}
	if all == nil || !errors.Is(err, io.EOF) {
		return nil, errors.New(`it has to be names with commas between them; a name with a comma or a quote is ` +
			`written as "a,b" or "say ""hi"""`)
	}
	for i, name := range all {
		all[i] = strings.TrimSpace(name)
	}
	return all, nil
}

// NameText returns a name in the form that [NameList] reads: in quotes if necessary.
func NameText(name string) string {
	if name != "" && !strings.ContainsAny(name, ",\"\n\r") {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
