package dashboard

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/scattermap/scattermap/auth"
)

// Options are the settings of a dashboard. The zero value refuses every request.
type Options struct {
	// Allow returns who sent a request, or an error if it is not allowed: for example
	// [auth.Verifier.Authenticate] or [auth.Loopback]. Without Allow every request is refused.
	Allow auth.Func

	// ReadOnly refuses every request that is not GET or HEAD, and hides the controls. Defaults to
	// false.
	ReadOnly bool

	// AllQueues makes the list of jobs show the jobs of all queues, unless the viewer chooses
	// otherwise. Only jobs of the engine's queues can be controlled. Defaults to false: it shows
	// the jobs of the engine's queues.
	AllQueues bool

	// Redact, if set, returns a replacement for a text that may contain data of entities or people.
	// Its first argument is the kind of the text. It applies to pages and JSON. Defaults to no
	// change.
	Redact func(what TextKind, text string) string

	// LogURL, if set, returns the address of the log lines of a job. If rangeID is not empty, it is
	// the address of the lines of that range. [CloudLoggingURL] makes such a function.
	LogURL func(job, rangeID string) string

	// Logger receives the errors of requests that were refused or failed. Defaults to
	// slog.Default().
	Logger *slog.Logger
}

// A TextKind says what kind of text [Options.Redact] gets.
type TextKind string

// Kinds of texts that may contain data of entities or people, because users or operators have
// written them.
const (
	// a key's path, such as /Account,"ann"; a value of the property in ShardBy; or a namespace
	TextKey     TextKind = "key"
	TextParams  TextKind = "params"  // a job's parameters as JSON, or its query, as JSON or in words
	TextError   TextKind = "error"   // an error, or a cause of errors
	TextValue   TextKind = "value"   // the value of an entity's property, in a rehearsal's examples
	TextCounter TextKind = "counter" // the name of a counter
	TextReason  TextKind = "reason"  // the reason that an operator gave for an action
)

// CloudLoggingURL returns a function for [Options.LogURL]. Its addresses lead to the Cloud Logging
// of a project, for lines that package cloudlog has written.
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

// redact returns the replacement for a text by [Options.Redact]. Without that option it returns the
// text unchanged.
func (o *Options) redact(what TextKind, text string) string {
	if o.Redact == nil || text == "" {
		return text
	}
	return o.Redact(what, text)
}

// redactJSON redacts the JSON of v. If the result is not JSON, redactJSON returns it as a JSON
// string.
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
