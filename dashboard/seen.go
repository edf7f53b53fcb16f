package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// A status is a job's status with redacted texts, for pages and JSON.
type status struct {
	*mapper.Status
	// The following fields replace fields of mapper.Status with the same names, also in JSON.
	Query      json.RawMessage `json:"query"`
	Params     json.RawMessage `json:"params"`
	Error      string          `json:"error,omitempty"`
	Bottleneck string          `json:"bottleneck,omitempty"`

	ByKind   []mapper.KindStatus `json:"spaces,omitempty"`
	Counters map[string]int64    `json:"counters"`

	Over string `json:"-"` // the query in words
	// the status of the job that undoes this one; nil: none or unknown
	Undo *mapper.Status `json:"-"`
	// an error with the cause of most failures, or why an undo has left an entity unchanged; empty:
	// none or unknown
	Worst string `json:"-"`
}

// Undone returns a text about the undo of the job. It returns "" if the job was not undone, or if
// that is unknown. If the job is itself an undo that stands, the text says whether it has left
// entities unchanged.
func (s *status) Undone() string {
	if s.UndoneBy == "" && strings.HasPrefix(s.Mapper, "undo:") && s.State == mapper.StateSucceeded &&
		s.Status.Counters["left"] > 0 {
		return map[bool]string{true: "nothing restored", false: "partly restored"}[restoredNothing(s.Status)]
	}
	return undoneBy(s.Undo)
}

// undoneBy returns a text about a job that the given undo undoes. It returns "" if the undo has
// failed or was aborted, and for nil.
func undoneBy(undo *mapper.Status) string {
	switch {
	case undo == nil || undo.State == mapper.StateFailed || undo.State == mapper.StateAborted:
		return ""
	case !undo.State.Ended():
		return "being undone"
	case restoredNothing(undo):
		return "not undone"
	case undo.Counters["left"] > 0 || undo.Failures > 0:
		return "partly undone"
	}
	return "undone"
}

// Past reports whether another text matters more than the job's own state, which pages then show
// without colour. Either an undo of the job has restored entities, or the job is an undo that has
// left entities unchanged.
func (s *status) Past() bool {
	return restoredAny(s.Undo) || s.UndoneBy == "" && s.Undone() != ""
}

// Left returns the ID of the undo that has left entities of the job unchanged. It returns "" if
// there is none, or if the records that list the entities were cleaned up. The job may itself be
// that undo.
func (s *status) Left() string {
	undo := s.Undo
	if operator.Undoes(s.Status) {
		undo = s.Status
	}
	if undo == nil || undo.Counters["left"] == 0 || undo.CleanedUp || undo.CleaningUp {
		return ""
	}
	return undo.ID
}

// statusOf converts a job's status for pages: it redacts texts.
func (s *server) statusOf(from *mapper.Status) (v status, err error) {
	v = status{Status: from, Error: s.redact(TextError, from.Error), Bottleneck: s.redact(TextError, from.Bottleneck),
		Over: s.redact(TextParams, operator.Over(from.Query)), Counters: make(map[string]int64)}
	for _, space := range from.ByKind {
		space.Namespace = s.redact(TextKey, space.Namespace)
		v.ByKind = append(v.ByKind, space)
	}
	for name, n := range from.Counters {
		v.Counters[s.redact(TextCounter, name)] += n // adds up counters whose redacted names are equal
	}
	if v.Query, err = s.redactJSON(TextParams, from.Query); err == nil {
		v.Params, err = s.redactJSON(TextParams, from.Params)
	}
	return v, err
}

// actsOf returns a job's history with redacted texts.
func (s *server) actsOf(from []mapper.HistoryEntry) []mapper.HistoryEntry {
	all := []mapper.HistoryEntry{}
	for _, a := range from {
		kind := TextReason
		if a.Action == string(mapper.StateFailed) {
			kind = TextError
		}
		a.Reason = s.redact(kind, a.Reason)
		all = append(all, a)
	}
	return all
}

// keyOf returns the redacted text of a key.
func (s *server) keyOf(k *datastore.Key) string { return s.redact(TextKey, names.Key(k)) }

// A cause is a cause of failures. Its texts are redacted.
type cause struct {
	Cause     string  `json:"cause"`
	Digest    string  `json:"digest"` // a short form of the cause, by which log lines name it
	Count     int64   `json:"count"`
	Estimated bool    `json:"estimated"`
	Example   failed  `json:"example"`
	Hash      string  `json:"-"` // a hash of the text before it was redacted
	Share     float64 `json:"-"`
}

// hashOf returns a hash that identifies a text without revealing it.
func hashOf(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:8])
}

// A failed is a failed entity. Its texts are redacted.
type failed struct {
	Key      string    `json:"key"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`
	Time     time.Time `json:"time"`
}

func (s *server) failedOf(f mapper.Failure) failed {
	return failed{s.keyOf(f.Key), s.redact(TextError, f.Error), f.Attempts, f.Time}
}

func (s *server) causesOf(from []mapper.FailureCause) []cause {
	all := []cause{}
	total := int64(0)
	for _, c := range from {
		total += c.Count
	}
	for _, c := range from {
		all = append(all, cause{s.redact(TextError, c.Text), c.Digest, c.Count, c.Estimated, s.failedOf(c.Example),
			hashOf(c.Text),
			float64(c.Count) / float64(max(1, total))})
	}
	return all
}

// A ranged is a range of a job's picture. Its texts are redacted.
type ranged struct {
	picture.Range
	// the start of the range as redacted text; replaces the field of picture.Range
	Start string `json:"start,omitempty"`
	End   string `json:"end,omitempty"`
	Error string `json:"error,omitempty"`
}

func (s *server) rangedOf(r picture.Range) ranged {
	return ranged{r, s.place(r.Start), s.place(r.End), s.redact(TextError, r.Error)}
}

// place returns the redacted text of the position where a range starts or ends, or "" for nil.
func (s *server) place(p *picture.Place) string {
	if p == nil {
		return ""
	}
	var parts []string
	if p.Value != nil {
		parts = append(parts, value.Text(p.Value))
	}
	switch {
	case p.Key != nil:
		parts = append(parts, names.Key(p.Key))
	case p.Value == nil && p.Namespace != "":
		parts = append(parts, fmt.Sprintf("the beginning of %s in [%s]", p.Kind, p.Namespace))
	case p.Value == nil:
		parts = append(parts, "the beginning of "+p.Kind)
	}
	text := strings.Join(parts, " at ")
	return s.redact(TextKey, text)
}
