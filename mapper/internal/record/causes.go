package record

import (
	"cmp"
	"slices"
)

// A Cause is what some failures of a job have in common.
type Cause struct {
	Text      string
	Count     int64
	Estimated bool // Count is an estimate, as not all failures were read
	Example   *Range
}

// Causes groups the failures of a job, of which there are so many altogether, by what their errors
// have in common: the most frequent first.
func Causes(failed []*Range, all int64) (causes []Cause) {
	at := make(map[string]int)
	for _, r := range failed {
		text := r.Cause()
		i, known := at[text]
		if !known {
			i, at[text] = len(causes), len(causes)
			causes = append(causes, Cause{Text: text, Estimated: all > int64(len(failed)), Example: r})
		}
		causes[i].Count++
	}
	for i := range causes {
		causes[i].Count = causes[i].Count * all / int64(len(failed))
	}
	slices.SortStableFunc(causes, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Text, b.Text))
	})
	return causes
}
