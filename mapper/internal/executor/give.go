package executor

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// late returns what tells a page to end early, so that others begin with what this task would end late with.
func late(d *delivery, p planner.Plan) page.Late {
	l, ok := d.planner.Load(p, 0, 0)
	if !ok {
		return nil
	}
	soonest := l.Soonest()
	return func(o *page.Outcome, left int) bool {
		if min(o.Spent, time.Duration(left)*o.Each()) < soonest {
			return false
		}
		l, _ := d.planner.Load(p, o.Reached, o.Each())
		l.Page = nextPage(d, o)
		keep, _ := l.Keep()
		return keep < l.Left
	}
}

// give has what a page's task would end late with cut off behind it, for others.
func give(ctx context.Context, d *delivery, p *planner.Plan, o *page.Outcome) error {
	if d.record.Solo || d.record.Alone || o.Reached == 0 {
		return nil
	}
	pieces, err := d.planner.Give(ctx, *p, o.Reached, o.Each(), nextPage(d, o))
	if errors.Is(err, planner.ErrCut) {
		return err
	}
	if len(pieces) > 1 { // without it the next page tries again
		p.Pieces = func() ([]split.Piece, error) { return pieces, nil }
	}
	return nil
}

// nextPage returns how many entities the pages behind one should have.
func nextPage(d *delivery, o *page.Outcome) int64 {
	return o.NextPage(d.job.PageSize, time.Duration(d.job.PageTime), d.x.paces.Get(d.job.Ref()).Each())
}
