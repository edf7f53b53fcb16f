package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// tree returns the record of a job that has ended, and the records of its ranges. These are the
// root (the first range), four ranges that were cut off, and the range of an entity that was
// retried and failed.
func tree(t *testing.T) (*record.Job, []*record.Range) {
	t.Helper()
	j := &record.Job{ID: "j", Mapper: "m", PageSize: 100, Created: noon}
	j.Incarnate(1)
	r := j.RootRange()
	all := []*record.Range{r}
	end := r.End
	for _, id := range []int64{80, 60, 40, 20} {
		c := r.Child(split.Piece{Start: at(id), End: end}, noon)
		c.Entities, c.Processed, c.Full = 20, 20, id == 40
		c.Counters, c.Keys = fmt.Appendf(nil, `{"seen":20,"%d":1}`, id), record.KeysDigest(nil)
		all, end = append(all, c), c.Start
	}
	r.End = end
	failed := r.AloneChild(at(12), 5, false, noon)
	r.Entities, r.Processed, r.Recorded, r.Single = 19, 18, 1, failed.SingleSum().Bytes()
	for _, r := range all {
		r.Finish(noon)
	}
	failed.Fail(fmt.Errorf("no"), noon)
	all = append(all, failed)
	sum := new(Ledger)
	for _, r := range all {
		if err := sum.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	sum.Close(j)
	if err := j.Succeed(sum.Totals, noon); err != nil {
		t.Fatal(err)
	}
	return j, all
}

// TestTotals checks that records added up in any order and in any parts give the same totals.
func TestTotals(t *testing.T) {
	j, all := tree(t)
	rng := testflag.Rand(t)
	for range 20 {
		var parts [3]Ledger
		for _, i := range rng.Perm(len(all)) {
			if err := parts[rng.IntN(3)].Add(all[i]); err != nil {
				t.Fatal(err)
			}
		}
		parts[0].Merge(&parts[1])
		parts[0].Merge(&parts[2])
		parts[0].Close(j)
		parts[0].CheckEnd(j)
		if err := parts[0].Err(); err != nil {
			t.Error(err)
		}
		sum, err := json.Marshal(parts[0].Totals)
		if err != nil || string(sum) != string(j.Totals) ||
			!maps.Equal(parts[0].Counters, map[string]int64{"seen": 80, "20": 1, "40": 1, "60": 1, "80": 1}) {
			t.Errorf("%s, %v, want %s", sum, err, j.Totals)
		}
	}
	want := `"processed":98,"failures":1,"pages":5,"full_pages":1,"ranges":6,"tasks":5,"pending":0,"depth":1`
	if !strings.Contains(string(j.Totals), want) {
		t.Errorf("%s, want %s", j.Totals, want)
	}
}

// TestLedger changes one value in a job's records at a time, and checks that the ledger reports a
// problem.
func TestLedger(t *testing.T) {
	reseal := func(r *record.Range) { r.Seal = r.Digest() }
	for name, change := range map[string]func(j *record.Job, all []*record.Range) []*record.Range{
		"a record is missing": func(_ *record.Job, all []*record.Range) []*record.Range { return all[:5] },
		"a record comes twice": func(_ *record.Job, all []*record.Range) []*record.Range {
			return append(all, all[2])
		},
		"the job has no ranges": func(*record.Job, []*record.Range) []*record.Range { return nil },
		"a boundary is moved": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Start = at(61)
			reseal(all[2])
			return all
		},
		"two are moved": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Start, all[3].End = at(61), at(61)
			return all
		},
		"a range is behind its end": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Start, all[2].End = all[2].End, all[2].Start
			reseal(all[2])
			return all
		},
		"another entity": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[5].Start = at(13)
			reseal(all[5])
			return all
		},
		"a number": func(_ *record.Job, all []*record.Range) []*record.Range { all[2].Processed--; return all },
		"a number, and its seal": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Processed--
			reseal(all[2])
			return all
		},
		"more than there were": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Processed++
			reseal(all[2])
			return all
		},
		"what was written": func(_ *record.Job, all []*record.Range) []*record.Range { all[2].Written++; return all },
		"more than was processed": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Written = 30
			reseal(all[2])
			return all
		},
		"a counter": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Counters = []byte(`{"seen":20}`)
			reseal(all[2])
			return all
		},
		"a range is pending": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].State, all[2].Open = record.Pending, "j"
			return all
		},
		"its mark is another": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Open = "j"
			return all
		},
		"a failure is forgotten": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[5].Failed, all[5].Error = "", ""
			reseal(all[5])
			return all
		},
		"a delivery has not ended": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Begun = "d"
			return all
		},
		"too many children": func(_ *record.Job, all []*record.Range) []*record.Range {
			all[2].Children = 1 << 40
			reseal(all[2])
			return all
		},
		"the mapper is another": func(j *record.Job, all []*record.Range) []*record.Range {
			j.Mapper = "n"
			return all
		},
		"the state is another": func(j *record.Job, all []*record.Range) []*record.Range {
			j.State = record.Succeeded
			return all
		},
		"failures are being tried": func(j *record.Job, all []*record.Range) []*record.Range {
			j.Retrying = true
			return all
		},
		"its finalizer did not run": func(j *record.Job, all []*record.Range) []*record.Range {
			j.Finalizes, j.Finalized = true, j.Epoch-1
			return all
		},
		"the totals are others": func(j *record.Job, all []*record.Range) []*record.Range {
			j.Totals = []byte(`{"processed":97,"failures":1,"ranges":6}`)
			return all
		},
	} {
		j, all := tree(t)
		l := new(Ledger)
		for _, r := range change(j, all) {
			if err := l.Add(r); err != nil {
				t.Fatal(err)
			}
		}
		l.Close(j)
		l.CheckEnd(j)
		if err := l.Err(); err == nil {
			t.Errorf("%s: nothing is wrong", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// TestScaled extrapolates from a part of the records to all of them.
func TestScaled(t *testing.T) {
	sum := Sum{Totals: record.Totals{Processed: 10, Failures: 1, Ranges: 5, Depth: 3,
		Counters: map[string]int64{"a": -4},
		Spaces:   map[string]record.SpaceTotals{"/K": {Processed: 3}}}}
	sum.Scale(2.5)
	if sum.Processed != 25 || sum.Failures != 3 || sum.Ranges != 13 || sum.Depth != 3 || sum.Counters["a"] != -10 ||
		sum.Spaces["/K"].Processed != 8 {
		t.Errorf("%+v", sum)
	}
}

// TestBoundedSpaces checks that totals by kind and namespace are dropped if they do not fit in the
// job's record.
func TestBoundedSpaces(t *testing.T) {
	for n, want := range map[int]int{10: 10, maxSpaces: maxSpaces, maxSpaces + 7: maxSpaces} {
		sum := Sum{}
		for i := range n {
			sum.addSpace(fmt.Sprint("/", i), record.SpaceTotals{Processed: 1})
		}
		if sum.bound(); len(sum.Spaces) != want || sum.SpacesLeftOut != n-want {
			t.Errorf("%d of %d spaces, and %d left out", len(sum.Spaces), n, sum.SpacesLeftOut)
		}
	}
}
