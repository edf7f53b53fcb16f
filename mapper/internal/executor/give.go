package executor

import (
	"cmp"
	"context"
	"errors"
	"time"

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

// lawEvery is how long the function runs on a page until the law is asked again whether the page
// ends.
const lawEvery = 50 * time.Millisecond

// late returns what tells a page to end early, so that others begin with what this task would end
// late with.
func late(ctx context.Context, d *delivery, p planner.Plan) page.Late {
	asked := time.Duration(0)
	return func(o *page.Outcome, left int) bool {
		if o.Ran-asked < lawEvery {
			return false
		}
		asked = o.Ran
		l, ok := load(ctx, d, p, o)
		return ok && l.EndsPage(o.Ran, int64(left))
	}
}

// give has what a page's task would end late with cut off behind it, for others.
func give(ctx context.Context, d *delivery, p *planner.Plan, o *page.Outcome) error {
	l, ok := load(ctx, d, *p, o)
	if !ok {
		return nil
	}
	keep, each := l.Keep()
	if keep >= l.Left {
		return nil
	}
	pieces, err := d.planner.Give(ctx, *p, o.Reached, keep, each)
	if errors.Is(err, planner.ErrCut) {
		return err
	}
	if d.late = len(pieces) > 1; d.late { // without it the next page tries again
		p.Pieces = func() ([]split.Piece, error) { return pieces, nil }
	}
	return nil
}

// nextPage returns how many entities the pages behind one should have.
func nextPage(d *delivery, o *page.Outcome) int64 {
	return o.NextPage(d.job.PageSize, time.Duration(d.job.PageTime), d.x.paces.Get(d.job.Ref()).Each())
}
