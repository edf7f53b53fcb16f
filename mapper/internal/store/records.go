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

// Records returns the query for the records of a job's ranges with IDs in [from, to), in the order
// of IDs. An empty to means the end. IDs are hashes, so any interval of them is a random sample.
func Records(job record.Ref, from, to string) *datastore.Query {
	prefix := record.RangePrefix(job)
	if to == "" {
		to = "g" // greater than all hexadecimal digits
	}
	return datastore.NewQuery(record.RangeKind).Order("__key__").
		FilterField("__key__", ">=", datastore.NameKey(record.RangeKind, prefix+from, nil)).
		FilterField("__key__", "<", datastore.NameKey(record.RangeKind, prefix+to, nil))
}

// Each reads the records of ranges that the query q finds, and calls f for each of them.
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

// SlicesOfIDs is the number of slices in which the records of a job's ranges are read in parallel.
// A slice has all IDs with the same first hexadecimal digit.
const SlicesOfIDs = 16

// SliceOfIDs returns the bounds of slice i of a job's range IDs, as arguments for [Records]. The
// number i is in [0, SlicesOfIDs).
func SliceOfIDs(i int64) (from, to string) {
	if i+1 < SlicesOfIDs {
		to = strconv.FormatInt(i+1, SlicesOfIDs)
	}
	return strconv.FormatInt(i, SlicesOfIDs), to
}

// EachRecord calls f for the record of each range of a job. It reads all slices of the IDs in
// parallel, so f may be called by several goroutines at the same time.
func (st Store) EachRecord(ctx context.Context, job record.Ref, f func(*record.Range) error) error {
	return inSlices(ctx, job, func(ctx context.Context, i int) error {
		from, to := SliceOfIDs(int64(i))
		return st.Each(ctx, Records(job, from, to), f)
	})
}

// inSlices calls do for each number in [0, SlicesOfIDs), in parallel. A call should read the
// job's records whose range IDs are within the bounds that [SliceOfIDs] returns for the number.
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

// Marked returns the query for a job's ranges that have a mark, and an ID greater than after. A
// mark is an indexed property of range records, such as "open". A range has the mark if the
// property's value is the job's ID.
func Marked(mark string, job record.Ref, after string) *datastore.Query {
	if after != "" {
		after += "0" // this is less than the next ID, because all IDs have the same length
	}
	return Records(job, after, "").FilterField(mark, "=", job.ID)
}

// FirstMarked returns up to limit ranges with a mark (see [Marked]) and an ID greater than after.
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

// Page returns one page of a list of a job's ranges with a mark (see [Marked]), and the cursor of
// the next page. An empty cursor stands for the first page. The returned cursor is empty after the
// last page.
func (st Store) Page(
	ctx context.Context, ref record.Ref, mark, cursor string, limit int,
) (ranges []*record.Range, next string, err error) {
	job, err := st.LoadJob(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	if err := job.CheckRecords(); err != nil {
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

// HasOpen reports whether a job has an open range, which is one that still has to be processed.
func (st Store) HasOpen(ctx context.Context, job record.Ref) (bool, error) {
	open, err := st.client.GetAll(ctx, Marked("open", job, "").KeysOnly().Limit(1), nil)
	if err != nil {
		return false, fmt.Errorf("look for open ranges of job %s: %w", job.ID, err)
	}
	return len(open) > 0, nil
}

// LookOpen returns a random sample of up to most of a job's open ranges. The result part is the
// sample's share of all open ranges, in (0, 1].
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

// Sample returns a random sample of up to most records of a job's ranges. They are the first ones
// in the order of IDs, which are hashes. If mark is not empty, it samples only records with this
// mark (see [Marked]). The caller must not change the records, because a context of [Sharing] may
// keep them for other callers.
//
// The result scale is the number of records for which each sampled record stands. It is estimated
// from the last ID that was read. If the sample has all records, it is 1.
func (st Store) Sample(
	ctx context.Context, job record.Ref, mark string, most int,
) (some []*record.Range, scale float64, err error) {
	got, err := sharedIn(ctx, sampled{job, mark, most}, func() (sample, error) {
		return st.firstRecords(ctx, job, mark, most)
	})
	return got.records, got.scale, err
}

// count returns how many entities a query finds. It reads only keys.
func (st Store) count(ctx context.Context, q *datastore.Query) (n int64, err error) {
	for it := st.client.Run(ctx, q.KeysOnly()); ; n++ {
		if _, err := it.Next(nil); errors.Is(err, iterator.Done) {
			return n, nil
		} else if err != nil {
			return 0, err
		}
	}
}

// FailurePage is the number of failures that are read at a time.
const FailurePage = 100

// CountFailures counts a job's failed entities. If most is not 0, the result is at most most.
func (st Store) CountFailures(ctx context.Context, job record.Ref, most int) (n int64, err error) {
	q := Marked("failed", job, "")
	if most > 0 {
		q = q.Limit(most)
	}
	return st.count(ctx, q)
}

// SampleSize is the number of records that are sampled for a job's status or picture. One answer of
// Datastore has up to 300 records.
const SampleSize = 250

// firstRecords reads the first records in the order of their IDs, up to most, for [Store.Sample].
func (st Store) firstRecords(ctx context.Context, job record.Ref, mark string, most int) (got sample, err error) {
	q := Records(job, "", "")
	if mark != "" {
		q = Marked(mark, job, "")
	}
	err = st.Each(ctx, q.Limit(most), func(r *record.Range) error {
		got.records = append(got.records, r)
		return nil
	})
	if got.scale = 1; err != nil {
		return got, err
	}
	if len(got.records) < most {
		return got, nil
	}
	last := got.records[most-1].ID
	position, err := record.Hash(last)
	if err != nil {
		return sample{scale: 1}, fmt.Errorf("job %s: range %q: %w", job.ID, last, err)
	}
	const space = 1 << 64
	got.scale = space / (float64(position) + 1)
	return got, nil
}

// Sharing returns a context that caches what is read about jobs, for example while one page of a
// dashboard is built. With this context, each sample and each census of a job is read from the
// database only once. Later calls of Sample and Census return the same results. LoadedJob returns
// the record that LoadJob has read last.
func Sharing(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, &shared{all: make(map[any]any)})
}

type sharedKey struct{}

// A sampled is the key of a cached result of [Store.Sample]: the arguments of the call.
type sampled struct {
	job  record.Ref
	mark string
	most int
}

// A sample has the results of a call of [Store.Sample].
type sample struct {
	records []*record.Range
	scale   float64
}

// A shared holds the results that calls have read in a context of [Sharing].
type shared struct {
	mu sync.Mutex
	// The values are functions that return a result. Each key names a result, for example
	// [sampled].
	all map[any]any
}

// A loaded is the key of a job's record in [shared]. Its text is the job's ID.
type loaded string

// share stores the record of a job in a context of [Sharing], for LoadedJob.
func share(ctx context.Context, j *record.Job) {
	if s, ok := ctx.Value(sharedKey{}).(*shared); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all[loaded(j.ID)] = func() (*record.Job, error) { return j, nil }
	}
}

// LoadedJob returns a job's record. In a context of [Sharing], it returns the record that LoadJob
// has read last, if there is one.
func (st Store) LoadedJob(ctx context.Context, ref record.Ref) (*record.Job, error) {
	if s, ok := ctx.Value(sharedKey{}).(*shared); ok {
		s.mu.Lock()
		read, ok := s.all[loaded(ref.ID)].(func() (*record.Job, error))
		s.mu.Unlock()
		if ok {
			return read()
		}
	}
	return st.LoadJob(ctx, ref)
}

// sharedIn returns the result of read. In a context of [Sharing], only the first call with the same
// key calls read. Later calls return its result.
func sharedIn[T any](ctx context.Context, key any, read func() (T, error)) (T, error) {
	s, ok := ctx.Value(sharedKey{}).(*shared)
	if !ok {
		return read()
	}
	s.mu.Lock()
	once, ok := s.all[key].(func() (T, error))
	if !ok {
		once = sync.OnceValues(read)
		s.all[key] = once
	}
	s.mu.Unlock()
	return once()
}

// Due loads up to limit jobs of a queue whose automatic clean-up is due. The job that is due
// longest comes first.
func (st Store) Due(ctx context.Context, queue record.Owner, now time.Time, limit int) ([]*record.Job, error) {
	from, to := record.RetiringBounds(queue, now)
	q := datastore.NewQuery(record.JobKind).FilterField("retires", ">=", from).FilterField("retires", "<", to)
	return st.jobs(ctx, q.Order("retires").Limit(limit))
}
