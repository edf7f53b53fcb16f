package executor

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// keepRate waits until a page of n entities may begin, which is processed in a mode, and returns
// when that is: for the first one of a delivery, which is the one behind none, a random time, so
// that deliveries which begin together do not go on together. If the page has become much too large
// for the rate meanwhile, or the job does not run any more, it returns how the range stands; and a
// job whose rate has changed, with its new rate. A page for which others wait is none of many, and
// does not wait itself.
func (x *Executor) keepRate(
	ctx context.Context, job *record.Job, mode function.Mode, n int, behind time.Time,
) (_ *record.Job, began time.Time, _ standing, err error) {
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
		if record.RateEnds(now, time.Now()) {
			if now, err = x.Jobs.EndRate(ctx, now); err != nil {
				return job, behind, ours, err
			}
			x.cache.note(now, time.Now())
		}
		rate, err := now.RateLimit()
		if err != nil {
			return job, behind, ours, err
		}
		spacing := time.Duration(0)
		if rate != (pace.Limit{}) {
			each, since := x.paces.Writes(job.Ref(), mode.Writes()), time.Since(now.RampBegan())
			spacing = rate.Spacing(n, each, now.AtOnce(), since)
			if n > 2*rate.Page(n, each, now.AtOnce(), since, pace.WaitWithin(x.Queue.DispatchDeadline())) {
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
		case <-x.Gate.Draining().Done():
			return job, behind, ours, gate.ErrDraining
		case <-time.After(min(wait, cachedFor)): // the rate may change meanwhile
		}
	}
}
