package estimate

import (
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// AtWork returns a function that reports whether a task probably works on one of the job's ranges.
// Records do not say so. In a running job, one of three things suggests it:
//
//   - A delivery has left a crash mark in the range's record.
//   - The delivery of the page before has continued with the range.
//   - The range is due, there are workers for all open ranges, and no due task waits in the queue.
//
// The first two suggest it only for as long as a page may take.
func (l Look) AtWork() func(r *record.Range) bool {
	if l.Job.State != record.Running {
		return func(*record.Range) bool { return false }
	}
	resumed, all := l.Job.Resumed(), l.deliversAll()
	began := func(at time.Time) bool { return !at.Before(resumed) && l.Now.Sub(at) <= l.stuckAfter() }
	return func(r *record.Range) bool {
		return r.State == record.Pending && !l.Now.Before(r.Due()) &&
			(all || r.InDelivery(resumed) && began(r.Created) || r.Begun != "" && began(r.BegunAt))
	}
}

// deliversAll reports whether each due range of a running job probably has a delivery. There must
// be workers for all open ranges, and the queue must not be known to keep a due task. Nothing is
// certain before the job's first page, or if no page was done for too long.
func (l Look) deliversAll() bool {
	return l.Totals.Pending <= l.Job.AtOnce() && !l.Queue.Waits && l.Queue.Complaint == "" &&
		l.Totals.Sample != nil && len(l.Totals.Sample.Ends) > 0 && l.idle() <= l.stuckAfter()
}
