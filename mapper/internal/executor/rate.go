package executor

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// pacedSize returns how many entities a page may have at the job's rate, of one that might have so many.
func (x *Executor) pacedSize(job *record.Job, mode function.Mode, size int) (int, error) {
	rate, err := job.RateLimit()
	if err != nil || rate == (pace.Limit{}) {
		return size, err
	}
	if rate.WritesLimited() && mode == function.Update && x.paces.Get(job.Ref()).Entities == 0 {
		size = min(size, pace.FirstPaced)
	}
	return x.pacedAt(job, mode, rate, size), nil
}

// pacedAt returns how many entities a page may have at a rate.
func (x *Executor) pacedAt(job *record.Job, mode function.Mode, rate pace.Limit, size int) int {
	since := time.Since(job.RampBegan())
	return rate.Page(size, x.paces.Writes(job.Ref(), mode.Writes()), job.AtOnce(), since, pace.WaitWithin(x.Queue.Deadline()))
}

// pageToCut returns the size of the pages that a range is cut for, now and if the function is as fast as
// the job's first pages expect. At a low rate they are small, and each task has its share of the rate: so
// that few entities are still spread over all.
func (x *Executor) pageToCut(job *record.Job, r *record.Range, mode function.Mode) (now, usual int64) {
	now, usual = r.PageSize, job.PageSize
	if rate, err := job.RateLimit(); err == nil && rate != (pace.Limit{}) {
		most := int64(x.pacedAt(job, mode, rate, int(job.PageSize)))
		now, usual = min(now, most), min(usual, most)
	}
	return now, usual
}

// keepRate waits until a page of n entities may begin, which is processed in a mode, and returns when that
// is: for the first one of a delivery, which is the one behind none, a random time, so that deliveries which
// begin together do not go on together. If the page has become much too large for the rate meanwhile, or the
// job does not run any more, it returns how the range stands; and a job whose rate has changed, with its new rate. A page for which
// others wait is none of many, and does not wait itself.
func (x *Executor) keepRate(ctx context.Context, job *record.Job, mode function.Mode, n int, behind time.Time) (_ *record.Job, began time.Time, _ standing, err error) {
	factor := 1.0
	if behind.IsZero() {
		behind, factor = time.Now(), 0.5+rand.Float64()
	}
	for {
		now, err := x.cache.load(ctx, x.Store, job.Ref())
		if err != nil {
			return job, behind, ours, err
		}
		if now.State != record.Running {
			return job, behind, stopped, nil
		}
		rate, err := now.RateLimit()
		if err != nil {
			return job, behind, ours, err
		}
		spacing := time.Duration(0)
		if rate != (pace.Limit{}) {
			each, since := x.paces.Writes(job.Ref(), mode.Writes()), time.Since(now.RampBegan())
			spacing = rate.Spacing(n, each, now.AtOnce(), since)
			if n > 2*rate.Page(n, each, now.AtOnce(), since, pace.WaitWithin(x.Queue.Deadline())) {
				slower := *job
				slower.Rate, slower.RampFrom = now.Rate, now.RampFrom
				return &slower, behind, changed, nil
			}
		}
		wait := time.Until(behind.Add(time.Duration(float64(spacing) * factor)))
		if wait <= 0 {
			return job, time.Now(), ours, nil
		}
		select {
		case <-ctx.Done():
			return job, behind, ours, ctx.Err()
		case <-time.After(min(wait, cachedFor)): // the rate may change meanwhile
		}
	}
}
