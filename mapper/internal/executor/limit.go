package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// limitFailures pauses the job if too many of its entities have failed. It counts only if an entity
// of the current range has failed. The range's record says this, also if another delivery has done
// the range.
func (d *delivery) limitFailures(ctx context.Context) error {
	failed := int(d.record.Recorded)
	if d.record.Failed != "" {
		failed++
	}
	if failed == 0 {
		return nil
	}
	over, sum, err := d.overLimit(ctx, failed)
	if over == "" {
		return err
	}
	ctx = observe.WithWhy(ctx, over)
	job, err := d.x.Change(ctx, d.job.Ref(), record.PausedByFailures, func(j *record.Job) (bool, error) {
		return j.PauseByLimit(d.job.Epoch, over, &sum), nil
	})
	if err == nil {
		d.job = job
	}
	return err
}

// overLimit returns a text that names the limit which the job's failures exceed. If they exceed
// none, or after an error, it returns "". failures is the number of failed entities in this range.
// For the limit on the share of failures, overLimit also returns sum: the job's totals, estimated
// from a sample.
func (d *delivery) overLimit(ctx context.Context, failures int) (over string, sum record.Totals, err error) {
	if limit := int(d.job.Limit); limit > 0 && d.oneOf(limit/100/failures) {
		failed, err := d.x.Store.CountFailures(ctx, d.job.Ref(), limit+1)
		if err != nil {
			return "", sum, fmt.Errorf("count the failures of job %s: %w", d.job.ID, err)
		}
		switch {
		case failed > 1 && limit == 1:
			return "more than one entity has failed", sum, nil
		case failed > int64(limit):
			return fmt.Sprintf("more than %d entities have failed", limit), sum, nil
		}
	}
	if d.job.LimitShare < 1 {
		if sum, _, err = d.x.Store.SampleTotals(ctx, d.job); err != nil {
			return "", sum, err
		}
		const fewest = 10 // a share of fewer entities says too little
		failed, tried := sum.Failures-d.job.Failures, sum.Failures+sum.Processed-d.job.Tried
		if failed > fewest && float64(failed) > d.job.LimitShare*float64(tried) {
			over = fmt.Sprintf("about %d of %d entities have failed", failed, tried)
		}
	}
	return over, sum, nil
}

// oneOf picks one range in n, by a hash of the range's ID. It reports whether this is the current
// range, which then counts all failures of the job. If each range counted them, the cost would grow
// with the square of the limit.
func (d *delivery) oneOf(n int) bool {
	hash, _ := record.Hash(d.record.ID) // 0 for an invalid ID
	return hash%uint64(max(1, n)) == 0
}

// tolerable returns an error if a page has more failures than the limits allow: the function is
// probably at fault. A full page is judged alone. A smaller page is judged together with this
// process's last calls and the job's totals.
//
// If the job was resumed after it had failed (record.Job.Tolerant), it returns no error: after
// their last attempt, the entities become failures. Two kinds of failures do not count, because
// they say nothing about the function: conflicts with other clients, and calls that a service
// refuses for now.
func (d *delivery) tolerable(ctx context.Context, o *page.Results) error {
	var failures []record.Failure
	tolerates := d.job.Tolerant
	for _, f := range o.Failures {
		if !errors.Is(f.Err, errHot) && !fault.IsLater(f.Err) {
			failures, tolerates = append(failures, f), tolerates && f.Last(d.job.Backoff().Attempts)
		}
	}
	failed := len(failures)
	if failed == 0 || d.record.Alone || tolerates {
		return nil
	}
	r := fault.Refusal{Cause: failures[0].Err, Final: true}
	switch {
	case pace.TooMany(failed, max(o.Reached, int(d.job.PageSize))):
		r.Summary = fmt.Sprintf("the function failed on %d of %d entities of a page", failed, o.Reached)
	case failed*2 > o.Reached: // a small or slow page has too few entities to judge alone
		lately := d.x.paces.Brake(d.job.Ref()).Lately()
		if !pace.TooMany(lately.Failed, lately.All) {
			return nil
		}
		// checked because the last calls may be about a cluster of bad entities
		sum, _, err := d.x.Store.SampleTotals(ctx, d.job)
		if err != nil {
			return err
		}
		if !pace.TooMany(failed+int(sum.Failing()), o.Reached+int(sum.Failing()+sum.Processed)) {
			return nil
		}
		r.Final = lately.Busy == 0
		r.Summary = fmt.Sprintf("the function failed on %d of the last %d entities", lately.Failed, lately.All)
	default:
		return nil
	}
	for _, f := range failures {
		r.Final = r.Final && f.Permanent
	}
	return r
}
