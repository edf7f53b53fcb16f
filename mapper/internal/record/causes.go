package record

import (
	"cmp"
	"slices"
)

// A Cause is a group of a job's failures with the same error text, apart from names and numbers in
// it.
type Cause struct {
	Text      string
	Count     int64
	Estimated bool // whether Count is extrapolated, because not all failures were read
	Example   *Range
}

// Causes groups failed entities by the texts of their errors. The largest group comes first. The
// argument all is the job's number of failures. If failed has only a sample of them, the sizes of
// the groups are extrapolated.
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
