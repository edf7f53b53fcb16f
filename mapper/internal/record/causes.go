package record

import (
	"cmp"
	"slices"
)

// A Cause is a group of failures of a job whose errors have the same text, up to names and numbers.
type Cause struct {
	Text      string
	Count     int64
	Estimated bool // Count is extrapolated, because not all failures were read
	Example   *Range
}

// Causes groups failures by their cause, the most frequent one first. If all, the number of the
// job's failures, is more than were read, the counts are extrapolated.
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
