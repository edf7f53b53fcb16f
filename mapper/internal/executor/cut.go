package executor

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// leftAfter describes the task's load at a point of its page: what remains, and how fast the task
// is. The parameter reached is the number of the page's entities before that point. The law of
// cutting ([split.Load]) decides by this load. ok is false if the task can't give away any of the
// remaining entities.
func (d *delivery) leftAfter(
	ctx context.Context, p planner.Plan, o *page.Results, reached int,
) (l split.Load, ok bool) {
	if d.record.Alone {
		return l, false
	}
	if l, ok = d.planner.Load(p, reached, o.Each()); !ok {
		return l, false
	}
	l.Page, l.Task = d.nextPageSize(o), d.x.dispatch.Takes()
	each := cmp.Or(d.x.paces.Get(d.job.Ref()).Each(), o.Each())
	l.Outlook, l.Age, ok = d.x.remainingWork(ctx, d.job, p.Range.FairShare, each, l)
	return l, ok
}

// lawEvery is how often a page checks whether it must give work away, in running time of the
// function.
const lawEvery = 50 * time.Millisecond

// late returns a function that reports whether the page must end early. This is so if the page's
// task, with all the rest of the range, would end late. Idle workers can then take the rest.
func (d *delivery) late(ctx context.Context, p planner.Plan) page.Late {
	asked := time.Duration(0)
	return func(o *page.Results, place, left int) bool {
		if o.Ran-asked < lawEvery {
			return false
		}
		asked = o.Ran
		l, ok := d.leftAfter(ctx, p, o, place)
		return ok && l.EndsPage(o.Ran, int64(left))
	}
}

// cut returns the pieces into which the commit of a page cuts the range. If a cut was planned, it
// returns this cut. Otherwise the law of cutting in package split decides: it cuts if this task
// would end late with the whole rest.
func (d *delivery) cut(ctx context.Context, p planner.Plan, o *page.Results) (pieces []split.Piece, err error) {
	if p.Pieces != nil {
		pieces, err = p.Pieces()
	} else if l, ok := d.leftAfter(ctx, p, o, o.Reached); ok {
		if keep, each := l.Keep(); keep < l.Left {
			if d.state.idle = 0; l.Waiting(l.Workers) {
				d.state.idle = l.Workers - l.Open
			}
			pieces, err = d.planner.Give(ctx, p, o.Reached, keep, each)
		}
	}
	if errors.Is(err, planner.ErrCut) {
		return nil, err
	}
	if err != nil { // after an error, the next page tries again
		return nil, nil
	}
	return pieces, nil
}

// nextPageSize returns the page size for the rest of the range. No page should take more than half
// of the queue's deadline, including the waits for the job's rate of calls.
//
// For a mapper with batches, pages have whole batches, because a call may cost the same for one
// entity and for many. If the page was shortened to fit its batch into the time, the next page has
// twice as many entities, until pages have their full size again.
func (d *delivery) nextPageSize(o *page.Results) int64 {
	n := o.NextPage(d.job.PageSize, time.Duration(d.job.PageTime), d.x.paces.Get(d.job.Ref()).Each())
	if batch := int64(d.functions.BatchSize); batch > 0 {
		n = min(max(n/batch, 1)*batch, d.job.PageSize)
		if few := d.record.Narrowed; few > 0 {
			n = min(n, 2*few)
		}
	}
	most := time.Duration(o.Reached) * (d.x.Queue.DispatchDeadline() / 2) / max(1, d.page.ran)
	return max(1, min(n, int64(most)))
}

// mayGoOn reports whether this delivery may continue with the rest of its range. It may during the
// first quarter of the queue's dispatch deadline, if the longest possible page still fits in the
// deadline. In a draining process it may not.
func (d *delivery) mayGoOn() bool {
	return !d.x.Gate.IsDraining() && time.Since(d.begunAt) < d.x.Queue.DispatchDeadline()/4 && d.mayStart()
}

// mayStart reports whether the longest possible page, including its wait for the job's rate, still
// fits in the queue's dispatch deadline.
func (d *delivery) mayStart() bool {
	deadline := d.x.Queue.DispatchDeadline()
	// the longest possible page, see mapper.StartOptions
	longest := 2*time.Duration(d.job.PageTime) + time.Duration(d.job.Timeout)
	if d.functions.OverPage != nil {
		longest += function.MaxInTransaction
	}
	return time.Since(d.begunAt) < deadline*19/20-longest-pace.WaitWithin(deadline)
}

// mostSampled is the largest number of open ranges in remainingWork's sample.
const mostSampled = 100

// remainingWork returns the cached estimate of the job's remaining work, and its age. each is the
// function's time for an entity, and l the load of the calling task. If the estimate is too old for
// that load, remainingWork refreshes it in the background.
//
// Before the first read, it estimates that nothing is done, and that each worker has fairShare
// entities. ok is false if the job's work was never read and fairShare is 0, which means unknown.
func (x *Executor) remainingWork(
	ctx context.Context, job *record.Job, fairShare int64, each time.Duration, l split.Load,
) (_ split.Outlook, age time.Duration, ok bool) {
	known, now := x.cache.at(job.Ref()), time.Now()
	seen := known.outlook.Load()
	if seen == nil {
		seen = &outlook{Outlook: split.Unseen(fairShare, job.Workers, each)}
	}
	known.looksFrom.CompareAndSwap(0, now.UnixNano())
	l.Outlook, l.Known = seen.Outlook, now.Sub(time.Unix(0, known.looksFrom.Load()))
	if now.Sub(seen.at) > l.LookEvery() && known.looking.CompareAndSwap(false, true) {
		go func() {
			defer known.looking.Store(false)
			// an error is harmless, because the estimate only becomes older
			if open, part, err := x.Store.LookOpen(ctx, job.Ref(), int(min(job.Workers, mostSampled))); err == nil {
				known.outlook.Store(&outlook{split.OutlookOf(open, part, job.Workers, each, job.PageSize), now})
			}
		}()
	}
	if seen.at.IsZero() {
		return seen.Outlook, 0, fairShare > 0
	}
	return seen.Outlook, now.Sub(seen.at), true
}

// An outlook is an estimate of the job's remaining work, with its time.
type outlook struct {
	split.Outlook
	at time.Time
}
