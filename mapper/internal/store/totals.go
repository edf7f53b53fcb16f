package store

import (
	"context"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// statusRecords is how many records a live status reads at most.
const statusRecords = 250

// SampleTotals adds up the first records of a job. If there are more, their IDs tell
// which part of all they are, because IDs are hashes.
func (st Store) SampleTotals(ctx context.Context, job *record.Job) (sum record.Totals, estimated bool, err error) {
	n, last := 0, ""
	err = st.Each(ctx, Records(job.Ref(), "", "").Limit(statusRecords), func(r *record.Range) error {
		n, last = n+1, r.ID
		return sum.Add(r)
	})
	sum.Close(job)
	if err != nil || n < statusRecords {
		return sum, false, err
	}
	position, err := record.Hash(last)
	if err != nil {
		return record.Totals{}, false, fmt.Errorf("job %q: %w", last, err)
	}
	const space = 1 << 64
	sum.Scale(space / (float64(position) + 1))
	return sum, true, nil
}
