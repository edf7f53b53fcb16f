package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
)

// pageOf returns the page of a plan, ready for running the function. The parameter progress is the
// field page.Page.Progress.
func (d *delivery) pageOf(ctx context.Context, p planner.Plan, progress func(time.Duration, bool)) *page.Page {
	atOnce := int(d.job.Concurrency)
	if d.record.Solo || d.record.Alone { // entities run one by one if the range is suspected, or has only one
		atOnce = 1
	}
	return &page.Page{
		Job: d.job, Range: d.record.Key(), Query: d.planner.Query, Mode: d.planner.Mode, Functions: d.functions,
		At: p.At, Read: d.planner.ReaderAhead(ctx),
		Others: d.planner.Source.Stored(ctx), Complete: d.x.client.AllocateIDs,
		AtOnce: atOnce, Alone: d.record.Alone, Attempts: 1 + d.record.RefusalsIn(d.job), Late: d.late(ctx, p),
		Impatient: d.record.Impatient(time.Now()), Begin: d.page.grant.At, Spacing: d.page.grant.Spacing(),
		Progress: progress, Paces: &d.x.paces, Pause: d.planner.Wait, Strays: &d.x.Gate.Strays,
		Ends: d.x.Gate.IsDraining, Calls: d.calls(false), Announced: &d.announced,
	}
}

// collect calls the function over a page of a [mapper.VisitPages] mapper. The function gets the
// values that were collected from the page's entities. Its puts and counts are committed with the
// page. If this commit never takes effect, the caller must call lose. If the function fails, the
// whole page is retried.
func (d *delivery) collect(ctx context.Context, o *page.Results) (lose func(), err error) {
	a := function.NewAttempt(d.job.Ref(), function.Update, nil)
	lose = func() { d.lose(ctx, a) }
	if len(o.Collected) == 0 { // always so for mappers without a function over pages
		return lose, nil
	}
	name := fmt.Sprintf("%s-%d-%s", d.record.ID, d.record.Generation, d.x.NewDelivery())
	const limit = function.MaxInTransaction
	var failed, refused error
	await := awaitFirst(d.calls(false))
	err = function.Calls(ctx, limit, &d.x.Gate.Strays, func(r *function.Runner) {
		calls := function.Announcing(r, await, &d.announced)
		a.Announce(calls)
		if !r.Call(func(ctx context.Context) {
			failed = a.Run(func() error { return d.functions.OverPage(ctx, a, name, o.Collected) })
		}) {
			return
		}
		if n := calls.Waits(); n > 0 {
			d.x.paces.CallMeter(d.job.Ref()).Ran(n)
		}
		var fails bool
		if refused, fails = page.Refusal(calls, o.Reached, d.record.Impatient(time.Now())); fails {
			failed, refused = refused, nil
		}
	})
	switch {
	case errors.Is(err, function.ErrTimeout): // the function may still run, so its attempt must not be used
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
	case ctx.Err() != nil:
		return lose, ctx.Err() // the delivery was cancelled, so this is no failure of the function
	case refused != nil:
		return lose, refused
	case failed != nil:
		return lose, fault.Refusal{Summary: "the function over a page failed", Cause: failed,
			Final: fault.IsPermanent(failed), After: fault.After(failed)}
	}
	o.Page = *effect
	o.Counters.Merge(effect.Counters)
	return lose, nil
}

// lose calls the functions that an attempt has registered with OnRollback. They remove data that is
// never read. So the delivery continues if they panic, end their goroutine or take too long.
func (d *delivery) lose(ctx context.Context, a *function.Attempt) {
	ctx = context.WithoutCancel(ctx)
	var failed error
	err := function.Calls(ctx, function.MaxInTransaction, &d.x.Gate.Strays, func(r *function.Runner) {
		var said error
		if r.Call(func(ctx context.Context) { said = a.Lose(ctx) }) {
			failed = said
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil { // the error's text may contain data of an entity
		d.x.Log.LogAttrs(ctx, slog.LevelWarn, "a function of OnRollback failed", slog.String("job", d.job.ID),
			slog.String("mapper", d.job.Mapper), slog.String("kind", fault.Kind(err)))
	}
}
