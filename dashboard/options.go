package dashboard

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/scattermap/scattermap/auth"
)

// Options are the settings of a dashboard.
type Options struct {
	// Allow says who has sent a request, and refuses those that are not allowed:
	// [auth.Verifier.Authenticate], say, or [auth.Loopback]. Nobody is allowed anything without
	// one.
	Allow auth.Func

	// ReadOnly has every request refused that is no GET or HEAD, and no page offer what can't be
	// done.
	ReadOnly bool

	// AllQueues has the list show the jobs of all queues at first, and not only of the engine's.
	// Only those of its own can be controlled.
	AllQueues bool

	// Redact, if it is not nil, returns what is shown in place of a text that may be anything: an
	// entity's, or a person's.
	Redact func(what TextKind, text string) string

	// LogURL, if it is not nil, returns the address of what the log has of a job, and of a range of
	// it if that is not empty. [CloudLoggingURL] is such a function.
	LogURL func(job, rangeID string) string

	// Logger receives why requests were refused or have failed. Defaults to slog.Default().
	Logger *slog.Logger
}

// A TextKind says what a text is that [Options.Redact] is asked about.
type TextKind string

// The texts that may be anything.
const (
	// the path of a key, such as /Account,"ann", a value that a job is sharded by, or a namespace
	TextKey     TextKind = "key"
	TextParams  TextKind = "params"  // a job's parameters as JSON, or its query, as JSON or in words
	TextError   TextKind = "error"   // an error, or a cause of errors
	TextValue   TextKind = "value"   // the value of a property of an entity, which a rehearsal shows
	TextCounter TextKind = "counter" // the name of a counter
	TextReason  TextKind = "reason"  // why somebody has done something
)

// CloudLoggingURL returns a function for [Options.LogURL] that leads to Cloud Logging of a project,
// for lines as package cloudlog writes them.
func CloudLoggingURL(project string) func(job, rangeID string) string {
	return func(job, rangeID string) string {
		query := fmt.Sprintf("labels.job=%q", job)
		if rangeID != "" {
			query += fmt.Sprintf("\nlabels.range=%q", rangeID)
		}
		return "https://console.cloud.google.com/logs/query;query=" + url.PathEscape(query) + "?project=" +
			url.QueryEscape(project)
	}
}

// redact returns what is shown in place of a text.
func (o *Options) redact(what TextKind, text string) string {
	if o.Redact == nil || text == "" {
		return text
	}
	return o.Redact(what, text)
}

// redactJSON returns what is shown in place of JSON: as a text, if it is none any more.
func (o *Options) redactJSON(what TextKind, v any) (json.RawMessage, error) {
	encoded, err := json.Marshal(v)
	if err != nil || o.Redact == nil {
		return encoded, err
	}
	shown := o.Redact(what, string(encoded))
	if json.Valid([]byte(shown)) {
		return json.RawMessage(shown), nil
	}
	return json.Marshal(shown)
}
