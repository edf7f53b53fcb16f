package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// limitFailures pauses the job if too many entities have failed, of which so many are this
// delivery's. It returns the job.
func limitFailures(ctx context.Context, d *delivery, failed int) (*record.Job, error) {
	if failed == 0 {
		return d.job, nil
	}
	over, sum, err := overLimit(ctx, d, failed)
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
func overLimit(ctx context.Context, d *delivery, failures int) (over string, sum record.Totals, err error) {
	if limit := int(d.job.Limit); limit > 0 && oneOf(d, limit/100/failures) {
		failed, err := d.x.Store.CountFailures(ctx, d.job.Ref(), limit+1)
		if err != nil {
			return "", sum, fmt.Errorf("count the failures of job %s: %w", d.job.ID, err)
		}
		if failed > int64(limit) {
			return fmt.Sprintf("more than %d entities have failed", limit), sum, nil
		}
	}
	if d.job.LimitShare < 1 {
		if sum, _, err = d.x.Store.SampleTotals(ctx, d.job); err != nil {
			return "", sum, err
		}
		const fewest = 10 // as many say nothing yet
		failed, tried := sum.Failures-d.job.Failures, sum.Failures+sum.Processed-d.job.Tried
		if failed > fewest && float64(failed) > d.job.LimitShare*float64(tried) {
			over = fmt.Sprintf("about %d of %d entities have failed", failed, tried)
		}
	}
	return over, sum, nil
}

// oneOf chooses one range of n, by its ID, which is a hash: so that counting up to
// a limit does not cost its square.
func oneOf(d *delivery, n int) bool {
	hash, err := record.Hash(d.record.ID)
	return err != nil || hash%uint64(max(1, n)) == 0
}

// tolerable returns an error if so much fails that its entities can't be blamed: of a full page, or
// of what this process has called lately and of what the job has done so far. A tolerant job has
// them recorded after their last attempt. Entities that others change, and calls that a service
// refuses for now, say nothing about the function.
func tolerable(ctx context.Context, d *delivery, o *page.Results) error {
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
	case failed*2 > o.Reached: // a small page, or one that took its time, says little by itself
		lately := d.x.paces.Brake(d.job.Ref()).Lately()
		if !pace.TooMany(lately.Failed, lately.All) {
			return nil
		}
		sum, _, err := d.x.Store.SampleTotals(ctx, d.job) // bad neighbours may be all that was called lately
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
		r.After = max(r.After, fault.After(f.Err))
	}
	return r
}
