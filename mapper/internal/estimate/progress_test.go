package estimate

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/scattermap/scattermap/billing"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// TestProgress checks the progress of jobs that were started ten minutes ago.
func TestProgress(t *testing.T) {
	lately := []record.End{{At: noon.Add(-time.Minute), Entities: 1000}, {At: noon.Add(-time.Second), Entities: 60}}
	for _, c := range []struct {
		name   string
		sample record.Sample
		ended  bool
		want   string // done in percent (least, estimate, most), entities a second, remaining time
	}{
		{
			name: "nothing is known", sample: record.Sample{Blind: 1}, want: "0 0 100%, 0/s, 0s 0s 0s",
		},
		{
			name:   "all is counted: the bounds are the estimate",
			sample: record.Sample{Done: 60, Left: 240, Counted: 240, Ends: lately},
			want:   "20 20 20%, 1/s, 4m0s 4m0s 4m0s",
		},
		{
			name:   "a range is pending of which nothing is known: there is no lower bound",
			sample: record.Sample{Done: 60, Left: 240, Counted: 240, Blind: 1, Ends: lately},
			want:   "0 20 20%, 1/s, 4m0s 4m0s 0s",
		},
		{
			name:   "a guess from a hundred gaps is off by a factor of e^(4*sqrt(0.25^2+1/100)), 2.9",
			sample: record.Sample{Done: 60, Left: 240, Gaps: 100, Ends: lately},
			want:   "8 20 42%, 1/s, 1m22s 4m0s 11m45s",
		},
		{
			name:   "one entity in four was sampled",
			sample: record.Sample{Done: 60, Scale: 4, Left: 240, LeftScale: 4, Counted: 240, Ends: lately},
			want:   "20 20 20%, 4/s, 4m0s 4m0s 4m0s",
		},
		{
			name: "what was sampled is of several sizes: 4*sqrt(25)/100 is a fifth",
			sample: record.Sample{Done: 100, DoneSquares: 25, Scale: 2, Left: 100, LeftSquares: 25, LeftScale: 2,
				Counted: 100, Ends: lately},
			want: "40 50 60%, 2/s, 1m20s 1m40s 2m0s",
		},
		{
			name: "nothing was done lately", sample: record.Sample{Done: 60, Left: 240, Counted: 240},
			want: "20 20 20%, 0/s, 0s 0s 0s",
		},
		{
			name: "all is done", sample: record.Sample{Done: 60}, ended: true, want: "100 100 100%, 0/s, 0s 0s 0s",
		},
		{
			name: "there was nothing", ended: true, want: "100 100 100%, 0/s, 0s 0s 0s",
		},
		{
			name: "it was ended before anything was known", sample: record.Sample{Blind: 1}, ended: true,
			want: "0 0 100%, 0/s, 0s 0s 0s",
		},
	} {
		c.sample.Scale, c.sample.LeftScale = max(1, c.sample.Scale), max(1, c.sample.LeftScale)
		k := known{begun: noon.Add(-10 * time.Minute), now: noon, whole: true, ended: c.ended}
		p := k.progress(&c.sample)
		got := fmt.Sprintf("%.0f %.0f %.0f%%, %.0f/s, %v %v %v", 100*p.FractionMin, 100*p.Fraction, 100*p.FractionMax,
			p.EntitiesPerSecond,
			p.TimeLeftMin.Round(time.Second), p.TimeLeft, p.TimeLeftMax.Round(time.Second))
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if want := c.sample.Done * c.sample.Scale / 600; math.Abs(p.EntitiesPerSecondOverall-want) > 1e-9 {
			t.Errorf("%s: %v/s over all, want %v", c.name, p.EntitiesPerSecondOverall, want)
		}
		k.whole = false // the query filters the kind, so estimates are less certain
		if some := k.progress(&c.sample); (some.FractionMin < p.FractionMin) != (c.sample.Gaps > 0) ||
			(some.FractionMax > p.FractionMax) != (c.sample.Gaps > 0) {
			t.Errorf("%s, of some of a kind: %+v, and of the whole one %+v", c.name, some, p)
		}
	}
}

// TestProgressOf checks that a job's time ends with the job, and that all usage is paid.
func TestProgressOf(t *testing.T) {
	sum := record.Totals{Processed: 990, Failures: 10, Written: 990, Pages: 10, Tasks: 4}
	for _, c := range []struct {
		name  string
		query query.Query
		reads int64
	}{
		{"entities are read", query.Query{Kind: "K"}, 990 + 10 + 3*10 + 4},
		{"keys are free", query.Query{Kind: "K", KeysOnly: true}, 3*10 + 4},
	} {
		job := &record.Job{State: record.Succeeded, Created: noon, Ended: noon.Add(100 * time.Second)}
		p, dollars := ProgressOf(job, sum, c.query, noon.Add(time.Hour), billing.NAM5)
		if p.Fraction != 1 || p.FractionMin != 1 || p.FractionMax != 1 || p.EntitiesPerSecondOverall != 10 ||
			p.EntitiesPerSecond != 0 {
			t.Errorf("%s: %+v", c.name, p)
		}
		want := billing.NAM5.Dollars(billing.Usage{Reads: c.reads, Writes: 990 + 2*10, TaskOps: 2 * 5})
		if math.Abs(dollars-want) > 1e-9 {
			t.Errorf("%s: $%v, want $%v", c.name, dollars, want)
		}
	}
}

// TestShare checks that the scarcer part of a budget counts.
func TestShare(t *testing.T) {
	used := billing.Usage{Reads: 100_000, Writes: 100_000, Deletes: 50, TaskOps: 50} // 24 cents
	for _, c := range []struct {
		budget record.Budget
		want   float64
	}{
		{record.Budget{}, 0}, {record.Budget{Dollars: 0.48}, 0.5}, {record.Budget{Operations: 2_001_000}, 0.1},
		{record.Budget{Dollars: 0.48, Operations: 2_001_000}, 0.5}, {record.Budget{Dollars: 24, Operations: 400_200},
			0.5},
	} {
		if got := Share(c.budget, used, billing.NAM5); math.Abs(got-c.want) > 0.001 {
			t.Errorf("%+v: %v, want %v", c.budget, got, c.want)
		}
	}
}
