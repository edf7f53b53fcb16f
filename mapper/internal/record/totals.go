package record

import (
	"encoding/json"

	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// Totals are the sums over the records of a job's ranges.
type Totals struct {
	Processed int64 `json:"processed"`
	Written   int64 `json:"written,omitempty"`
	Calls     int64 `json:"calls,omitempty"`
	Conflicts int64 `json:"conflicts,omitempty"`
	Failures  int64 `json:"failures"`
	Pages     int64 `json:"pages"`
	FullPages int64 `json:"full_pages"`
	Ranges    int64 `json:"ranges"`
	Tasks     int64 `json:"tasks"` // number of tasks that were enqueued for new ranges
	Pending   int64 `json:"pending"`
	Depth     int64 `json:"depth"`
	Unsharded int64 `json:"unsharded,omitempty"` // entities that lack the property in ShardBy; negative: unknown
	// Retrying is the number of pending ranges of single entities that have failed and are retried.
	Retrying int64 `json:"-"`
	Expected int64 `json:"-"` // sum of the estimates of pending ranges

	Sample *Sample `json:"-"` // the sample to which Add also adds each record; nil: none

	// Counters are the mapper's counters. They are complete after all records are added up, and
	// empty if CountersLost.
	Counters     tally.Grouped[int64] `json:"counters,omitempty"`
	CountersLost bool                 `json:"counters_lost,omitempty"`
	Lost         error                `json:"-"` // why the counters can't be kept; nil: they are kept

	// Spaces has numbers by "namespace/kind", if the query is over several.
	Spaces map[string]SpaceTotals `json:"spaces,omitempty"`

	SpacesLeftOut int `json:"spaces_left_out,omitempty"`
}

// SpaceTotals are the sums over the entities of one kind in one namespace.
type SpaceTotals struct {
	Processed int64 `json:"p"`
	Failures  int64 `json:"f,omitempty"`
}

// Failing returns the number of entities that have failed, including those to be retried.
func (t *Totals) Failing() int64 { return t.Failures + t.Retrying }

// WrittenBy returns the number of entities that the job j with these totals has written. For a
// rehearsal it is 0, because Written has the entities that it would write.
func (t *Totals) WrittenBy(j *Job) int64 {
	if IsRehearsal(j.Mapper) {
		return 0
	}
	return t.Written
}

// PerEntity returns what one entity uses of the rate of the job j: one entity, and the average
// numbers of writes and calls.
func (t *Totals) PerEntity(j *Job) pace.Need {
	n := float64(max(1, t.Processed))
	return pace.Need{Entities: 1, Writes: float64(t.WrittenBy(j)) / n, Calls: float64(t.Calls) / n}
}

// RecordIn encodes the totals and stores them in the job's record.
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

// keepBefore copies the totals of a job that has succeeded into its field Before, because the job
// runs again. It leaves out the names of counters, kinds and namespaces, because these names may
// later be redacted in the totals.
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

// TotalsBefore returns the totals of the job's success, while the job runs again to retry its
// failures. Otherwise it returns nil. The successful entities are not processed again.
func (j *Job) TotalsBefore() *Totals {
	sum := new(Totals)
	if json.Unmarshal(j.Before, sum) != nil {
		return nil
	}
	return sum
}
