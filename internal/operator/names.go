package operator

import (
	"encoding/csv"
	"errors"
	"strings"
)

// NameList parses names with commas between them, in the form of a line of CSV. It removes white
// space around names.
func NameList(text string) ([]string, error) {
	in := csv.NewReader(strings.NewReader(text))
	in.TrimLeadingSpace = true
	all, err := in.Read()
	if err != nil {
		return nil, errors.New("it has to be names with commas between them")
	}
	for i, name := range all {
		all[i] = strings.TrimSpace(name)
	}
	return all, nil
}
