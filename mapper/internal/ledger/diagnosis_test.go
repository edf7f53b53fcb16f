package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// TestDiagnosis damages the records of a job in every way that its sums show, and checks the
// problems that are reported.
func TestDiagnosis(t *testing.T) {
	at := func(n int) *keyspace.Position {
		return &keyspace.Position{Key: datastore.NameKey("K", fmt.Sprintf("%04d", n), nil)}
	}
	job := &record.Job{ID: "j"}
	job.Incarnate(1)
	root := job.RootRange()
	whole := []*record.Range{root}
	const n = 3000
	for i := n; i > 0; i-- {
		end := root.End
		root.End = at(i)
		whole = append(whole, root.Child(split.Piece{Start: at(i), End: end}, time.Now()))
	}
	for name, c := range map[string]struct {
		damage func(all []*record.Range) []*record.Range
		want   []string
	}{
		"nothing": {func(all []*record.Range) []*record.Range { return all }, nil},
		"a record is missing": {func(all []*record.Range) []*record.Range {
			return slices.Delete(all, 100, 101)
		}, []string{
			"range " + whole[100].ID + " of range " + root.ID + " is missing",
			"at " + fmt.Sprint(whole[100].Start) + ` the ranges ["` + whole[101].ID + `"] end, and the ranges [] start`,
			"at " + fmt.Sprint(whole[99].Start) + ` the ranges [] end, and the ranges ["` + whole[99].ID + `"] start`,
		}},
		"the last one is missing": {func(all []*record.Range) []*record.Range {
			return slices.Delete(all, 1, 2)
		}, []string{
			"range " + whole[1].ID + " of range " + root.ID + " is missing",
			"at " + fmt.Sprint(whole[1].Start) + ` the ranges ["` + whole[2].ID + `"] end, and the ranges [] start`,
		}},
		"one is nobody's": {func(all []*record.Range) []*record.Range {
			return append(all, &record.Range{ID: "nobody's", Start: whole[7].Start, End: whole[7].End})
		}, []string{
			"range nobody's has no parent",
			"at " + fmt.Sprint(whole[7].Start) + ` the ranges ["` + whole[8].ID + `"] end, and the ranges ["` +
				whole[7].ID + `" "nobody's"] start`,
			"at " + fmt.Sprint(whole[7].End) + ` the ranges ["` + whole[7].ID +
				`" "nobody's"] end, and the ranges ["` + whole[6].ID + `"] start`,
		}},
		"two begin the query": {func(all []*record.Range) []*record.Range {
			other := *all[9]
			other.Start = nil
			all[9] = &other
			return all
		}, []string{
			`an end of the query must have one range, and has these: ["` + min(root.ID, whole[9].ID) + `" "` +
				max(root.ID, whole[9].ID) + `"]`,
			"at " + fmt.Sprint(whole[9].Start) + ` the ranges ["` + whole[10].ID + `"] end, and the ranges [] start`,
		}},
	} {
		d := newDiagnosis(job)
		all := c.damage(slices.Clone(whole))
		for _, r := range all {
			d.weigh(r)
		}
		d.choose(job)
		for _, r := range all {
			d.look(r)
		}
		l := new(Ledger)
		d.report(l)
		if !slices.Equal(l.Problems, c.want) {
			t.Errorf("%s: %s\nwant %s", name, strings.Join(l.Problems, "\n"), strings.Join(c.want, "\n"))
		}
		if held := len(d.found) + len(d.made) + len(d.places); held > 20 {
			t.Errorf("%s: it holds %d of %d", name, held, n)
		}
	}
}
