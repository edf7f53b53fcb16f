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
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// records returns the query for a job's records whose IDs are in [from, to), in
// the order of their IDs, which are hashes: any stretch of them is a random
// choice. An empty to is the end.
func records(job record.Ref, from, to string) *datastore.Query {
	prefix := record.RangePrefix(job)
	if to == "" {
		to = "g" // above all hexadecimal digits
	}
	return datastore.NewQuery(record.RangeKind).Order("__key__").
		FilterField("__key__", ">=", datastore.NameKey(record.RangeKind, prefix+from, nil)).
		FilterField("__key__", "<", datastore.NameKey(record.RangeKind, prefix+to, nil))
}

// each calls f for the records of a query.
func (e *Engine) each(ctx context.Context, q *datastore.Query, f func(*record.Range) error) error {
	it := e.client.Run(ctx, q)
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
func (e *Engine) eachRecord(ctx context.Context, job record.Ref, f func(*record.Range) error) error {
	return e.eachInSlices(ctx, job, func(int) func(*record.Range) error { return f })
}

// eachInSlices calls a function of each slice for its records, in parallel.
func (e *Engine) eachInSlices(ctx context.Context, job record.Ref, slice func(i int) func(*record.Range) error) error {
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
func (e *Engine) fold(ctx context.Context, job *record.Job) (*record.Ledger, error) {
	var parts [slicesOfIDs]record.Ledger
	if err := e.eachInSlices(ctx, job.Ref(), func(i int) func(*record.Range) error { return parts[i].Add }); err != nil {
		return nil, err
	}
	sum := new(record.Ledger)
	for i := range parts {
		sum.Merge(&parts[i])
	}
	sum.Close(job)
	return sum, nil
}
