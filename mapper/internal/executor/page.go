package executor

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
)

// pageOf returns the page of a plan, for the function to run over. See page.Page for progress.
func (d *delivery) pageOf(ctx context.Context, p planner.Plan, progress func(time.Duration, bool)) *page.Page {
	return &page.Page{
		Job: d.job, Query: d.planner.Query, Mode: d.planner.Mode, Call: d.call, At: p.At,
		Read:   d.planner.ReaderAhead(ctx),
		Others: d.planner.Source.Stored(ctx), Keys: d.keys, Complete: d.x.client.AllocateIDs,
		Alone: d.record.Alone, Attempts: 1 + d.record.RefusalsIn(d.job), Late: late(ctx, d, p),
		Begin: d.turn.grant.At, Spacing: d.turn.grant.Spacing(),
		Progress: progress, Paces: &d.x.paces, Pause: d.planner.Wait, Strays: &d.x.Gate.Strays,
		Ends: d.x.Gate.IsDraining,
	}
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
