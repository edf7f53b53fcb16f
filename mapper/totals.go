package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// totals is what the records of a job add up to.
type totals struct {
	Processed int64 `json:"processed"`
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

	// Counters are those of the tally, once everything is added up, unless they can't be kept.
	Counters     map[string]int64 `json:"counters,omitempty"`
	CountersLost bool             `json:"counters_lost,omitempty"`
	tally        tally.Counters
	lost         error // why they can't be

	Spaces map[string]spaceTotals `json:"spaces,omitempty"` // by namespace and kind, with a / between them, if the query has several

	SpacesLeftOut int `json:"spaces_left_out,omitempty"`
}

// spaceTotals is what the entities of one space come to.
type spaceTotals struct {
	Processed int64 `json:"p"`
	Failures  int64 `json:"f,omitempty"`
}

// addSpace adds what the entities of a space come to.
func (t *totals) addSpace(name string, more spaceTotals) {
	if t.Spaces == nil {
		t.Spaces = make(map[string]spaceTotals)
	}
	s := t.Spaces[name]
	s.Processed += more.Processed
	s.Failures += more.Failures
	t.Spaces[name] = s
}

func (t *totals) add(r *rangeRecord) error {
	t.Ranges++
	if !r.Continued && (!r.Alone || !r.Done.Equal(r.Created)) { // an entity that has failed at once has none
		t.Tasks++
	}
	t.Depth = max(t.Depth, r.Depth)
	t.Unsharded += r.Unsharded
	if r.State != done {
		t.Pending++
		if r.Alone {
			t.Retrying++
		}
		t.Expected += r.Estimate
		return nil
	}
	t.Processed += r.Processed
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

// failing returns how many entities have failed, for good or so far.
func (t *totals) failing() int64 { return t.Failures + t.Retrying }

// merge adds up two parts.
func (t *totals) merge(o totals) {
	t.Processed += o.Processed
	t.Failures += o.Failures
	t.Pages += o.Pages
	t.FullPages += o.FullPages
	t.Ranges += o.Ranges
	t.Tasks += o.Tasks
	t.Pending += o.Pending
	t.Retrying += o.Retrying
	t.Expected += o.Expected
	t.Unsharded += o.Unsharded
	t.Depth = max(t.Depth, o.Depth)
	t.tally.Merge(o.tally)
	for name, s := range o.Spaces {
		t.addSpace(name, s)
	}
}

// close says what the counters come to, once everything is added up.
func (t *totals) close(j *jobRecord) {
	if !j.CountersDropped {
		t.Counters, t.lost = t.tally.Values()
		t.CountersLost = t.lost != nil
	}
	t.bound()
}

// scale multiplies what is known of a part of the records to an estimate of all
// of them.
func (t *totals) scale(factor float64) {
	for _, n := range []*int64{&t.Processed, &t.Failures, &t.Pages, &t.FullPages, &t.Ranges, &t.Tasks, &t.Pending, &t.Retrying, &t.Expected} {
		*n = int64(float64(*n)*factor + 0.5)
	}
	for name, n := range t.Counters {
		t.Counters[name] = int64(float64(n) * factor)
	}
	for name, s := range t.Spaces {
		t.Spaces[name] = spaceTotals{int64(float64(s.Processed)*factor + 0.5), int64(float64(s.Failures)*factor + 0.5)}
	}
}

// records returns the query for a job's records whose IDs are in [from, to), in
// the order of their IDs, which are hashes: any stretch of them is a random
// choice. An empty to is the end.
func records(job jobRef, from, to string) *datastore.Query {
	prefix := rangePrefix(job)
	if to == "" {
		to = "g" // above all hexadecimal digits
	}
	return datastore.NewQuery(rangeKind).Order("__key__").
		FilterField("__key__", ">=", datastore.NameKey(rangeKind, prefix+from, nil)).
		FilterField("__key__", "<", datastore.NameKey(rangeKind, prefix+to, nil))
}

// each calls f for the records of a query.
func (e *Engine) each(ctx context.Context, q *datastore.Query, f func(*rangeRecord) error) error {
	it := e.client.Run(ctx, q)
	for {
		r := new(rangeRecord)
		key, err := it.Next(r)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err := property.IgnoreUndeclared(err); err != nil {
			return err
		}
		r.stored = key
		if err := f(r); err != nil {
			return err
		}
	}
}

// slicesOfIDs is into how many slices the IDs of records are cut, by their first
// digit, for what is done to all records in parallel.
const slicesOfIDs = 16

// sliceOfIDs returns the bounds of a slice, as for records.
func sliceOfIDs(i int64) (from, to string) {
	if i+1 < slicesOfIDs {
		to = strconv.FormatInt(i+1, slicesOfIDs)
	}
	return strconv.FormatInt(i, slicesOfIDs), to
}

// eachRecord calls f for all records of a job's ranges, slice by slice in parallel.
func (e *Engine) eachRecord(ctx context.Context, job jobRef, f func(*rangeRecord) error) error {
	return e.eachInSlices(ctx, job, func(int) func(*rangeRecord) error { return f })
}

// eachInSlices calls a function of each slice for its records, in parallel.
func (e *Engine) eachInSlices(ctx context.Context, job jobRef, slice func(i int) func(*rangeRecord) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range slicesOfIDs {
		from, to := sliceOfIDs(int64(i))
		group.Go(func() error { return e.each(ctx, records(job, from, to), slice(i)) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("read the records of job %s: %w", job.ID, err)
	}
	return nil
}

// fold adds up all records of a job.
func (e *Engine) fold(ctx context.Context, job *jobRecord) (*ledger, error) {
	var parts [slicesOfIDs]ledger
	if err := e.eachInSlices(ctx, job.ref(), func(i int) func(*rangeRecord) error { return parts[i].add }); err != nil {
		return nil, err
	}
	sum := new(ledger)
	for i := range parts {
		sum.merge(&parts[i])
	}
	sum.close(job)
	return sum, nil
}
