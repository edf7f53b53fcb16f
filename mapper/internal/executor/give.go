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
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// load returns what the law of cutting decides by, behind what a page of a delivery has dealt with.
// It is ok if what is left then can be given away.
func load(ctx context.Context, d *delivery, p planner.Plan, o *page.Outcome) (l split.Load, ok bool) {
	if d.record.Solo || d.record.Alone || o.Reached == 0 {
		return l, false
	}
	if l, ok = d.planner.Load(p, o.Reached, o.Each()); !ok {
		return l, false
	}
	l.Page = nextPage(d, o)
	each := cmp.Or(d.x.paces.Get(d.job.Ref()).Each(), o.Each())
	l.Outlook, l.Age, ok = lookAround(ctx, d.x, d.job, p.FairShare(), each, l)
	return l, ok
}

// cut returns where the commit of a page cuts the range: as planned or, if nothing was planned, as
// the law of cutting says. Late reports the second: this task would end late with the rest.
func cut(
	ctx context.Context, d *delivery, p planner.Plan, o *page.Outcome,
) (pieces []split.Piece, late bool, err error) {
	if p.Pieces != nil {
		pieces, err = p.Pieces()
	} else if l, ok := load(ctx, d, p, o); ok {
		if keep, each := l.Keep(); keep < l.Left {
			pieces, err = d.planner.Give(ctx, p, o.Reached, keep, each)
			late = err == nil && len(pieces) > 1
		}
	}
	if errors.Is(err, planner.ErrCut) {
		return nil, false, err
	}
	if err != nil { // the next page tries again
		return nil, false, nil
	}
	return pieces, late, nil
}

// nextPage returns how many entities the pages after this one should have.
func nextPage(d *delivery, o *page.Outcome) int64 {
	return o.NextPage(d.job.PageSize, time.Duration(d.job.PageTime), d.x.paces.Get(d.job.Ref()).Each())
}

// mayGoOn reports whether this delivery may go on with what is left of its range.
func (d *delivery) mayGoOn() bool {
	deadline := d.x.Queue.DispatchDeadline()
	longest := 2*time.Duration(d.job.PageTime) + time.Duration(d.job.Timeout) // of a page, see mapper.StartOptions
	if d.callPage != nil {
		longest += function.MaxInTransaction
	}
	return !d.x.Gate.IsDraining() &&
		time.Since(d.begunAt) < min(deadline/4, deadline*19/20-longest-pace.WaitWithin(deadline))
}
