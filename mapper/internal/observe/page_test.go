package observe

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

var writePage = flag.Bool("write", false, "write the table of TestMetricsPage into docs/metrics.md")

// A row is a metric's row in docs/metrics.md.
type row struct {
	kind, managed string
	attributes    []attribute.Set
	bounds        []float64
}

// rowOf returns the row that docs/metrics.md must have for a metric.
func rowOf(t *testing.T, m metricdata.Metrics) (r row) {
	t.Helper()
	r.managed = strings.ReplaceAll(m.Name, ".", "_")
	if m.Unit == "s" {
		r.managed += "_seconds"
	}
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		r.kind = "up-down counter"
		if d.IsMonotonic {
			r.kind, r.managed = "counter", r.managed+"_total"
		}
		for _, p := range d.DataPoints {
			r.attributes = append(r.attributes, p.Attributes)
		}
	case metricdata.Histogram[float64]:
		r.kind = "histogram"
		for _, p := range d.DataPoints {
			r.attributes, r.bounds = append(r.attributes, p.Attributes), p.Bounds
		}
	case metricdata.Gauge[float64]:
		r.kind = "gauge"
		for _, p := range d.DataPoints {
			r.attributes = append(r.attributes, p.Attributes)
		}
	default:
		t.Fatalf("%s is a %T", m.Name, d)
	}
	return r
}

// TestMetricsPage compares the table in docs/metrics.md with the metrics and their attributes. For
// this, the test gives a value to each metric.
func TestMetricsPage(t *testing.T) {
	tel, reader, _ := observed(t)
	ctx, now := t.Context(), time.Now()
	job := &record.Job{ID: "j", Mapper: "m", State: record.Running}
	reasons := []string{AtStart, BeforePage, Planned, Late, Failed}
	cut := make(map[string]int64)
	for _, reason := range reasons {
		cut[reason] = 1
	}
	tel.Committed(ctx, Page{Mapper: "m", Job: "j", Entities: 1, Failures: 1, Took: time.Second, CutOff: cut})
	tel.Conflicts(ctx, "m", 1)
	tel.Range(ctx, job, new(record.Range), tasks.Delivery{RetryCount: 1}, now)()
	tel.Range(ctx, job, new(record.Range), tasks.Delivery{ScheduleTime: now}, now)()
	tel.turned(job, now)
	var data metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &data); err != nil {
		t.Fatal(err)
	}
	if n := len(data.ScopeMetrics[0].Metrics); n != 10 {
		t.Errorf("%d metrics were told: tell each of them here", n)
	}
	var table, buckets strings.Builder
	table.WriteString("| metric | kind, unit | meaning | in Managed Prometheus |\n|---|---|---|---|\n")
	for _, m := range data.ScopeMetrics[0].Metrics {
		r := rowOf(t, m)
		fmt.Fprintf(&table, "| `%s` | %s, `%s` | %s | `%s` |\n", m.Name, r.kind, m.Unit,
			strings.TrimSuffix(m.Description,
				"."), r.managed)
		if r.bounds != nil {
			fmt.Fprintf(&buckets, "\nBuckets of `%s` end at %s seconds.\n", m.Name,
				strings.Trim(strings.ReplaceAll(fmt.Sprint(
					r.bounds), " ", ", "), "[]"))
		}
		for _, set := range r.attributes {
			for _, a := range set.ToSlice() {
				if a.Key != mapperKey && (a.Key != causeKey || m.Name != "scattermap.splits" ||
					!slices.Contains(reasons, a.Value.AsString())) {
					t.Errorf("%s has the attribute %v: describe it in docs/metrics.md", m.Name, a)
				}
			}
			if _, ok := set.Value(mapperKey); !ok {
				t.Errorf("%s has no %s", m.Name, mapperKey)
			}
		}
	}
	comparePage(t, table.String()+buckets.String(), reasons)
}

// comparePage compares docs/metrics.md with the code. The argument want is the generated part of
// the page, and reasons are the values that the page must describe.
func comparePage(t *testing.T, want string, reasons []string) {
	t.Helper()
	const path, begin, end = "../../../docs/metrics.md", "<!-- metrics -->\n\n", "\n<!-- end -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), begin)
	got, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no %s", path, end)
	case *writePage:
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case got != want:
		t.Errorf("docs/metrics.md has\n%swant\n%sgo test ./mapper/internal/observe -run TestMetricsPage -args "+
			"-write "+
			"writes it", got, want)
	}
	_, section, _ := strings.Cut(after, "| `scattermap.reason` | a range")
	section, _, _ = strings.Cut(section, "\n\n")
	for _, reason := range reasons {
		if !strings.Contains(section, "| `"+reason+"` |") {
			t.Errorf("docs/metrics.md lacks the reason %q", reason)
		}
	}
	if n := strings.Count(section, "\n| `"); n != len(reasons) {
		t.Errorf("docs/metrics.md has %d reasons, want %q", n, reasons)
	}
}
