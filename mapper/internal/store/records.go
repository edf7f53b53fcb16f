package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// Records returns the query for a job's records whose IDs are in [from, to), in
// the order of their IDs, which are hashes: any stretch of them is a random
// choice. An empty to is the end.
func Records(job record.Ref, from, to string) *datastore.Query {
	prefix := record.RangePrefix(job)
	if to == "" {
		to = "g" // above all hexadecimal digits
	}
	return datastore.NewQuery(record.RangeKind).Order("__key__").
		FilterField("__key__", ">=", datastore.NameKey(record.RangeKind, prefix+from, nil)).
		FilterField("__key__", "<", datastore.NameKey(record.RangeKind, prefix+to, nil))
}

// Each calls f for the records of a query.
func (st Store) Each(ctx context.Context, q *datastore.Query, f func(*record.Range) error) error {
	it := st.client.Run(ctx, q)
	for {
		r := new(record.Range)
		key, err := it.Next(r)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err := property.IgnoreUndeclared(err); err != nil {
			return err
		}
		r.Stored = key
		if err := f(r); err != nil {
			return err
		}
	}
}

// SlicesOfIDs is into how many slices the IDs of records are cut, by their first
// digit, for what is done to all records in parallel.
const SlicesOfIDs = 16

// SliceOfIDs returns the bounds of a slice, as for records.
func SliceOfIDs(i int64) (from, to string) {
	if i+1 < SlicesOfIDs {
		to = strconv.FormatInt(i+1, SlicesOfIDs)
	}
	return strconv.FormatInt(i, SlicesOfIDs), to
}

// EachRecord calls f for all records of a job's ranges, slice by slice in parallel.
func (st Store) EachRecord(ctx context.Context, job record.Ref, f func(*record.Range) error) error {
	return inSlices(ctx, job, func(ctx context.Context, i int) error {
		from, to := SliceOfIDs(int64(i))
		return st.Each(ctx, Records(job, from, to), f)
	})
}

// inSlices does something for each slice of a job's records, in parallel.
func inSlices(ctx context.Context, job record.Ref, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range SlicesOfIDs {
		group.Go(func() error { return do(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("read the records of job %s: %w", job.ID, err)
	}
	return nil
}

// Marked returns the query for a job's ranges that have one of the two marks and are behind one,
// in the order of their IDs.
func Marked(mark string, job record.Ref, after string) *datastore.Query {
	if after != "" {
		after += "0" // is above it, and below all other IDs that are: they have the same length
	}
	return Records(job, after, "").FilterField(mark, "=", job.ID)
}

// FirstMarked returns the first ranges behind one that have one of the two marks.
func (st Store) FirstMarked(
	ctx context.Context, mark string, job record.Ref, after string, limit int,
) ([]*record.Range, error) {
	var all []*record.Range
	err := st.Each(ctx, Marked(mark, job, after).Limit(limit), func(r *record.Range) error {
		all = append(all, r)
		return nil
	})
	return all, err
}

// Page returns some ranges of a job that have a mark, and the cursor of the next; empty is the
// beginning, and the end.
func (st Store) Page(
	ctx context.Context, ref record.Ref, mark, cursor string, limit int,
) (ranges []*record.Range, next string, err error) {
	job, err := st.LoadJob(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	if err := record.CheckRecords(job); err != nil {
		return nil, "", err
	}
	after, ok := strings.CutPrefix(cursor, job.Incarnation)
	if cursor != "" && (!ok || !record.ValidRangeID(after)) {
		return nil, "", fmt.Errorf("%w: the cursor %.80q is not one that the job's listing has returned",
			fault.ErrArguments, cursor)
	}
	if ranges, err = st.FirstMarked(ctx, mark, job.Ref(), after, limit); len(ranges) == limit {
		next = job.Incarnation + ranges[limit-1].ID
	}
	return ranges, next, err
}

// HasOpen reports whether a range of a job is open.
func (st Store) HasOpen(ctx context.Context, job record.Ref) (bool, error) {
	open, err := st.client.GetAll(ctx, Marked("open", job, "").KeysOnly().Limit(1), nil)
	if err != nil {
		return false, fmt.Errorf("look for open ranges of job %s: %w", job.ID, err)
	}
	return len(open) > 0, nil
}

// LookOpen looks at open ranges of a job, up to most of them: a random choice, and which part of
// all they are.
func (st Store) LookOpen(
	ctx context.Context, job record.Ref, most int,
) (some []split.OpenRange, part float64, err error) {
	open, scale, err := st.Sample(ctx, job, "open", most)
	now := time.Now()
	for _, r := range open {
		some = append(some, split.OpenRange{Estimate: r.Estimate, Pace: r.Pace, Age: max(0, now.Sub(r.Due()))})
	}
	return some, 1 / scale, err
}

// Sample returns the first records of a job that have a mark, or of all if it is empty: a random
// choice, as their IDs are hashes. Scale is how many times as many there are, which the last ID
// tells; 1 if these are all. The records are not to be changed: see Sharing.
func (st Store) Sample(
	ctx context.Context, job record.Ref, mark string, most int,
) (some []*record.Range, scale float64, err error) {
	if s, ok := ctx.Value(sharedKey{}).(*shared); ok {
		return s.sample(sampled{job, mark, most}, func() ([]*record.Range, float64, error) {
			return firstRecords(ctx, st, job, mark, most)
		})
	}
	return firstRecords(ctx, st, job, mark, most)
}

// count counts the results of a query, which are read without their properties.
func (st Store) count(ctx context.Context, q *datastore.Query) (n int64, err error) {
	for it := st.client.Run(ctx, q.KeysOnly()); ; n++ {
		if _, err := it.Next(nil); errors.Is(err, iterator.Done) {
			return n, nil
		} else if err != nil {
			return 0, err
		}
	}
}

// FailurePage is how many failures are read at once.
const FailurePage = 100

// CountFailures counts the failures of a job, up to most of them if that is not 0.
func (st Store) CountFailures(ctx context.Context, job record.Ref, most int) (n int64, err error) {
	q := Marked("failed", job, "")
	if most > 0 {
		q = q.Limit(most)
	}
	return st.count(ctx, q)
}

// SampleSize is how many records a sample of a job has, for a status or a picture. Those of one
// call of Datastore are 300.
const SampleSize = 250

// firstRecords reads a sample.
func firstRecords(
	ctx context.Context, st Store, job record.Ref, mark string, most int,
) (some []*record.Range, scale float64, err error) {
	q := Records(job, "", "")
	if mark != "" {
		q = Marked(mark, job, "")
	}
	err = st.Each(ctx, q.Limit(most), func(r *record.Range) error {
		some = append(some, r)
		return nil
	})
	if err != nil || len(some) < most {
		return some, 1, err
	}
	last := some[most-1].ID
	position, err := record.Hash(last)
	if err != nil {
		return nil, 1, fmt.Errorf("job %s: range %q: %w", job.ID, last, err)
	}
	const space = 1 << 64
	return some, space / (float64(position) + 1), nil
}

// Sharing returns a context with which a sample is read once: who asks for it again gets the same
// records.
func Sharing(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, new(shared))
}

type sharedKey struct{}

// A sampled is what a sample is of.
type sampled struct {
	job  record.Ref
	mark string
	most int
}

// A sample is what was read.
type sample struct {
	once    sync.Once
	records []*record.Range
	scale   float64
	err     error
}

// A shared has the samples of a context.
type shared struct {
	mu  sync.Mutex
	all map[sampled]*sample
}

// sample returns what was read, or reads it. Who asks for it meanwhile waits.
func (s *shared) sample(of sampled, read func() ([]*record.Range, float64, error)) ([]*record.Range, float64, error) {
	s.mu.Lock()
	have := s.all[of]
	if have == nil {
		if s.all == nil {
			s.all = make(map[sampled]*sample)
		}
		have = new(sample)
		s.all[of] = have
	}
	s.mu.Unlock()
	have.once.Do(func() { have.records, have.scale, have.err = read() })
	return have.records, have.scale, have.err
}

// Due loads jobs of a queue whose retention has come to its end, the one that waits longest first.
func Due(ctx context.Context, st Store, queue record.Owner, now time.Time, limit int) ([]*record.Job, error) {
	from, to := record.RetiringBounds(queue, now)
	q := datastore.NewQuery(record.JobKind).FilterField("retires", ">=", from).FilterField("retires", "<", to)
	return st.jobs(ctx, q.Order("retires").Limit(limit))
}
