package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Closing is what is kept of the records of a job that deletes them before it ends, see
// mapper.Mapper.Forget, until it has.
type Closing struct {
	Ranges   int64    `json:"ranges"`
	Alone    int64    `json:"alone"`
	Failures int64    `json:"failures"`
	Salt     string   `json:"salt"`
	Forgot   []string `json:"forgot,omitempty"` // hashes, with the salt, of the IDs of jobs that it has had forget
	More     int64    `json:"more,omitempty"`   // of them, that there is no room for
}

// maxForgot is how many jobs a Closing names: 64 KiB.
const maxForgot = 1000

// Close has a job that runs begin to delete the records of its ranges, of which c is kept and which
// add up to sum: nothing of them changes any more.
func Close(j *Job, c Closing, sum *Totals, how string) error {
	text, err := json.Marshal(c)
	if err == nil {
		err = sum.RecordIn(j)
	}
	j.Closing, j.Cleaning, j.Cleaned = text, how, true
	return err
}

// ClosingOf returns what is kept of a job's records; nil if it has not begun to delete them.
func ClosingOf(j *Job) (*Closing, error) {
	if len(j.Closing) == 0 {
		return nil, nil
	}
	c := new(Closing)
	if err := json.Unmarshal(j.Closing, c); err != nil {
		return nil, fmt.Errorf("job %s: what is kept of its records: %w", j.ID, err)
	}
	return c, nil
}

// Forget notes jobs that a job is about to have forgotten.
func (c *Closing) Forget(ids []string) (changed bool) {
	for _, id := range ids {
		h := Salted(c.Salt, id)
		switch {
		case slices.Contains(c.Forgot, h):
			continue
		case len(c.Forgot) < maxForgot:
			c.Forgot = append(c.Forgot, h)
		default:
			c.More++
		}
		changed = true
	}
	return changed
}

// Salted returns a hash of a text with a salt.
func Salted(salt, text string) string {
	h := sha256.Sum256([]byte(salt + "\x00" + text))
	return hex.EncodeToString(h[:16])
}

const erasedText = "(erased)"

// Redact takes out of a job's record what can name entities, or what it was about: query,
// parameters, errors, reasons, the names of counters, and who has done something, if that mentions
// a subject. What stays is what was done when, and numbers. Of query and parameters a hash stays,
// whose salt nobody keeps.
func Redact(j *Job, s Subject, salt string, now time.Time) error {
	hash := Salted(salt, string(j.Query)+"\x00"+string(j.Params))
	j.Query, j.Params = fmt.Appendf(nil, `{"kind":"erased-%s"}`, hash), fmt.Appendf(nil, `{"erased":"%s"}`, hash)
	j.Closing, j.Undo = nil, ""
	acts, err := j.History.Acts()
	if err != nil {
		acts = nil
	}
	j.History = nil
	for _, a := range acts {
		if a.Why != "" {
			a.Why = erasedText
		}
		if s.InText(a.By) {
			a.By = erasedText
		}
		if s.InText(a.What) || strings.HasPrefix(a.What, "undone by job") {
			a.What = erasedText
		}
		j.History = j.History.With(a)
	}
	j.Erased = now.UTC().Truncate(time.Microsecond)
	_, err = RedactValues(j)
	return err
}

// RedactTexts takes out of a job's record what mentions a subject, but its query and parameters: in
// what was done to it, errors, and the names of counters. It reports whether there was something.
func RedactTexts(j *Job, s Subject) (changed bool, err error) {
	acts, err := j.History.Acts()
	said := err != nil // what can't be read says nothing
	var history History
	for _, a := range acts {
		for _, text := range []*string{&a.What, &a.By, &a.Why} {
			if s.InText(*text) {
				*text, said = erasedText, true
			}
		}
		history = history.With(a)
	}
	if said {
		j.History = history
	}
	for _, text := range []*string{&j.Error, &j.Trouble, &j.RetryOf} {
		if s.InText(*text) {
			*text, said = erasedText, true
		}
	}
	totals := &Job{Totals: j.Totals}
	if !s.inTotals(j.Totals) {
		return said, nil
	}
	changed, err = RedactValues(totals)
	j.Totals, j.CountersDropped = totals.Totals, j.CountersDropped || totals.CountersDropped
	return said || changed, err
}

// RedactValues takes out of a job's record what may quote an entity, whatever its query: errors,
// and the names of counters and namespaces. It reports whether there was something.
func RedactValues(j *Job) (changed bool, err error) {
	for _, text := range []*string{&j.Error, &j.Trouble, &j.RetryOf} {
		if *text != "" && *text != erasedText {
			*text, changed = erasedText, true
		}
	}
	if len(j.Totals) == 0 {
		return changed, nil
	}
	sum, err := j.RecordedTotals()
	if err != nil || len(sum.Counters)+len(sum.Spaces) == 0 {
		return changed, err
	}
	j.CountersDropped = j.CountersDropped || len(sum.Counters) > 0
	sum.Counters, sum.Spaces, sum.SpacesLeftOut = nil, nil, 0
	return true, sum.RecordIn(j)
}

// ComesAnywhere reports whether a job may come to entities, or to records, whatever their
// namespace: an undo does, too.
func ComesAnywhere(j *Job) bool {
	var q struct {
		Kind string `json:"kind"`
		All  bool   `json:"all_namespaces"`
	}
	return json.Unmarshal(j.Query, &q) != nil || q.All || q.Kind == RangeKind
}

// NamesKeys reports whether the query of a job has keys.
func NamesKeys(j *Job) bool {
	var q struct{ Ancestor, Start, End json.RawMessage }
	return json.Unmarshal(j.Query, &q) != nil || len(q.Ancestor)+len(q.Start)+len(q.End) > 0
}

// RedactPast takes out of what became of a schedule's ticks the IDs of jobs that mention a subject:
// a hash of each stays, whose salt nobody keeps. What can't be read goes.
func (s *Schedule) RedactPast(of Subject, salt string) {
	all := s.past()
	for i, p := range all {
		if of.InText(p.Job) {
			all[i].Job = "erased-" + Salted(salt, p.Job)
		}
	}
	s.Past = nil
	if len(all) > 0 {
		s.Past, _ = json.Marshal(all) // as in note
	}
}
