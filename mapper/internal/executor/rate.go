package executor

import (
	"context"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// keepRate waits until the job's rate allows a page of up to n entities. The grant says when the
// page may start, and how many entities it may have. All processes reserve the rate in one record,
// see pace.Meter. If the rate changes during the wait, keepRate reserves again at the new rate. If
// the job stops meanwhile, the range is stopped. After the page, the caller calls settle, which
// reports to the meter how many entities and writes the page had.
func (d *delivery) keepRate(ctx context.Context, n int) (grant pace.Grant, settle func(), s standing, err error) {
	settle = func() {}
	meter := d.x.paces.Meter(d.job.Ref())
	for {
		job, err := d.runningJob(ctx)
		if err != nil || job.State != record.Running {
			return grant, settle, stopped, err
		}
		rate, err := job.RateLimit()
		if err != nil {
			return grant, settle, ours, err
		}
		if rate == (pace.Limit{}) {
			return pace.Grant{N: n}, settle, ours, nil
		}
		if !grant.Of(string(job.Rate)) {
			asked := pace.Request{Limit: rate, Rate: string(job.Rate), N: n, Since: time.Since(job.RampBegan()),
				Each: d.x.paces.Writes(job.Ref(), d.planner.Mode.Writes()),
				Most: pace.WaitWithin(d.x.Queue.DispatchDeadline()), Now: time.Now}
			grant, err = meter.Take(ctx, asked, d.reserve(job))
			if err != nil {
				return grant, settle, ours, err
			}
			settle = sync.OnceFunc(func() {
				if used := d.turn.used; used != nil {
					writes := max(0, float64(used.Writes-pace.RecordWrites-1))
					meter.Settle(grant, rate.Cost(float64(d.turn.reached), writes, asked.Since))
				}
			})
		}
		wait := time.Until(grant.At)
		if wait <= 0 {
			return grant, settle, ours, nil
		}
		select {
		case <-ctx.Done():
			return grant, settle, ours, ctx.Err()
		case <-d.x.Gate.Draining().Done():
			return grant, settle, ours, gate.ErrDraining
		case <-time.After(min(wait, cachedFor)): // check again: the rate may have changed
		}
	}
}

// reserve returns the function that reserves a part of the job's rate. It tries again while other
// processes reserve at the same moment: that is no reason for a delivery to fail.
func (d *delivery) reserve(job *record.Job) pace.Reserve {
	return func(ctx context.Context, ask pace.Ask) (begin time.Time, q pace.Queue, err error) {
		for tries := 1; ; tries++ {
			begin, q, err = d.x.Store.ReserveRate(ctx, job, ask)
			if !fault.Contended(err) {
				return begin, q, err
			}
			if err := rest(ctx, min(tries, 6)); err != nil {
				return begin, q, err
			}
		}
	}
}

// runningJob returns the job, at most a second old. If its rate was temporary and has expired,
// runningJob ends the rate first.
func (d *delivery) runningJob(ctx context.Context) (*record.Job, error) {
	job, err := d.x.cache.load(ctx, d.x.Store, d.job.Ref())
	if err != nil || job.State != record.Running || !record.RateEnds(job, time.Now()) {
		return job, err
	}
	if job, err = d.x.EndRate(ctx, job); err == nil {
		d.x.cache.note(job, time.Now())
	}
	return job, err
}
