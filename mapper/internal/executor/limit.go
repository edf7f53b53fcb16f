package executor

import (
	"context"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// limitFailures pauses the job if too many entities have failed, of which so many are this
// delivery's. It returns the job.
func limitFailures(ctx context.Context, d *delivery, failed int) (*record.Job, error) {
	if failed == 0 {
		return d.job, nil
	}
	over, sum, err := overLimit(ctx, &d.claim, failed)
	if err != nil || over == "" {
		return d.job, err
	}
	job, err := d.x.Change(ctx, d.job.Ref(), over, func(j *record.Job) (bool, error) {
		return j.PauseByLimit(d.job.Epoch, over, &sum), nil
	})
	if err != nil {
		return d.job, err
	}
	return job, nil
}

// overLimit says which limit the job's failures are over, if any, and what the job
// has done so far, about, if that matters.
func overLimit(ctx context.Context, c *claim, failures int) (over string, sum record.Totals, err error) {
	if limit := int(c.job.Limit); limit > 0 && oneOf(c, limit/100/failures) {
		failed, err := c.store.CountFailures(ctx, c.job.Ref(), limit+1)
		if err != nil {
			return "", sum, fmt.Errorf("count the failures of job %s: %w", c.job.ID, err)
		}
		if failed > int64(limit) {
			return fmt.Sprintf("more than %d entities have failed", limit), sum, nil
		}
	}
	if c.job.LimitShare < 1 {
		if sum, _, err = c.store.SampleTotals(ctx, c.job); err != nil {
			return "", sum, err
		}
		const fewest = 10 // as many say nothing yet
		failed, tried := sum.Failures-c.job.Failures, sum.Failures+sum.Processed-c.job.Tried
		if failed > fewest && float64(failed) > c.job.LimitShare*float64(tried) {
			over = fmt.Sprintf("about %d of %d entities have failed", failed, tried)
		}
	}
	return over, sum, nil
}

// oneOf chooses one range of n, by its ID, which is a hash: so that counting up to
// a limit does not cost its square.
func oneOf(c *claim, n int) bool {
	hash, err := record.Hash(c.record.ID)
	return err != nil || hash%uint64(max(1, n)) == 0
}
