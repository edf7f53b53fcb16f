package record

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

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
	tally        tally.Counters
	Lost         error `json:"-"` // why they can't be

	// by namespace and kind, with a / between them, if the query has several
	Spaces map[string]spaceTotals `json:"spaces,omitempty"`

	SpacesLeftOut int `json:"spaces_left_out,omitempty"`
	leftOut       tally.Names
}

// spaceTotals is what the entities of one space come to.
type spaceTotals struct {
	Processed int64 `json:"p"`
	Failures  int64 `json:"f,omitempty"`
}

// addSpace adds what the entities of a space come to.
func (t *Totals) addSpace(name string, more spaceTotals) {
	if t.Spaces == nil {
		t.Spaces = make(map[string]spaceTotals)
	}
	s := t.Spaces[name]
	s.Processed += more.Processed
	s.Failures += more.Failures
	t.Spaces[name] = s
	if len(t.Spaces) > 2*maxSpaces {
		t.bound()
	}
}

// Add adds the record of a range.
func (t *Totals) Add(r *Range) error {
	t.Ranges++
	if t.Sample != nil {
		t.Sample.add(r)
	}
	if !r.Continued && (!r.Alone || !r.Done.Equal(r.Created)) { // an entity that has failed at once has none
		t.Tasks++
	}
	t.Depth = max(t.Depth, r.Depth)
	t.Unsharded += r.Unsharded
	if r.State != Done {
		t.Pending++
		if r.Alone {
			t.Retrying++
		}
		t.Expected += r.Estimate
		if !r.Continued && (t.Waiting == nil || r.Due().Before(t.Waiting.Due())) {
			t.Waiting = r
		}
		return nil
	}
	t.Processed += r.Processed
	t.Written += r.Written
	t.Conflicts += r.Conflicts
	failed := int64(0)
	if r.Failed != "" {
		failed = 1
	}
	t.Failures += failed
	if r.Kind != "" && r.Processed+failed > 0 {
		t.addSpace(r.Namespace+"/"+r.Kind, spaceTotals{r.Processed, failed})
	}
	if r.Processed > 0 || r.Retries+r.Recorded > 0 {
		t.Pages++
		if r.Full {
			t.FullPages++
		}
	}
	if len(r.Counters) > 0 {
		var counters map[string]int64
		if err := json.Unmarshal(r.Counters, &counters); err != nil {
			return fmt.Errorf("counters of range %s: %w", r.ID, err)
		}
		for name, n := range counters {
			t.tally.Add(name, n)
		}
	}
	return nil
}

// Failing returns how many entities have failed, for good or so far.
func (t *Totals) Failing() int64 { return t.Failures + t.Retrying }

// merge adds up two parts.
func (t *Totals) merge(o Totals) {
	t.Processed += o.Processed
	t.Written += o.Written
	t.Conflicts += o.Conflicts
	t.Failures += o.Failures
	t.Pages += o.Pages
	t.FullPages += o.FullPages
	t.Ranges += o.Ranges
	t.Tasks += o.Tasks
	t.Pending += o.Pending
	t.Retrying += o.Retrying
	t.Expected += o.Expected
	if t.Waiting == nil || o.Waiting != nil && o.Waiting.Due().Before(t.Waiting.Due()) {
		t.Waiting = o.Waiting
	}
	t.Unsharded += o.Unsharded
	t.Depth = max(t.Depth, o.Depth)
	t.tally.Merge(o.tally)
	t.leftOut.Merge(o.leftOut)
	for name, s := range o.Spaces {
		t.addSpace(name, s)
	}
}

// Close says what the counters come to, once everything is added up.
func (t *Totals) Close(j *Job) {
	if !j.CountersDropped {
		t.Counters, t.Lost = t.tally.Values()
		t.CountersLost = t.Lost != nil
	}
	t.bound()
}

// checkStored has the totals of all records have no counters if these take more than the record of
// a job has room for.
func (t *Totals) checkStored() {
	var j Job
	if err := t.RecordIn(&j); err == nil && len(j.Totals) > tally.MaxStored {
		t.Counters, t.Lost, t.CountersLost = nil, tally.ErrTooMany, true
	}
}

// Scale multiplies what is known of a part of the records to an estimate of all
// of them.
func (t *Totals) Scale(factor float64) {
	if t.Sample != nil {
		t.Sample.Scale, t.Sample.LeftScale = factor, factor
	}
	for _, n := range []*int64{&t.Processed, &t.Written, &t.Conflicts, &t.Failures, &t.Pages, &t.FullPages, &t.Ranges,
		&t.Tasks, &t.Pending, &t.Retrying, &t.Expected} {
		*n = int64(float64(*n)*factor + 0.5)
	}
	for name, n := range t.Counters {
		if !tally.IsSum(name) {
			continue // of the part that is known
		}
		t.Counters[name] = int64(float64(n) * factor)
	}
	for name, s := range t.Spaces {
		t.Spaces[name] = spaceTotals{int64(float64(s.Processed)*factor + 0.5), int64(float64(s.Failures)*factor + 0.5)}
	}
}

// SetPending has what is pending be what another part of the records says, which has more of these.
func (t *Totals) SetPending(o Totals) {
	t.Pending, t.Retrying, t.Expected, t.Waiting = o.Pending, o.Retrying, o.Expected, o.Waiting
	t.Sample.pending(o.Sample)
}

// Bounds of what a status says of spaces, which is in the record of a job.
const (
	maxSpaces     = 5000
	maxSpaceBytes = 128 << 10 // as JSON
)

// bound leaves out what a record has no room for. What is left out of a part is left out of the
// whole: there at least as many come before it, whose numbers take at least as much.
func (t *Totals) bound() {
	bytes := 0
	for i, name := range slices.Sorted(maps.Keys(t.Spaces)) {
		space, _ := json.Marshal(map[string]spaceTotals{name: t.Spaces[name]}) // strings and numbers encode
		if bytes += len(space); i >= maxSpaces || bytes > maxSpaceBytes {
			delete(t.Spaces, name)
			t.leftOut.Add(name)
		}
	}
	t.SpacesLeftOut = t.leftOut.Count()
}
