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

// A Closing is a summary of the records of a job's ranges. If a job's mapper sets
// mapper.Mapper.Forget, the job deletes these records before it ends, and stores the summary in its
// own record.
type Closing struct {
	Ranges   int64  `json:"ranges"`
	Alone    int64  `json:"alone"`
	Failures int64  `json:"failures"`
	Salt     string `json:"salt"`
	// salted hashes of the IDs of other jobs from whose records this job has removed data
	Forgot []string `json:"forgot,omitempty"`
	More   int64    `json:"more,omitempty"` // number of such jobs whose hashes do not fit in Forgot
}

// maxForgot is the largest number of hashes in Forgot. They take about 35 KiB.
const maxForgot = 1000

// Close starts the deletion of the records of the ranges of a running job. The argument c is their
// summary, and sum has their totals. The argument how is JSON that says which records are deleted,
// as in [Job.CleanUp].
func (j *Job) Close(c Closing, sum *Totals, how string) error {
	text, err := json.Marshal(c)
	if err == nil {
		err = sum.RecordIn(j)
	}
	j.Closing, j.Cleaning, j.Cleaned = text, how, true
	return err
}

// DecodeClosing returns the summary of a job's deleted records, or nil if the job does not delete
// its records before its end.
func (j *Job) DecodeClosing() (*Closing, error) {
	if len(j.Closing) == 0 {
		return nil, nil
	}
	c := new(Closing)
	if err := json.Unmarshal(j.Closing, c); err != nil {
		return nil, fmt.Errorf("job %s: what is kept of its records: %w", j.ID, err)
	}
	return c, nil
}

// Forget adds salted hashes of these job IDs to c.Forgot, or counts them in c.More if they do not
// fit. The caller is about to remove data from the records of these jobs. Forget reports whether
// any of the IDs is new.
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

// Salted returns a hash of a text with a salt, so that the text can't be found by hashing guesses
// without the salt.
func Salted(salt, text string) string {
	h := sha256.Sum256([]byte(salt + "\x00" + text))
	return hex.EncodeToString(h[:16])
}

const erasedText = "(erased)"

// Redact removes from a job's record everything that can name an entity, or say what the job was
// about: query, parameters, errors, reasons, and names of counters. Numbers stay. A hash with the
// salt replaces the query and the parameters. The salt is not stored.
//
// The history keeps times, actions, and the names of operators that do not mention the subject s.
// If the subject is empty, no names of operators stay.
func (j *Job) Redact(s Subject, salt string, now time.Time) error {
	hash := Salted(salt, string(j.Query)+"\x00"+string(j.Params))
	j.Query, j.Params = fmt.Appendf(nil, `{"kind":"erased-%s"}`, hash), fmt.Appendf(nil, `{"erased":"%s"}`, hash)
	j.Closing, j.Undo = nil, ""
	acts, _ := j.History.Acts() // after an error, no entries remain
	j.History = nil
	for _, a := range acts {
		if a.Why != "" {
			a.Why = erasedText
		}
		if a.By != "" && (s.InText(a.By) || s.empty()) {
			a.By = erasedText
		}
		if s.InText(a.What) || strings.HasPrefix(a.What, "undone by job") {
			a.What = erasedText
		}
		j.History = j.History.With(a)
	}
	j.Erased = now.UTC().Truncate(time.Microsecond)
	_, err := j.RedactValues()
	return err
}

// RedactTexts removes texts that mention a subject from a job's history, errors and names of
// counters. It does not change the query and the parameters. It reports whether it has removed
// anything.
func (j *Job) RedactTexts(s Subject) (changed bool, err error) {
	acts, err := j.History.Acts()
	said := err != nil // if the history can't be decoded, it is removed, which is a change, too
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
	changed, err = totals.RedactValues()
	j.Totals, j.CountersDropped = totals.Totals, j.CountersDropped || totals.CountersDropped
	return said || changed, err
}

// RedactValues removes from a job's record all texts that may contain data of an entity: errors,
// and the names of counters and namespaces. It reports whether it has removed anything.
func (j *Job) RedactValues() (changed bool, err error) {
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

// ComesAnywhere reports whether the job may read data in any namespace. An undo may, because its
// query selects records of ranges, which can be about any namespace. The result is also true if the
// query can't be decoded.
func (j *Job) ComesAnywhere() bool {
	var q struct {
		Kind string `json:"kind"`
		All  bool   `json:"all_namespaces"`
	}
	return json.Unmarshal(j.Query, &q) != nil || q.All || q.Kind == RangeKind
}

// NamesKeys reports whether a job's query contains keys, as its ancestor, start or end.
func (j *Job) NamesKeys() bool {
	var q struct{ Ancestor, Start, End json.RawMessage }
	return json.Unmarshal(j.Query, &q) != nil || len(q.Ancestor)+len(q.Start)+len(q.End) > 0
}

// RedactPast changes a schedule's past ticks, which are the planned times of its runs. It replaces
// the IDs of jobs that mention the subject by salted hashes. The salt is not stored. Ticks that
// can't be decoded are removed.
func (s *Schedule) RedactPast(of Subject, salt string) {
	all := s.past()
	for i, p := range all {
		if of.InText(p.Job) {
			all[i].Job = "erased-" + Salted(salt, p.Job)
		}
	}
	s.Past = nil
	if len(all) > 0 {
		s.Past, _ = json.Marshal(all) // encoding texts and valid times can't fail
	}
}
