package ledger

import (
	"errors"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 123456789, time.UTC)

func at(id int64) *keyspace.Position { return keyspace.At(datastore.IDKey("K", id, nil)) }

// family returns the record of a job that has ended, and the records of three ranges: a page, the
// rest after it, and an entity that has failed.
func family(t *testing.T) (*record.Job, []*record.Range) {
	t.Helper()
	j := &record.Job{ID: "j", Mapper: "m", PageSize: 100, Created: noon, Generation: 2,
		State: record.SucceededWithFailures}
	j.Incarnate(1)
	root := j.RootRange()
	rest := root.Child(split.Piece{Start: at(15), Estimate: 5}, noon)
	alone := root.AloneChild(at(12), 1, false, noon)
	root.End = rest.Start
	root.Single = alone.SingleSum().Bytes()
	root.Entities, root.Processed, root.Written, root.Recorded = 5, 4, 4, 1
	rest.Entities, rest.Processed, rest.Written = 3, 3, 3
	all := []*record.Range{root, rest, alone}
	root.Finish(noon)
	rest.Finish(noon)
	alone.Fail(errors.New("no"), noon)
	for _, r := range all {
		r.Stored = r.Key()
	}
	l := ledgerOf(t, j, all)
	if err := l.RecordIn(j); err != nil {
		t.Fatal(err)
	}
	return j, all
}

func ledgerOf(t *testing.T, j *record.Job, all []*record.Range) *Ledger {
	t.Helper()
	l := new(Ledger)
	for _, r := range all {
		if err := l.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	l.Close(j)
	return l
}

// TestDamagedRecords changes one value in a job's records at a time. It does so once with the old
// seal (the record's hash), and once with a new one. It checks which problem the ledger reports.
func TestDamagedRecords(t *testing.T) {
	const root, rest, alone = 0, 1, 2
	for name, test := range map[string]struct {
		of     int
		change func(*record.Range)
		// part of the problem's text; empty: no problem
		want string
	}{
		"nothing": {root, func(*record.Range) {}, ""},
		"stored as another": {rest, func(r *record.Range) {
			r.Stored = record.RangeKey(record.Ref{}, "x")
		}, "is stored as"},
		"not known as what":        {rest, func(r *record.Range) { r.Stored = nil }, ""},
		"fewer children than none": {rest, func(r *record.Range) { r.Children = -1 }, "has -1 children"},
		"more children than any":   {rest, func(r *record.Range) { r.Children = maxChildren + 1 }, "children"},
		"a longer ID":              {rest, func(r *record.Range) { r.ID += "0" }, "is missing"},
		"one child more":           {rest, func(r *record.Range) { r.Children++ }, "is missing"},
		"another state":            {rest, func(r *record.Range) { r.State = "new" }, `in the state "new"`},
		"abandoned": {rest, func(r *record.Range) { r.State, r.Open = record.Abandoned, "" },
			"is in the state"},
		"pending without its mark":   {rest, func(r *record.Range) { r.State = record.Pending }, "its mark is"},
		"done with the mark":         {rest, func(r *record.Range) { r.Open = "j" }, "its mark is"},
		"done with another's mark":   {rest, func(r *record.Range) { r.Open = "k" }, "its mark is"},
		"an error and no failure":    {rest, func(r *record.Range) { r.Error = "no" }, "mark as a failure"},
		"a failure without an error": {alone, func(r *record.Range) { r.Error = "" }, "mark as a failure"},
		"another's failure":          {alone, func(r *record.Range) { r.Failed = "k" }, "mark as a failure"},
		"another's failure and no error": {alone, func(r *record.Range) {
			r.Failed, r.Error = "k", ""
		}, "mark as a failure"},
		"a failure of many": {rest, func(r *record.Range) { r.Failed, r.Error = "j", "no" }, "mark as a failure"},
		"a failure that is pending": {alone, func(r *record.Range) {
			r.State, r.Open = record.Pending, "j"
		}, "mark as a failure"},
		"turned round":                   {root, func(r *record.Range) { r.Start = at(16) }, "ends before that"},
		"of nothing":                     {root, func(r *record.Range) { r.Start = at(15) }, "do not tile"},
		"a single one without its place": {alone, func(r *record.Range) { r.Start = nil }, "and names none"},
		"a single one without its key": {alone, func(r *record.Range) {
			r.Start = &keyspace.Position{}
		}, "and names none"},
		"a failure that was processed": {alone, func(r *record.Range) { r.Processed = 1 },
			"had 1 entities, but 1 were processed, and 1 failed"},
		"pending after the end": {rest, func(r *record.Range) {
			r.State, r.Open = record.Pending, "j"
		}, "and 1 ranges are pending"},
		"another single one": {alone, func(r *record.Range) { r.Start = at(13) },
			"has another entity than its page recorded"},
		"begun":           {rest, func(r *record.Range) { r.Begun = "d" }, "has started it and not ended"},
		"done at no time": {rest, func(r *record.Range) { r.Done = time.Time{} }, "has started it and not ended"},
		"fewer processed than none": {rest, func(r *record.Range) {
			r.Processed, r.Written = -1, -1
		}, "had 3 entities, but -1"},
		"fewer failures than none": {rest, func(r *record.Range) { r.Retries = -1; r.Children = 0 },
			"and -1 failed"},
		"more than there were":        {rest, func(r *record.Range) { r.Processed = 4 }, "had 3 entities, but 4"},
		"fewer written than none":     {rest, func(r *record.Range) { r.Written = -1 }, "has written -1"},
		"more written than processed": {rest, func(r *record.Range) { r.Written = 4 }, "has written 4"},
		"fewer processed": {rest, func(r *record.Range) {
			r.Processed, r.Written = 2, 2
		}, "the totals of the job are"},
		"fewer written": {rest, func(r *record.Range) { r.Written = 2 }, "written entities of the job's totals"},
		"another start": {rest, func(r *record.Range) { r.Start = at(16) }, "do not tile"},
		"no start":      {rest, func(r *record.Range) { r.Start = nil }, "do not tile"},
		"an end":        {rest, func(r *record.Range) { r.End = at(20) }, "do not tile"},
	} {
		t.Run(name, func(t *testing.T) {
			j, all := family(t)
			r := all[test.of]
			test.change(r)
			r.Seal = r.Digest()
			l := ledgerOf(t, j, all)
			l.CheckEnd(j)
			said := strings.Join(l.Problems, "\n")
			if test.want == "" && said != "" || !strings.Contains(said, test.want) {
				t.Errorf("it says %q, want %q", said, test.want)
			}
			if (l.Err() == nil) != (test.want == "") {
				t.Errorf("its error is %v", l.Err())
			}
		})
	}
	j, all := family(t)
	all[rest].Processed, all[rest].Written = 2, 2
	if l := ledgerOf(t, j, all); !strings.Contains(strings.Join(l.Problems, "\n"), "does not match its seal") {
		t.Errorf("a broken seal: %q", l.Problems)
	}
}

// TestDamagedJob changes the record of a job that has ended. The records of its ranges are right.
func TestDamagedJob(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*record.Job)
		want   string
	}{
		"another mapper":             {func(j *record.Job) { j.Mapper = "n" }, "mapper, query or params"},
		"other parameters":           {func(j *record.Job) { j.Params = []byte("1") }, "mapper, query or params"},
		"it retries":                 {func(j *record.Job) { j.Retrying = true }, "being retried"},
		"a finalizer without effect": {func(j *record.Job) { j.Finalizes, j.Epoch = true, 1 }, "finalizer"},
		"a finalizer of later":       {func(j *record.Job) { j.Finalizes, j.Finalized = true, 1 }, "finalizer"},
		"no finalizer":               {func(j *record.Job) { j.Epoch = 1 }, ""},
		"a finalizer":                {func(j *record.Job) { j.Finalizes, j.Finalized, j.Epoch = true, 1, 1 }, ""},
		"no failures":                {func(j *record.Job) { j.State = record.Succeeded }, "and 1 failures"},
		"it failed":                  {func(j *record.Job) { j.State, j.Retrying = record.Failed, true }, ""},
		"it runs":                    {func(j *record.Job) { j.State, j.Retrying = record.Running, true }, ""},
		"no totals":                  {func(j *record.Job) { j.Totals = nil }, "the totals of the job"},
	} {
		t.Run(name, func(t *testing.T) {
			j, all := family(t)
			test.change(j)
			l := ledgerOf(t, j, all)
			l.CheckEnd(j)
			said := strings.Join(l.Problems, "\n")
			if test.want == "" && said != "" || !strings.Contains(said, test.want) {
				t.Errorf("it says %q, want %q", said, test.want)
			}
		})
	}
	for _, change := range []func(*record.Totals){
		func(s *record.Totals) { s.Processed++ }, func(s *record.Totals) { s.Processed-- },
		func(s *record.Totals) { s.Ranges++ }, func(s *record.Totals) { s.Ranges-- },
		func(s *record.Totals) { s.Failures++ }, func(s *record.Totals) { s.Failures-- },
	} {
		j, all := family(t)
		sum, err := j.RecordedTotals()
		if err != nil {
			t.Fatal(err)
		}
		change(&sum)
		if err := sum.RecordIn(j); err != nil {
			t.Fatal(err)
		}
		l := ledgerOf(t, j, all)
		if l.CheckEnd(j); !strings.Contains(strings.Join(l.Problems, "\n"), "the totals of the job are") {
			t.Errorf("other totals: %q", l.Problems)
		}
	}
}

// TestManyProblems checks that a ledger counts the problems that it does not list.
func TestManyProblems(t *testing.T) {
	var l, sum Ledger
	for range MaxProblems + 3 {
		l.Problem("something is wrong")
	}
	sum.Merge(&l)
	if err := sum.Err(); len(sum.Problems) != MaxProblems || !strings.Contains(err.Error(), "problem 1 of 23") {
		t.Errorf("%d are listed: %v", len(sum.Problems), err)
	}
}
