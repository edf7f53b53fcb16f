package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// TestAdd checks what each kind of record adds to the totals of a job.
func TestAdd(t *testing.T) {
	early, late := noon, noon.Add(time.Hour)
	done := func(r record.Range) record.Range {
		r.State, r.Created, r.Done = record.Done, early, late
		return r
	}
	pending := func(r record.Range) record.Range {
		r.State, r.Created = record.Pending, early
		return r
	}
	for name, c := range map[string]struct {
		r    record.Range
		want record.Totals
	}{
		"a page": {done(record.Range{Depth: 2, Processed: 3, Written: 2, Calls: 4, Conflicts: 5, Unsharded: 6}),
			record.Totals{Ranges: 1, Tasks: 1, Depth: 2, Processed: 3, Written: 2, Calls: 4, Conflicts: 5, Pages: 1,
				Unsharded: 6}},
		"a full page": {done(record.Range{Processed: 3, Full: true}), record.Totals{Ranges: 1, Tasks: 1, Processed: 3,
			Pages: 1, FullPages: 1}},
		"a page of failures":    {done(record.Range{Recorded: 1}), record.Totals{Ranges: 1, Tasks: 1, Pages: 1}},
		"a page to retry":       {done(record.Range{Retries: 1}), record.Totals{Ranges: 1, Tasks: 1, Pages: 1}},
		"a page of no entities": {done(record.Range{Kind: "K"}), record.Totals{Ranges: 1, Tasks: 1}},
		"a page in a delivery":  {done(record.Range{Continued: true}), record.Totals{Ranges: 1}},
		"a failure with a task": {done(record.Range{Alone: true, Failed: "j"}),
			record.Totals{Ranges: 1, Tasks: 1, Failures: 1}},
		"a page of one of kinds": {done(record.Range{Kind: "K", Namespace: "n", Processed: 3}),
			record.Totals{Ranges: 1, Tasks: 1, Processed: 3, Pages: 1,
				Spaces: map[string]record.SpaceTotals{"n/K": {Processed: 3}}}},
		"a failure of one of kinds": {done(record.Range{Kind: "K", Alone: true, Failed: "j"}),
			record.Totals{Ranges: 1, Tasks: 1, Failures: 1,
				Spaces: map[string]record.SpaceTotals{"/K": {Failures: 1}}}},
		"a pending range": {pending(record.Range{Estimate: 7}),
			record.Totals{Ranges: 1, Tasks: 1, Pending: 1, Expected: 7}},
		"a pending range in a delivery": {pending(record.Range{Estimate: 7, Continued: true}),
			record.Totals{Ranges: 1, Pending: 1, Expected: 7}},
		"an entity to retry": {pending(record.Range{Alone: true, Estimate: 1}),
			record.Totals{Ranges: 1, Tasks: 1, Pending: 1, Retrying: 1, Expected: 1}},
	} {
		var s Sum
		if err := s.Add(&c.r); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(s.Totals, c.want) {
			t.Errorf("%s: %+v, want %+v", name, s.Totals, c.want)
		}
	}
	var s Sum
	atOnce := record.Range{State: record.Done, Created: noon, Done: noon, Alone: true, Failed: "j"}
	if err := s.Add(&atOnce); err != nil || s.Tasks != 0 || s.Failures != 1 {
		t.Errorf("a failure at the first attempt never had a task: %+v, %v", s.Totals, err)
	}
	sampled := Sum{Totals: record.Totals{Sample: record.NewSample()}}
	if err := sampled.Add(&atOnce); err != nil || sampled.Sample.Failed != 1 {
		t.Errorf("the sample: %+v, %v", sampled.Sample, err)
	}
	err := s.Add(&record.Range{ID: "r", State: record.Done, Counters: []byte("{")})
	if err == nil || !strings.Contains(err.Error(), "counters of range r") {
		t.Errorf("damaged counters: %v", err)
	}
}

// TestMergedSums checks that a merged sum contains the numbers of both its parts, in every field.
func TestMergedSums(t *testing.T) {
	var one Sum
	v := reflect.ValueOf(&one.Totals).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Int64 {
			v.Field(i).SetInt(int64(i + 1))
		}
	}
	one.tally.Add("n", 5)
	one.leftOut.Add("z/K")
	one.addSpace("a/K", record.SpaceTotals{Processed: 3, Failures: 2})
	var sum Sum
	sum.leftOut.Add("y/K")
	for range 2 {
		sum.merge(&one)
	}
	got := reflect.ValueOf(sum.Totals)
	for i := range v.NumField() {
		want := int64(2 * (i + 1))
		if v.Type().Field(i).Name == "Depth" {
			want /= 2
		}
		if v.Field(i).Kind() == reflect.Int64 && got.Field(i).Int() != want {
			t.Errorf("%s: %d, want %d", v.Type().Field(i).Name, got.Field(i).Int(), want)
		}
	}
	if counters, err := sum.tally.Values(); err != nil || counters["n"] != 10 {
		t.Errorf("counters %v, %v", counters, err)
	}
	if sum.leftOut.Count() != 2 || sum.Spaces["a/K"] != (record.SpaceTotals{Processed: 6, Failures: 4}) {
		t.Errorf("%d spaces are left out, %v", sum.leftOut.Count(), sum.Spaces)
	}
}

// TestClosed checks that a job without counters (because they were dropped) stays without them, and
// that counters which are too large are reported as lost.
func TestClosed(t *testing.T) {
	for name, c := range map[string]struct {
		j      record.Job
		drop   bool
		want   int64
		isLost bool
	}{
		"a job with counters":         {record.Job{}, false, 5, false},
		"a job that has dropped them": {record.Job{CountersDropped: true}, false, 0, false},
		"a job with too many":         {record.Job{}, true, 0, true},
		"a job that has dropped many": {record.Job{CountersDropped: true}, true, 0, false},
	} {
		var s Sum
		s.tally.Add("n", 5)
		if c.drop {
			s.tally.Drop()
		}
		for i := range maxSpaces + 1 {
			s.addSpace(fmt.Sprint("/", i), record.SpaceTotals{Processed: 1})
		}
		s.Close(&c.j)
		if s.Counters["n"] != c.want || s.CountersLost != c.isLost || (s.Lost != nil) != c.isLost ||
			len(s.Spaces) != maxSpaces || s.SpacesLeftOut != 1 {
			t.Errorf("%s: %v, lost %v, %v, %d spaces", name, s.Counters, s.CountersLost, s.Lost, len(s.Spaces))
		}
	}
}

// letters returns n letters that do not compress well: about 0.6 bytes each.
func letters(n int) string {
	rng := rand.New(rand.NewPCG(1, 0))
	text := make([]byte, n)
	for i := range text {
		text[i] = byte('a' + rng.IntN(26))
	}
	return string(text)
}

// exactly returns the number of letters for which the function size returns the given number of
// bytes.
func exactly(t *testing.T, bytes int, size func(text string) int) (n int) {
	t.Helper()
	n = bytes * 5 / 3
	for range 40 {
		d := bytes - size(letters(n))
		if d == 0 {
			return n
		}
		n += cmp.Or(d*5/3, d)
	}
	t.Fatalf("no number of letters takes %d bytes", bytes)
	return 0
}

// TestStoredTotals checks that totals drop their counters if they would not fit in a job's record,
// and report this.
func TestStoredTotals(t *testing.T) {
	fits := exactly(t, tally.MaxStored, func(text string) int {
		var j record.Job
		if err := (&record.Totals{Counters: map[string]int64{text: 1}}).RecordIn(&j); err != nil {
			t.Fatal(err)
		}
		return len(j.Totals)
	})
	for _, more := range []int{0, 10} {
		l := new(Ledger)
		l.tally.Add(letters(fits+more), 1)
		l.Close(new(record.Job))
		if lost := more > 0; l.CountersLost != lost || errors.Is(l.Lost, tally.ErrTooMany) != lost ||
			(l.Counters == nil) != lost {
			t.Errorf("%d letters more: lost %v, %v", more, l.CountersLost, l.Lost)
		}
	}
}

// TestDraftOfCounters checks that a draft, the stored sum of some of the records, drops its
// counters only if they do not fit.
func TestDraftOfCounters(t *testing.T) {
	draft := func(text string) *Draft {
		d := new(Draft)
		d.Ledger.tally.Add(text, 1)
		return d
	}
	fits := exactly(t, maxDraft, func(text string) int {
		d := draft(text)
		d.encode()
		return len(d.Stored)
	})
	for _, more := range []int{0, 10} {
		d := draft(letters(fits + more))
		if d.Encode(); d.Ledger.tally.TooMany() != (more > 0) || len(d.Stored) > maxDraft {
			t.Errorf("%d letters more: dropped %v, %d bytes", more, d.Ledger.tally.TooMany(), len(d.Stored))
		}
	}
}

// TestSampledTotals checks how the totals of a sample are extrapolated to all records.
func TestSampledTotals(t *testing.T) {
	s := Sum{Totals: record.Totals{Processed: 3, Ranges: 2, Sample: record.NewSample(),
		Counters: map[string]int64{"n": 3, "min(n)": 3, "max(n)": 3},
		Spaces:   map[string]record.SpaceTotals{"/K": {Processed: 3, Failures: 1}}}}
	s.Scale(2.5)
	if s.Processed != 8 || s.Ranges != 5 || s.Sample.Scale != 2.5 || s.Sample.LeftScale != 2.5 ||
		s.Counters["n"] != 7 || s.Counters["min(n)"] != 3 || s.Counters["max(n)"] != 3 ||
		s.Spaces["/K"] != (record.SpaceTotals{Processed: 8, Failures: 3}) {
		t.Errorf("%+v", s)
	}
	s = Sum{Totals: record.Totals{Processed: 3}}
	if s.Scale(2); s.Processed != 6 || s.Sample != nil {
		t.Errorf("without a sample: %+v", s)
	}
}

// TestCensus checks that exact numbers of records replace the numbers that were extrapolated from a
// sample, even if the sample has no record of some state.
func TestCensus(t *testing.T) {
	for _, test := range []struct {
		name             string
		pages, open      int
		census           record.Census
		processed        int64
		retrying         int64
		scale, leftScale float64
	}{
		{"a sample", 2, 2, record.Census{Ranges: 17, Open: 6, Failed: 1}, 100, 6, 5, 3},
		{"all records", 2, 2, record.Census{Ranges: 5, Open: 2, Failed: 1}, 20, 2, 1, 1},
		{"no pages", 0, 2, record.Census{Ranges: 7, Open: 6, Failed: 1}, 0, 6, 1, 3},
		{"no open ranges", 2, 0, record.Census{Ranges: 17, Open: 6, Failed: 1}, 100, 0, 5, 1},
		{"fewer open ranges than were read", 2, 2, record.Census{Ranges: 12, Open: 1, Failed: 1}, 100, 2, 5, 1},
	} {
		done := Sum{Totals: record.Totals{Sample: record.NewSample()}}
		open := Sum{Totals: record.Totals{Sample: record.NewSample()}}
		for range test.pages {
			if err := done.Add(&record.Range{State: record.Done, Done: noon, Processed: 10}); err != nil {
				t.Fatal(err)
			}
		}
		for range test.open {
			if err := open.Add(&record.Range{State: record.Pending, Alone: true, Created: noon}); err != nil {
				t.Fatal(err)
			}
		}
		done.SetCensus(test.census, &open)
		if done.Processed != test.processed || done.Retrying != test.retrying || done.Ranges != test.census.Ranges ||
			done.Pending != test.census.Open || done.Failures != test.census.Failed ||
			*done.Sample.Census != test.census {
			t.Errorf("%s: %+v", test.name, done.Totals)
		}
		if done.Sample.Scale != test.scale || done.Sample.LeftScale != test.leftScale ||
			len(done.Sample.Open) != test.open {
			t.Errorf("%s: scales %v and %v, %d open", test.name, done.Sample.Scale, done.Sample.LeftScale,
				len(done.Sample.Open))
		}
	}
}

// TestSpacesBound checks that the totals by kind and namespace stay within their limit of memory,
// even while records are still added.
func TestSpacesBound(t *testing.T) {
	const around = len(`{"":{"p":1}}`)
	for more, want := range []int{1, 0} {
		var s Sum
		s.addSpace(strings.Repeat("x", maxSpaceBytes-around+more), record.SpaceTotals{Processed: 1})
		if s.bound(); len(s.Spaces) != want || s.SpacesLeftOut != 1-want {
			t.Errorf("%d bytes more: %d spaces, %d left out", more, len(s.Spaces), s.SpacesLeftOut)
		}
	}
	var s Sum
	for i := range 3 * maxSpaces {
		s.addSpace(fmt.Sprint("/", i), record.SpaceTotals{Processed: 1})
		if len(s.Spaces) > 2*maxSpaces {
			t.Fatalf("it holds %d spaces", len(s.Spaces))
		}
	}
}
