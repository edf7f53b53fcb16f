package executor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// keepRate waits until the job's rate allows a page of up to n entities. The grant says when the
// page may start, and how many entities it may have. If the job stops during the wait, keepRate
// returns stopped. The caller calls settle after the page, to tell the meter how many entities and
// writes the page really had.
func (d *delivery) keepRate(ctx context.Context, n int) (grant pace.Grant, settle func(), s standing, err error) {
	ref := d.job.Ref()
	meter, most := d.x.paces.Meter(ref), pace.WaitWithin(d.x.Queue.DispatchDeadline())
	var rate pace.Limit
	var since time.Duration
	grant, err = d.x.awaitRate(ctx, ref, turnstile{meter: meter, clock: record.RateClockKey(ref),
		cost: func(job *record.Job, limit pace.Limit) (pace.Cost, error) {
			if rate = limit.OfPages(); rate == (pace.Limit{}) {
				return nil, nil
			}
			since = time.Since(job.RampBegan())
			return rate.PageCost(n, d.x.paces.Writes(ref, d.planner.Mode.Writes()), since, most), nil
		}})
	switch {
	case errors.Is(err, errStopped):
		return grant, func() {}, stopped, nil
	case err != nil:
		return grant, func() {}, ours, err
	case grant.N == 0: // the rate does not limit pages
		return pace.Grant{N: n}, func() {}, ours, nil
	}
	return grant, sync.OnceFunc(func() {
		if used := d.page.used; used != nil {
			writes := max(0, float64(used.Writes-pace.RecordWrites-1))
			meter.Settle(grant, rate.Cost(float64(d.page.reached), writes, since))
		}
	}), ours, nil
}

// calls returns a function that waits until the job's rate allows calls of a service: see
// page.Page.Calls, which also explains its parameters. If the rate does not limit calls, it returns
// nil. The user's function waits just before it makes a call. inTransaction says whether a
// transaction is open meanwhile.
//
// Calls of a page's first entity may wait longest, because a page that commits nothing would be
// retried forever. They may wait a quarter of the deadline, if the delivery has this time. Calls do
// not wait while a transaction is open, or while another task wants to run exclusively.
func (d *delivery) calls(inTransaction bool) func(ctx context.Context, n int, before int64, first bool) error {
	x, ref, begun, wait := d.x, d.job.Ref(), d.begunAt, d.planner.Wait
	// A rate that can't be read counts as no limit here; other code reports the error.
	if limit, _ := d.job.RateLimit(); limit.CallsPerSecond == 0 {
		return nil
	}
	deadline, timeout := x.Queue.DispatchDeadline(), time.Duration(d.job.Timeout)
	at := turnstile{meter: x.paces.CallMeter(ref), clock: record.CallClockKey(ref)}
	if !d.place.Exclusive {
		at.leave = x.Gate.Wanted()
	}
	return func(ctx context.Context, n int, before int64, first bool) error {
		most := wait
		switch {
		case inTransaction:
			most = 0
		case first:
			most = deadline / 4
		}
		if before == 0 {
			most = at.meter.Begins(most)
		}
		most = min(most, time.Until(begun.Add(deadline*19/20-timeout)))
		at := at
		at.cost = func(_ *record.Job, limit pace.Limit) (pace.Cost, error) {
			if limit.CallsPerSecond == 0 {
				return nil, nil
			}
			if err := checkCalls(limit, before+int64(n), deadline); err != nil {
				return nil, err
			}
			return limit.CallCost(n, most), nil
		}
		_, err := x.awaitRate(ctx, ref, at)
		return err
	}
}

// awaitFirst returns calls without its last parameter: the returned function waits as for calls of
// a page's first entity. If calls is nil, it returns nil.
func awaitFirst(calls func(ctx context.Context, n int, before int64, first bool) error) function.Await {
	if calls == nil {
		return nil
	}
	return func(ctx context.Context, n int, before int64) error { return calls(ctx, n, before, true) }
}

// mostCalls returns the largest number of calls that one run of the function may announce: the
// number that the job's rate allows in half of the queue's deadline. A run with more calls could
// exceed the deadline in each delivery.
func mostCalls(limit pace.Limit, deadline time.Duration) float64 {
	return limit.CallsPerSecond * (deadline / 2).Seconds()
}

// checkCalls returns an error if one run of the function has announced too many calls: see
// mostCalls. The parameter calls is the number of all its calls so far, and deadline the queue's
// dispatch deadline.
func checkCalls(limit pace.Limit, calls int64, deadline time.Duration) error {
	most := mostCalls(limit, deadline)
	if float64(calls) <= most {
		return nil
	}
	return fault.Permanent(fmt.Errorf("one run of the function has announced %d calls, and the rate of %g calls a "+
		"second allows %.0f in %v, half of the queue's dispatch deadline: make fewer calls for an entity, or raise "+
		"the rate", calls, limit.CallsPerSecond, math.Floor(most), deadline/2))
}

// A turnstile describes what waits for the job's rate: a page, or calls of a service.
type turnstile struct {
	meter *pace.Meter
	clock *datastore.Key  // the key of the record in which all processes reserve the rate
	leave <-chan struct{} // closed when the wait must end; nil: never

	// cost returns how much of the rate the page or the calls take. If the rate does not limit
	// them, the Cost is nil.
	cost func(job *record.Job, limit pace.Limit) (pace.Cost, error)
}

// errStopped says that the job stopped running during a wait for its rate.
var errStopped = errors.New("the job no longer runs")

// refuseCalls returns the error for calls of a service that the function may not make for now.
func refuseCalls(why string) error {
	return fault.Refusal{
		Summary: "the function has to wait for its calls", Cause: errors.New(why), Later: true, Own: true,
	}
}

// awaitRate waits until the job's rate allows a page or calls. All processes reserve their parts of
// the rate in one record: see pace.Meter. If the rate changes during the wait, awaitRate reserves
// again at the new rate. If the rate does not limit the page or the calls, the grant has no
// entities.
func (x *Executor) awaitRate(ctx context.Context, ref record.Ref, at turnstile) (grant pace.Grant, err error) {
	defer func() {
		if err != nil && grant.N > 0 {
			at.meter.Settle(grant, 0)
		}
	}()
	for {
		job, err := x.runningJob(ctx, ref)
		if err != nil {
			return grant, err
		}
		if job.State != record.Running {
			return grant, errStopped
		}
		limit, err := job.RateLimit()
		if err != nil {
			return grant, err
		}
		cost, err := at.cost(job, limit)
		switch {
		case err != nil:
			return grant, err
		case cost == nil:
			return pace.Grant{}, nil
		}
		if !grant.Of(string(job.Rate)) {
			grant, err = at.meter.Take(ctx, pace.Request{Rate: string(job.Rate), Cost: cost, Now: time.Now},
				x.reserve(job, at))
			if err != nil {
				return grant, err
			}
			if grant.N == 0 {
				return grant, refuseCalls("the job's rate of calls is reserved for some time")
			}
		}
		wait := time.Until(grant.At)
		if wait <= 0 {
			return grant, nil
		}
		select {
		case <-ctx.Done():
			return grant, ctx.Err()
		case <-x.Gate.Draining().Done():
			return grant, gate.ErrDraining
		case <-at.leave:
			return grant, refuseCalls("another task has to be alone in the process")
		case <-time.After(min(wait, cachedFor)): // check again, because the rate may have changed
		}
	}
}

// reserve returns a function that reserves a part of the job's rate. If it conflicts with another
// process' reservation, it tries again, so that conflicts do not fail the delivery.
func (x *Executor) reserve(job *record.Job, at turnstile) pace.Reserve {
	return func(ctx context.Context, ask pace.Ask) (begin time.Time, q pace.Queue, err error) {
		for tries := 1; ; tries++ {
			begin, q, err = x.Store.ReserveRate(ctx, job, at.clock, &at.meter.Ahead, ask)
			if !fault.Contended(err) {
				return begin, q, err
			}
			_ = backOff(ctx, min(tries, 6)) // if the context has ended, the next attempt returns the error
		}
	}
}

// runningJob returns the job's record, which is at most a second old. If the job has a temporary
// rate whose time is over, runningJob ends that rate first.
func (x *Executor) runningJob(ctx context.Context, ref record.Ref) (*record.Job, error) {
	job, err := x.cache.load(ctx, x.Store, ref)
	if err != nil || job.State != record.Running || !record.RateEnds(job, time.Now()) {
		return job, err
	}
	if job, err = x.EndRate(ctx, job); err == nil {
		x.cache.note(job, time.Now())
	}
	return job, err
}
