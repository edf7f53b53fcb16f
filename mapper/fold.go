package mapper

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/property"
)

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
