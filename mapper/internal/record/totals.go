package record

import (
	"encoding/json"

	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// Totals are the sums over the records of a job.
type Totals struct {
	Processed int64 `json:"processed"`
	Written   int64 `json:"written,omitempty"`
	Calls     int64 `json:"calls,omitempty"`
	Conflicts int64 `json:"conflicts,omitempty"`
	Failures  int64 `json:"failures"`
	Pages     int64 `json:"pages"`
	FullPages int64 `json:"full_pages"`
	Ranges    int64 `json:"ranges"`
	Tasks     int64 `json:"tasks"` // tasks that new ranges got
	Pending   int64 `json:"pending"`
	Depth     int64 `json:"depth"`
	Unsharded int64 `json:"unsharded,omitempty"` // negative: unknown
	Retrying  int64 `json:"-"`                   // pending ranges of failed entities that are retried
	Expected  int64 `json:"-"`                   // entities in the pending ranges that have an estimate

	Sample *Sample `json:"-"` // if not nil, records are added to it

	// Waiting is the pending range that is due longest, of those with a task of their own.
	Waiting *Range `json:"-"`

	// Counters are the mapper's counters, after all records are added up. They are empty if
	// CountersLost.
	Counters     tally.Grouped[int64] `json:"counters,omitempty"`
	CountersLost bool                 `json:"counters_lost,omitempty"`
	Lost         error                `json:"-"` // why the counters can't be kept

	// by "namespace/kind", if the query is over several spaces
	Spaces map[string]SpaceTotals `json:"spaces,omitempty"`

	SpacesLeftOut int `json:"spaces_left_out,omitempty"`
}

// SpaceTotals are the sums over the entities of one space.
type SpaceTotals struct {
	Processed int64 `json:"p"`
	Failures  int64 `json:"f,omitempty"`
}

// Failing returns how many entities have failed, including those that are retried.
func (t *Totals) Failing() int64 { return t.Failures + t.Retrying }

// PerEntity returns what the function has needed of the job's rate, for each entity that it
// processed.
func (t *Totals) PerEntity() pace.Need {
	n := float64(max(1, t.Processed))
	return pace.Need{Entities: 1, Writes: float64(t.Written) / n, Calls: float64(t.Calls) / n}
}

// RecordIn stores the totals in the job's record.
func (t *Totals) RecordIn(j *Job) (err error) {
	text, err := json.Marshal(t)
	j.Totals = tally.Pack(text)
	return err
}

// RecordedTotals returns the stored totals of a job that has ended.
func (j *Job) RecordedTotals() (sum Totals, err error) {
	text, err := tally.Unpack(j.Totals)
	if err != nil {
		return sum, err
	}
	return sum, json.Unmarshal(text, &sum)
}

// keepBefore keeps the numbers of a job that has succeeded, for the time in which its failures are
// retried. Names of counters and spaces are left out: they may be redacted in the totals.
func (j *Job) keepBefore() {
	sum, err := j.RecordedTotals()
	if err != nil {
		return
	}
	sum.Counters, sum.Spaces, sum.SpacesLeftOut = nil, nil, 0
	if text, err := json.Marshal(&sum); err == nil {
		j.Before = text
	}
}

// TotalsBefore returns the numbers of a job when it last succeeded, while it retries its failures
// after that; nil: it does not. No entity that was processed then is processed again.
func (j *Job) TotalsBefore() *Totals {
	sum := new(Totals)
	if json.Unmarshal(j.Before, sum) != nil {
		return nil
	}
	return sum
}
