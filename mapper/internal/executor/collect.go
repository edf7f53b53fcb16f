package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
)

// collect runs the function over a page, if the mapper has one, on what was collected of its
// entities. What it asks for is committed with the page; lose is to be called if that never takes
// effect. If it fails, the page is tried again as a whole.
func collect(ctx context.Context, d *delivery, o *page.Outcome) (lose func(), err error) {
	a := function.NewAttempt(d.job.Ref(), function.Update, nil)
	lose = func() { a.Lose(context.WithoutCancel(ctx)) }
	if d.callPage == nil || len(o.Collected) == 0 {
		return lose, nil
	}
	name := fmt.Sprintf("%s-%d-%s", d.record.ID, d.record.Generation, d.x.NewDelivery())
	const limit = function.MaxInTransaction
	var failed error
	err = function.Calls(ctx, limit, &d.x.Gate.Strays, func(r *function.Runner) {
		r.Call(func(ctx context.Context) {
			failed = a.Run(func() error { return d.callPage(ctx, a, name, o.Collected) })
		})
	})
	switch {
	case errors.Is(err, function.ErrTimeout): // what it is in the middle of is nobody's to look at
		return func() {}, fault.Refusal{Summary: "the function over a page took too long",
			Cause: fmt.Errorf("it took more than %v", limit)}
	case err != nil:
		return lose, fault.Refusal{Summary: "the function over a page failed", Cause: err}
	}
	var effect *function.Effect
	if failed == nil {
		effect, failed = a.Effect()
	}
	switch {
	case failed != nil && ctx.Err() != nil:
		return lose, ctx.Err() // nobody waits for the delivery any more
	case failed != nil:
		return lose, fault.Refusal{Summary: "the function over a page failed", Cause: failed,
			Final: fault.IsPermanent(failed), After: fault.After(failed)}
	}
	o.Page = *effect
	o.Counters.Merge(effect.Counters)
	return lose, nil
}
