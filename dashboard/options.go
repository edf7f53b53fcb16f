package dashboard

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Options are the settings of a dashboard.
type Options struct {
	// Allow returns who has sent a request, or an error for one that is not allowed, as that of
	// jobsapi.Options does: tasks.ErrUnauthenticated is answered by 401, and any other error by
	// 403. The log says what it was, and the answer does not. tasks.Verifier.Authenticate, a
	// deployer's own function, [Loopback] and jobsapi.Anybody are such functions. Nobody is allowed
	// anything without one.
	Allow func(r *http.Request) (who string, err error)

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

// Loopback allows everything to whoever sends a request from this machine to this machine, by one
// of its own names: for a dashboard that a program opens for who has started it. A page of another
// site can't pass for one, though its name may lead to this machine. A request that a proxy has
// passed on, and says so, is refused: it may be anybody's.
func Loopback(r *http.Request) (who string, err error) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(name) != "" {
			return "", fmt.Errorf("the request has the header %s: a proxy has passed it on", name)
		}
	}
	for _, addr := range []string{r.RemoteAddr, r.Host} {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = strings.Trim(addr, "[]")
		}
		named := host == "localhost" && addr == r.Host
		if ip := net.ParseIP(host); !named && (ip == nil || !ip.IsLoopback()) {
			return "", fmt.Errorf("%.100q is not this machine", addr)
		}
	}
	return "", nil
}

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
