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

// TestDiagnosis damages the records of a job in every way that changes a sum of the ledger. It
// checks which problems are reported.
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
		"a record is missing, and a single entity is there": {func(all []*record.Range) []*record.Range {
			parent := *all[99]
			parent.Children, all[99] = 1, &parent
			alone := &record.Range{ID: record.RangeID(all[99].ID, 0), Alone: true, Start: all[100].Start}
			return append(slices.Delete(all, 100, 101), alone)
		}, []string{
			"range " + whole[100].ID + " of range " + root.ID + " is missing",
			"at " + fmt.Sprint(whole[100].Start) + ` the ranges ["` + whole[101].ID + `"] end, and the ranges [] start`,
			"at " + fmt.Sprint(whole[99].Start) + ` the ranges [] end, and the ranges ["` + whole[99].ID + `"] start`,
		}},
		"there is none": {func([]*record.Range) []*record.Range { return nil },
			[]string{"range " + root.ID + " of the job is missing"}},
		"the last one is missing": {func(all []*record.Range) []*record.Range {
			return slices.Delete(all, 1, 2)
		}, []string{
			"range " + whole[1].ID + " of range " + root.ID + " is missing",
			"at " + fmt.Sprint(whole[1].Start) + ` the ranges ["` + whole[2].ID + `"] end, and the ranges [] start`,
		}},
		"one is nobody's": {func(all []*record.Range) []*record.Range {
			return append(all, &record.Range{ID: "!nobody's", Start: whole[7].Start, End: whole[7].End})
		}, []string{
			"range !nobody's has no parent",
			"at " + fmt.Sprint(whole[7].Start) + ` the ranges ["` + whole[8].ID +
				`"] end, and the ranges ["!nobody's" "` + whole[7].ID + `"] start`,
			"at " + fmt.Sprint(whole[7].End) + ` the ranges ["!nobody's" "` + whole[7].ID +
				`"] end, and the ranges ["` + whole[6].ID + `"] start`,
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
		if held := len(d.found) + len(d.made) + len(d.places); held > 20 || name == "nothing" && held > 0 {
			t.Errorf("%s: it holds %d of %d", name, held, n)
		}
	}
}

// TestReport checks which places are reported, and in which order.
func TestReport(t *testing.T) {
	at := func(n int64) *keyspace.Position { return keyspace.At(datastore.IDKey("K", n, nil)) }
	for range 10 { // repeated, because the order of places in the map is random
		d := newDiagnosis(&record.Job{ID: "j"})
		d.places = map[string]*place{
			"fine":       {at(1), []string{"a"}, []string{"b"}},
			"fine again": {at(2), []string{"a", "b"}, []string{"c", "d"}},
			"start":      {nil, []string{"b"}, nil},
			"end":        {nil, nil, []string{"d"}},
			"a gap":      {at(4), []string{"b"}, []string{"d", "c"}},
			"an overlap": {at(3), []string{"b", "a"}, []string{"c"}},
			"no start":   {nil, nil, nil},
		}
		l := new(Ledger)
		d.report(l)
		if want := []string{
			"an end of the query must have one range, and has these: []",
			"at " + fmt.Sprint(at(3)) + ` the ranges ["c"] end, and the ranges ["a" "b"] start`,
			"at " + fmt.Sprint(at(4)) + ` the ranges ["c" "d"] end, and the ranges ["b"] start`,
		}; !slices.Equal(l.Problems, want) {
			t.Errorf("%q, want %q", l.Problems, want)
		}
	}
}

// TestChoose checks that a diagnosis selects at most MaxProblems buckets.
func TestChoose(t *testing.T) {
	for n, want := range map[int]int{0: 0, 5: 5, 10 * MaxProblems: MaxProblems} {
		b := new(balance)
		for i := range n {
			b.buckets[100*i] = 1
		}
		if b.choose(); len(b.wrong) != want {
			t.Errorf("%d of %d are chosen, want %d", len(b.wrong), n, want)
		}
	}
}
