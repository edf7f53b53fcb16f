package cloudlog

import (
	"context"
	"io"
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/trace"
)

// Options are the settings of [NewHandler]. The zero value has all defaults.
type Options struct {
	// Project is the ID of the Google Cloud project that has the traces. Defaults to none: lines
	// are not linked to traces.
	Project string

	// Level is the lowest level that is logged. Defaults to slog.LevelInfo.
	Level slog.Leveler
}

// Field names that Cloud Logging interprets.
const (
	severityKey = "severity"
	messageKey  = "message"
	labelsKey   = "logging.googleapis.com/labels"
	eventKey    = "event"
	traceKey    = "logging.googleapis.com/trace"
	spanKey     = "logging.googleapis.com/spanId"
	sampledKey  = "logging.googleapis.com/trace_sampled"
)

// labels are the attributes that become labels of a line, if they are in no group.
var labels = []string{"job", "mapper", "range"}

// A handler is a slog.Handler. It keeps attributes and groups until a line is written, because the
// line's labels and trace must be outside all groups.
type handler struct {
	lines   slog.Handler
	project string
	labels  []any
	groups  []string
	attrs   [][]slog.Attr // attrs[i] has the attributes that are inside the first i groups
}

// NewHandler returns a handler that writes a JSON line for each record to w. Levels below Info have
// the severity DEBUG. The handler can be used concurrently. A nil o has all defaults.
func NewHandler(w io.Writer, o *Options) slog.Handler {
	var opts Options
	if o != nil {
		opts = *o
	}
	lines := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: opts.Level, ReplaceAttr: rename})
	return &handler{lines: lines, project: opts.Project, attrs: make([][]slog.Attr, 1)}
}

// rename is a slog.HandlerOptions.ReplaceAttr. It gives the message and the level the names that
// Cloud Logging reads, and writes durations with their unit.
func rename(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.MessageKey:
		a.Key = messageKey
	case slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok {
			return slog.String(severityKey, severity(level))
		}
	}
	return a
}

// severity returns the name that Cloud Logging has for a level.
func severity(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "ERROR"
	case l >= slog.LevelWarn:
		return "WARNING"
	case l >= slog.LevelInfo:
		return "INFO"
	}
	return "DEBUG"
}

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.lines.Enabled(ctx, l) }

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	c := *h
	c.groups = append(slices.Clip(h.groups), name)
	c.attrs = append(slices.Clip(h.attrs), nil)
	return &c
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.labels, c.attrs = slices.Clip(h.labels), slices.Clone(h.attrs)
	inmost := len(c.attrs) - 1
	c.attrs[inmost] = slices.Clip(c.attrs[inmost])
	for _, a := range attrs {
		c.add(a)
	}
	return &c
}

// add adds an attribute to the inmost group. Outside of groups, the attributes job, mapper and
// range become labels of the line.
func (h *handler) add(a slog.Attr) {
	if len(h.groups) == 0 && slices.Contains(labels, a.Key) {
		h.labels = append(h.labels, slog.String(a.Key, a.Value.String())) // the value of a label must be a string
		return
	}
	h.attrs[len(h.attrs)-1] = append(h.attrs[len(h.attrs)-1], a)
}

// about returns the text that Handle appends to a message, such as ": spring (add-credit)": the
// line's job and its mapper.
func (h *handler) about() string {
	of := make(map[string]string)
	for _, label := range h.labels {
		if a, ok := label.(slog.Attr); ok {
			of[a.Key] = a.Value.String()
		}
	}
	switch {
	case of["job"] == "":
		return ""
	case of["mapper"] == "":
		return ": " + of["job"]
	}
	return ": " + of["job"] + " (" + of["mapper"] + ")"
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var own []slog.Attr
	r.Attrs(func(a slog.Attr) bool { own = append(own, a); return true })
	c := h.WithAttrs(own).(*handler)
	inner := c.attrs[len(c.groups)]
	for i, name := range slices.Backward(c.groups) {
		inner = append(slices.Clip(c.attrs[i]), slog.Attr{Key: name, Value: slog.GroupValue(inner...)})
	}
	line := slog.NewRecord(r.Time, r.Level, r.Message+c.about(), r.PC)
	if line.Message != r.Message {
		line.AddAttrs(slog.String(eventKey, r.Message))
	}
	line.AddAttrs(inner...)
	if len(c.labels) > 0 {
		line.AddAttrs(slog.Group(labelsKey, c.labels...))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() && h.project != "" {
		line.AddAttrs(
			slog.String(traceKey, "projects/"+h.project+"/traces/"+span.TraceID().String()),
			slog.String(spanKey, span.SpanID().String()),
			slog.Bool(sampledKey, span.IsSampled()))
	}
	return h.lines.Handle(ctx, line)
}
