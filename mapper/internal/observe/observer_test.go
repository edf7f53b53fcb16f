package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// observed returns an Observer, and readers of its metrics and spans.
func observed(t *testing.T) (*Observer, *sdkmetric.ManualReader, *tracetest.SpanRecorder) {
	t.Helper()
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	tel, err := New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	if err != nil {
		t.Fatal(err)
	}
	return tel, reader, spans
}

// told returns the value of each metric. Its keys are the metrics' names with one attribute, which
// is not the mapper's name.
func told(t *testing.T, reader *sdkmetric.ManualReader) map[string]string {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, m := range data.ScopeMetrics[0].Metrics {
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				name := m.Name
				if why, ok := p.Attributes.Value(causeKey); ok {
					name += " " + why.AsString()
				}
				all[name] = fmt.Sprint(p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				all[m.Name] = fmt.Sprint(p.Count, " of ", p.Sum)
			}
		case metricdata.Gauge[float64]:
			all[m.Name] = "there"
		}
	}
	return all
}

// TestMetrics checks what each metric counts.
func TestMetrics(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	job, r := &record.Job{ID: "j", Mapper: "m"}, new(record.Range)
	for _, c := range []struct {
		name string
		do   func(ctx context.Context, t *Observer)
		want map[string]string
	}{
		{"a process that has done nothing", func(ctx context.Context, t *Observer) { t.Has(ctx, "m") },
			map[string]string{"scattermap.tasks.in_flight": "0"}},
		{"a page", func(ctx context.Context, t *Observer) {
			t.Committed(ctx, Page{Mapper: "m", Entities: 5, Took: 2 * time.Second})
		}, map[string]string{"scattermap.pages": "1", "scattermap.entities": "5",
			"scattermap.page.duration": "1 of 2"}},
		{"a page with failures, that has cut ranges off", func(ctx context.Context, t *Observer) {
			t.Committed(ctx, Page{Mapper: "m", Entities: 5, Failures: 2, Took: time.Second,
				CutOff: map[string]int64{Late: 3, Failed: 2, AtStart: 0}})
		}, map[string]string{"scattermap.pages": "1", "scattermap.entities": "5", "scattermap.failures": "2",
			"scattermap.page.duration": "1 of 1", "scattermap.splits late": "3", "scattermap.splits failure": "2"}},
		{"conflicts", func(ctx context.Context, t *Observer) { t.Conflicts(ctx, "m", 3) },
			map[string]string{"scattermap.conflicts": "3"}},
		{"a task that has waited", func(ctx context.Context, t *Observer) {
			t.Range(ctx, job, r, tasks.Delivery{ScheduleTime: now.Add(-5 * time.Second)}, now)()
		}, map[string]string{"scattermap.tasks.in_flight": "0", "scattermap.queue.wait": "1 of 5"}},
		{"a task that came early", func(ctx context.Context, t *Observer) {
			t.Range(ctx, job, r, tasks.Delivery{ScheduleTime: now.Add(5 * time.Second)}, now)
		}, map[string]string{"scattermap.tasks.in_flight": "1", "scattermap.queue.wait": "1 of 0"}},
		{"a task that comes again", func(ctx context.Context, t *Observer) {
			t.Range(ctx, job, r, tasks.Delivery{ScheduleTime: now, RetryCount: 2}, now)
		}, map[string]string{"scattermap.tasks.in_flight": "1", "scattermap.retries": "1"}},
		{"a job that runs", func(_ context.Context, t *Observer) {
			t.turned(&record.Job{ID: "j", Mapper: "m", State: record.Running}, time.Now())
		}, map[string]string{"scattermap.job.idle": "there"}},
	} {
		tel, reader, _ := observed(t)
		tel.Conflicts(t.Context(), "m", 0) // so that the metric exists
		c.do(t.Context(), tel)
		got := told(t, reader)
		if got["scattermap.conflicts"] == "0" {
			delete(got, "scattermap.conflicts")
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestSpans checks the trace span of a delivery. It must be in the trace in which its task was
// enqueued, or be linked to that trace. No span may have the text of an error.
func TestSpans(t *testing.T) {
	for _, c := range []struct {
		name string
		d    tasks.Delivery
		err  error
		own  bool // whether the delivery starts a new trace
		want []string
	}{
		{"a delivery", tasks.Delivery{}, nil, false, []string{"scattermap.mapper=m", "scattermap.job=j",
			"scattermap.range=r", "scattermap.depth=2", "scattermap.pages=2", "scattermap.entities=7",
			"scattermap.failures=1"}},
		{"one that fails, and begins a trace", tasks.Delivery{NewTrace: true, RetryCount: 3}, errors.New("of ann"),
			true,
			[]string{"scattermap.retries=3", "scattermap.mapper=m", "scattermap.job=j", "scattermap.range=r",
				"scattermap.depth=2", "scattermap.pages=2", "scattermap.entities=7", "scattermap.failures=1"}},
	} {
		tel, _, spans := observed(t)
		started, ended := tel.Start(t.Context(), "m", "j")
		ended(nil)
		ctx, done := tel.Delivery(started, "range", c.d)
		tel.Range(ctx, &record.Job{ID: "j", Mapper: "m"}, &record.Range{ID: "r", Depth: 2}, c.d, time.Now())()
		tel.Committed(ctx, Page{Mapper: "m", Entities: 4, Failures: 1})
		tel.Committed(ctx, Page{Mapper: "m", Entities: 3})
		done(c.err)
		all := spans.Ended()
		if len(all) != 2 || all[0].Name() != "scattermap start" || all[1].Name() != "scattermap range" {
			t.Fatalf("%s: %v", c.name, all)
		}
		root, span := all[0].SpanContext(), all[1]
		var got []string
		for _, a := range span.Attributes() {
			got = append(got, fmt.Sprint(a.Key, "=", a.Value.AsInterface()))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if own := span.SpanContext().TraceID() != root.TraceID(); own != c.own || (span.Parent().SpanID() ==
			root.SpanID()) == c.own || (len(span.Links()) == 1) != c.own {
			t.Errorf("%s: a trace of its own %v, with %v", c.name, own, span.Links())
		}
		if status := span.Status(); (status.Code == codes.Error) != (c.err != nil) || c.err != nil &&
			status.Description != "see the log" || len(span.Events()) > 0 {
			t.Errorf("%s: %+v, %v", c.name, status, span.Events())
		}
	}
}

// TestNewTraces checks that the tasks of ranges start new traces only if the range is large.
func TestNewTraces(t *testing.T) {
	for _, c := range []struct {
		page, entities int64
		want           bool
	}{{10, 25_000, false}, {10, 25_010, true}, {0, 1_000_000, false}} {
		if got := NewTraces(&record.Job{PageSize: c.page}, c.entities); got != c.want {
			t.Errorf("%d entities by %d: %v", c.entities, c.page, got)
		}
	}
}
