package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Sum adds up the numbers in the records of ranges, in any order and in parts. Close then adds
// the counters to its totals. If a job has very many kinds and namespaces, the sum keeps numbers
// only for as many of them as fit in a record.
type Sum struct {
	record.Totals
	tally   tally.Counters
	leftOut tally.Names
}

// addSpace adds the totals of a kind in a namespace. The name is "namespace/kind".
func (s *Sum) addSpace(name string, more record.SpaceTotals) {
	if s.Spaces == nil {
		s.Spaces = make(map[string]record.SpaceTotals)
	}
	t := s.Spaces[name]
	t.Processed += more.Processed
	t.Failures += more.Failures
	s.Spaces[name] = t
	if len(s.Spaces) > 2*maxSpaces {
		s.bound()
	}
}

// Add adds the numbers in the record of a range. It returns an error if the record's counters can't
// be decoded.
func (s *Sum) Add(r *record.Range) error {
	s.Ranges++
	if s.Sample != nil {
		s.Sample.Add(r)
	}
	// An entity that failed finally in its page's commit never had a task of its own.
	if !r.Continued && (!r.Alone || !r.Done.Equal(r.Created)) {
		s.Tasks++
	}
	s.Depth = max(s.Depth, r.Depth)
	s.Unsharded += r.Unsharded
	if r.State != record.Done {
		s.Pending++
		if r.Alone {
			s.Retrying++
		}
		s.Expected += r.Estimate
		return nil
	}
	s.Processed += r.Processed
	s.Written += r.Written
	s.Calls += r.Calls
	s.Conflicts += r.Conflicts
	failed := int64(0)
	if r.Failed != "" {
		failed = 1
	}
	s.Failures += failed
	if r.Kind != "" && r.Processed+failed > 0 {
		s.addSpace(r.Namespace+"/"+r.Kind, record.SpaceTotals{Processed: r.Processed, Failures: failed})
	}
	if r.Processed > 0 || r.Retries+r.Recorded > 0 {
		s.Pages++
		if r.Full {
			s.FullPages++
		}
	}
	if len(r.Counters) > 0 {
		var counters map[string]int64
		if err := json.Unmarshal(r.Counters, &counters); err != nil {
			return fmt.Errorf("counters of range %s: %w", r.ID, err)
		}
		for name, n := range counters {
			s.tally.Add(name, n)
		}
	}
	return nil
}

// merge adds the sum o, which is over other records of the same job.
func (s *Sum) merge(o *Sum) {
	s.Processed += o.Processed
	s.Written += o.Written
	s.Calls += o.Calls
	s.Conflicts += o.Conflicts
	s.Failures += o.Failures
	s.Pages += o.Pages
	s.FullPages += o.FullPages
	s.Ranges += o.Ranges
	s.Tasks += o.Tasks
	s.Pending += o.Pending
	s.Retrying += o.Retrying
	s.Expected += o.Expected
	s.Unsharded += o.Unsharded
	s.Depth = max(s.Depth, o.Depth)
	s.tally.Merge(o.tally)
	s.leftOut.Merge(o.leftOut)
	for name, t := range o.Spaces {
		s.addSpace(name, t)
	}
}

// Close computes the counters, after all records are added.
func (s *Sum) Close(j *record.Job) {
	if !j.CountersDropped {
		s.Counters, s.Lost = s.tally.Values()
		s.CountersLost = s.Lost != nil
	}
	s.bound()
}

// checkStored drops the counters if the totals with them do not fit in a job's record.
func (s *Sum) checkStored() {
	var j record.Job
	if _ = s.RecordIn(&j); len(j.Totals) > tally.MaxStored { // an error leaves Totals empty
		s.Counters, s.Lost, s.CountersLost = nil, tally.ErrTooMany, true
	}
}

// Scale multiplies a sum over a sample of records by factor, so that it estimates the sum over all
// records.
func (s *Sum) Scale(factor float64) {
	if s.Sample != nil {
		s.Sample.Scale, s.Sample.LeftScale = factor, factor
	}
	for _, n := range []*int64{&s.Processed, &s.Written, &s.Calls, &s.Conflicts, &s.Failures, &s.Pages, &s.FullPages,
		&s.Ranges, &s.Tasks, &s.Pending, &s.Retrying, &s.Expected} {
		*n = int64(float64(*n)*factor + 0.5)
	}
	for name, n := range s.Counters {
		if !tally.IsSum(name) {
			continue // a minimum or a maximum can't be extrapolated
		}
		s.Counters[name] = int64(float64(n) * factor)
	}
	for name, t := range s.Spaces {
		s.Spaces[name] = record.SpaceTotals{
			Processed: int64(float64(t.Processed)*factor + 0.5), Failures: int64(float64(t.Failures)*factor + 0.5),
		}
	}
}

// SetPending replaces the numbers about pending ranges by the numbers in o, whose sample has more
// pending ranges.
func (s *Sum) SetPending(o *Sum) {
	s.Pending, s.Retrying, s.Expected = o.Pending, o.Retrying, o.Expected
	s.Sample.SetPending(o.Sample)
}

// SetCensus extrapolates the sum over a sample of records to all records. The argument c has the
// exact numbers of records. The numbers about pending ranges come from open, a sum over a sample of
// these.
func (s *Sum) SetCensus(c record.Census, open *Sum) {
	sampled := s.Sample.Pages
	if sampled > 0 {
		s.Scale(float64(c.Done()) / float64(sampled))
	}
	if n := len(open.Sample.Open); n > 0 {
		open.Scale(max(1, float64(c.Open)/float64(n)))
	}
	s.SetPending(open)
	s.Ranges, s.Pending, s.Failures, s.Sample.Census = c.Ranges, c.Open, c.Failed, &c
}

// Limits of the totals by kind and namespace, which are stored in the record of a job.
const (
	maxSpaces     = 5000
	maxSpaceBytes = 128 << 10 // the maximum size as JSON, in bytes
)

// bound drops the totals of some kinds and namespaces if there are too many: it keeps the first
// ones in the order of names. It may be called before all records are added. A total that it drops
// would also be dropped at the end, because at least as many totals would come before it.
func (s *Sum) bound() {
	bytes := 0
	for i, name := range slices.Sorted(maps.Keys(s.Spaces)) {
		// encoding strings and numbers can't fail
		space, _ := json.Marshal(map[string]record.SpaceTotals{name: s.Spaces[name]})
		if bytes += len(space); i >= maxSpaces || bytes > maxSpaceBytes {
			delete(s.Spaces, name)
			s.leftOut.Add(name)
		}
	}
	s.SpacesLeftOut = s.leftOut.Count()
}
