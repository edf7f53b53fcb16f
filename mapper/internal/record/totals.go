package record

import (
	"encoding/json"

	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// Totals is what the records of a job add up to.
type Totals struct {
	Processed int64 `json:"processed"`
	Written   int64 `json:"written,omitempty"`
	Conflicts int64 `json:"conflicts,omitempty"`
	Failures  int64 `json:"failures"`
	Pages     int64 `json:"pages"`
	FullPages int64 `json:"full_pages"`
	Ranges    int64 `json:"ranges"`
	Tasks     int64 `json:"tasks"` // that ranges got when they were made
	Pending   int64 `json:"pending"`
	Depth     int64 `json:"depth"`
	Unsharded int64 `json:"unsharded,omitempty"` // negative: unknown
	Retrying  int64 `json:"-"`                   // of the pending ranges, entities that failed
	Expected  int64 `json:"-"`                   // of the pending ranges that have an estimate

	Sample *Sample `json:"-"` // is added to, if it is there

	// Waiting is the pending range that has waited longest, of those that have tasks of their own.
	Waiting *Range `json:"-"`

	// Counters are those of the tally, once everything is added up, unless they can't be kept.
	Counters     tally.Grouped[int64] `json:"counters,omitempty"`
	CountersLost bool                 `json:"counters_lost,omitempty"`
	Lost         error                `json:"-"` // why they can't be

	// by namespace and kind, with a / between them, if the query has several
	Spaces map[string]SpaceTotals `json:"spaces,omitempty"`

	SpacesLeftOut int `json:"spaces_left_out,omitempty"`
}

// SpaceTotals is what the entities of one space come to.
type SpaceTotals struct {
	Processed int64 `json:"p"`
	Failures  int64 `json:"f,omitempty"`
}

// Failing returns how many entities have failed, for good or so far.
func (t *Totals) Failing() int64 { return t.Failures + t.Retrying }

// RecordIn records what the records of a job add up to, none of which changes any more.
func (t *Totals) RecordIn(j *Job) (err error) {
	text, err := json.Marshal(t)
	j.Totals = tally.Pack(text)
	return err
}

// RecordedTotals returns what the records of a job that has ended add up to.
func (j *Job) RecordedTotals() (sum Totals, err error) {
	text, err := tally.Unpack(j.Totals)
	if err != nil {
		return sum, err
	}
	return sum, json.Unmarshal(text, &sum)
}
