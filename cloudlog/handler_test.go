package cloudlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/scattermap/scattermap/cloudlog"
)

// lines decodes the JSON lines of a log.
func lines(t *testing.T, b []byte) (all []map[string]any) {
	t.Helper()
	for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
		var line map[string]any
		if err := d.Decode(&line); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		all = append(all, line)
	}
	return all
}

// TestFields checks that lines have the field names of Cloud Logging's page on structured logging.
func TestFields(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(cloudlog.NewHandler(&out, &cloudlog.Options{Project: "p", Level: slog.LevelDebug}))
	traceID, _ := trace.TraceIDFromHex("0123456789abcdef0123456789abcdef")
	spanID, _ := trace.SpanIDFromHex("0123456789abcdef")
	ctx := trace.ContextWithSpanContext(t.Context(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled}))
	log.WarnContext(ctx, "a page is tried again", "job", "spring", "range", "a1", "refused", 2)
	log.With("mapper", "add-credit", "process", 7).WithGroup("task").With("id", "x").Error("failed", "job",
		"in a group")
	log.Debug("serving", "job", slog.IntValue(3))
	log.Info("one")
	log.Error("job failed", "job", "spring", "mapper", "add-credit", "after", 90*time.Second,
		slog.Group("page", "took", time.Millisecond))
	got := lines(t, out.Bytes())
	for _, line := range got {
		if _, ok := line["time"].(string); !ok {
			t.Errorf("no time in %v", line)
		}
		delete(line, "time")
	}
	want := []map[string]any{
		{
			"severity": "WARNING", "message": "a page is tried again: spring", "event": "a page is tried again",
			"refused": 2.0, "logging.googleapis.com/labels": map[string]any{"job": "spring", "range": "a1"},
			"logging.googleapis.com/trace":  "projects/p/traces/0123456789abcdef0123456789abcdef",
			"logging.googleapis.com/spanId": "0123456789abcdef", "logging.googleapis.com/trace_sampled": true,
		},
		{
			"severity": "ERROR", "message": "failed", "process": 7.0,
			"task":                          map[string]any{"id": "x", "job": "in a group"},
			"logging.googleapis.com/labels": map[string]any{"mapper": "add-credit"},
		},
		{"severity": "DEBUG", "message": "serving: 3", "event": "serving",
			"logging.googleapis.com/labels": map[string]any{"job": "3"}},
		{"severity": "INFO", "message": "one"},
		{
			"severity": "ERROR", "message": "job failed: spring (add-credit)", "event": "job failed", "after": "1m30s",
			"page":                          map[string]any{"took": "1ms"},
			"logging.googleapis.com/labels": map[string]any{"job": "spring", "mapper": "add-credit"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestHandler runs slog's own tests of handlers, testing/slogtest.
func TestHandler(t *testing.T) {
	var out bytes.Buffer
	err := slogtest.TestHandler(cloudlog.NewHandler(&out, nil), func() []map[string]any {
		all := lines(t, out.Bytes())
		for _, line := range all {
			line["level"], line["msg"] = line["severity"], line["message"]
		}
		return all
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWithoutProject checks that lines have no trace without Options.Project, because a trace's
// name starts with the project.
func TestWithoutProject(t *testing.T) {
	var out bytes.Buffer
	ctx := trace.ContextWithSpanContext(context.Background(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	slog.New(cloudlog.NewHandler(&out, nil)).InfoContext(ctx, "one")
	if line := lines(t, out.Bytes())[0]; line["logging.googleapis.com/trace"] != nil {
		t.Errorf("%v", line)
	}
}
