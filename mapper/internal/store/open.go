package store

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Marked returns the query for a job's ranges that have one of the two marks and are behind one,
// in the order of their IDs.
func Marked(mark string, job record.Ref, after string) *datastore.Query {
	if after != "" {
		after += "0" // is above it, and below all other IDs that are: they have the same length
	}
	return Records(job, after, "").FilterField(mark, "=", job.ID)
}

// FirstMarked returns the first ranges behind one that have one of the two marks.
func (st Store) FirstMarked(ctx context.Context, mark string, job record.Ref, after string, limit int) ([]*record.Range, error) {
	var all []*record.Range
	err := st.Each(ctx, Marked(mark, job, after).Limit(limit), func(r *record.Range) error {
		all = append(all, r)
		return nil
	})
	return all, err
}

// HasOpen reports whether a range of a job is open.
func (st Store) HasOpen(ctx context.Context, job record.Ref) (bool, error) {
	open, err := st.client.GetAll(ctx, Marked("open", job, "").KeysOnly().Limit(1), nil)
	if err != nil {
		return false, fmt.Errorf("look for open ranges of job %s: %w", job.ID, err)
	}
	return len(open) > 0, nil
}

// FailurePage is how many failures are read at once.
const FailurePage = 100

// CountFailures counts the failures of a job, up to most of them if that is not 0.
func (st Store) CountFailures(ctx context.Context, job record.Ref, most int) (n int64, err error) {
	q := Marked("failed", job, "").KeysOnly()
	if most > 0 {
		q = q.Limit(most)
	}
	for it := st.client.Run(ctx, q); ; n++ {
		if _, err := it.Next(nil); errors.Is(err, iterator.Done) {
			return n, nil
		} else if err != nil {
			return 0, err
		}
	}
}
