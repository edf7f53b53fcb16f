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

// leftAfter describes the task's load after the first reached entities of its page: what remains,
// and how fast it goes. The law of cutting ([split.Load]) decides by it. The result ok is false if
// the task can't give away any of the remaining entities.
func (d *delivery) leftAfter(
	ctx context.Context, p planner.Plan, o *page.Results, reached int,
) (l split.Load, ok bool) {
	if d.record.Alone {
		return l, false
	}
	if l, ok = d.planner.Load(p, reached, o.Each()); !ok {
		return l, false
	}
	l.Page, l.Task = d.nextPage(o), d.x.dispatch.Takes()
	each := cmp.Or(d.x.paces.Get(d.job.Ref()).Each(), o.Each())
	l.Outlook, l.Age, ok = d.x.lookAround(ctx, d.job, p.Range.FairShare, each, l)
	return l, ok
}

// lawEvery is the interval, in running time of the function, in which a page checks whether it has
// to give work away.
const lawEvery = 50 * time.Millisecond

// late returns a function that reports whether the page has to end early. The page ends early if
// its task would end late: then idle workers can take the rest.
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

// cut returns the pieces into which the commit of a page cuts the range. They are as planned. If
// nothing was planned, the law of cutting in package split decides: it cuts if this task would end
// late with the whole rest.
func (d *delivery) cut(ctx context.Context, p planner.Plan, o *page.Results) (pieces []split.Piece, err error) {
	if p.Pieces != nil {
		pieces, err = p.Pieces()
	} else if l, ok := d.leftAfter(ctx, p, o, o.Reached); ok {
		if keep, each := l.Keep(); keep < l.Left {
			if d.turn.idle = 0; l.Waiting(l.Workers) {
				d.turn.idle = l.Workers - l.Open
			}
			pieces, err = d.planner.Give(ctx, p, o.Reached, keep, each)
		}
	}
	if errors.Is(err, planner.ErrCut) {
		return nil, err
	}
	if err != nil { // the next page tries again
		return nil, nil
	}
	return pieces, nil
}

// nextPage returns how many entities the next pages of the range should have. Pages of a mapper
// with batches have whole batches, because a call may cost the same for one entity and for many. If
// a page was shortened to fit its batch into the time, each later page has twice as many entities
// as the one before, until pages are full again. No page should take more than half of the queue's
// deadline, including the waits for the job's rate of calls.
func (d *delivery) nextPage(o *page.Results) int64 {
	n := o.NextPage(d.job.PageSize, time.Duration(d.job.PageTime), d.x.paces.Get(d.job.Ref()).Each())
	if batch := int64(d.functions.BatchSize); batch > 0 {
		n = min(max(n/batch, 1)*batch, d.job.PageSize)
		if few := d.record.Narrowed; few > 0 {
			n = min(n, 2*few)
		}
	}
	most := time.Duration(o.Reached) * (d.x.Queue.DispatchDeadline() / 2) / max(1, d.turn.ran)
	return max(1, min(n, int64(most)))
}

// mayGoOn reports whether this delivery may go on with the rest of its range. It may during the
// first quarter of the queue's dispatch deadline, if the longest possible page still fits into the
// deadline. A process that drains does not go on.
func (d *delivery) mayGoOn() bool {
	return !d.x.Gate.IsDraining() && time.Since(d.begunAt) < d.x.Queue.DispatchDeadline()/4 && d.mayStart()
}

// mayStart reports whether the queue's dispatch deadline leaves time for the longest possible page,
// including its wait for a rate.
func (d *delivery) mayStart() bool {
	deadline := d.x.Queue.DispatchDeadline()
	longest := 2*time.Duration(d.job.PageTime) + time.Duration(d.job.Timeout) // of a page, see mapper.StartOptions
	if d.functions.OverPage != nil {
		longest += function.MaxInTransaction
	}
	return time.Since(d.begunAt) < deadline*19/20-longest-pace.WaitWithin(deadline)
}

// mostLooked is the largest number of open ranges that lookAround samples.
const mostLooked = 100

// lookAround returns the cached estimate of the job's remaining work, and its age. If the estimate
// is due, lookAround refreshes it in the background. Before the first read, the estimate is that
// nothing is done, and that each worker has fairShare entities. The result ok is false if fairShare
// is unknown as well.
func (x *Executor) lookAround(
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
			// an error does no harm: the estimate only gets older
			if open, part, err := x.Store.LookOpen(ctx, job.Ref(), int(min(job.Workers, mostLooked))); err == nil {
				known.outlook.Store(&outlook{split.OutlookOf(open, part, job.Workers, each, job.PageSize), now})
			}
		}()
	}
	if seen.at.IsZero() {
		return seen.Outlook, 0, fairShare > 0
	}
	return seen.Outlook, now.Sub(seen.at), true
}

// An outlook is an estimate of the job's remaining work, and when it was made.
type outlook struct {
	split.Outlook
	at time.Time
}
