package executor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// condemn records the range's only entity as a failure, because it has killed as many processes as
// deaths says. If the entity no longer exists, it is not a failure.
func (d *delivery) condemn(ctx context.Context, deaths int64) (standing, error) {
	p := planner.Plan{At: []*keyspace.Position{d.record.Start}}
	stored, err := d.planner.Reader(d.planner.Source.Stored(ctx))(p.At)
	if err != nil {
		return ours, err
	}
	var f *record.Failure
	if !stored[0].Gone {
		err := fmt.Errorf("the process died %d times while it did nothing but this entity", deaths)
		f = &record.Failure{At: d.record.Start, Err: err, Attempts: deaths, Permanent: true}
	}
	return d.commitPage(ctx, p, page.Failed(f), nil)
}

// maxRedeliveries is the largest number of redeliveries of a task whose range has a single entity
// or runs exclusively. After that, a new task replaces it. By then, the queue waits about 25
// seconds between deliveries. With the same task, it would soon wait an hour.
const maxRedeliveries = 8

// postpone replaces the range's task by a new one. The new task is due when it is certain that the
// processes of earlier deliveries have died.
func (d *delivery) postpone(ctx context.Context) (standing, error) {
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		r.Postpone(time.Now())
		return nil, nil
	})
	if err != nil || s != ours {
		return s, err
	}
	d.state.mark = "" // the change has removed the mark from the record
	if err := d.enqueueAgain(ctx); err != nil {
		return ours, err
	}
	return superseded, nil // the range has a new task
}

// begin writes this delivery's crash mark ([record.CrashMark]) into the range's record, before the
// function runs. If the mark is still there later, this process has died. The parameter quiet is
// the field gate.Place.Quiet. exclusive says whether the delivery has an exclusive place in the
// gate. If it does not match record.Range.Suspected, the result is the standing changed.
func (d *delivery) begin(ctx context.Context, exclusive, quiet bool) (standing, error) {
	d.state.mark = cmp.Or(d.state.mark, d.x.NewDelivery())
	now := now()
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		switch {
		case r.Begun == d.state.mark: // the commit of an earlier attempt took effect, and only its answer was lost
		case r.Suspected() != exclusive:
			return nil, fencedError{finding{changed, r}}
		default:
			m := record.CrashMark{Delivery: d.state.mark, At: d.begunAt.UTC().Truncate(time.Microsecond),
				Task: d.state.queued.TaskID, Try: int64(d.state.queued.RetryCount), Quiet: quiet}
			r.Begin(m, now, d.x.Queue.DispatchDeadline())
		}
		return nil, nil
	})
	d.state.begun = err == nil && s == ours
	return s, err
}

// unmark removes this delivery's crash mark ([record.CrashMark]) from the range's record, because
// the delivery ends normally. It does so even if the delivery was cancelled.
func (d *delivery) unmark(ctx context.Context) {
	if d.state.mark == "" {
		return
	}
	cutOff := ctx.Err() != nil
	d.x.Insist(ctx, func(ctx context.Context) error {
		_, err := d.x.Store.UpdateRange(ctx, d.record.Key(), func(r *record.Range) bool {
			if r.State != record.Pending {
				return false
			}
			// The page may have been too large for the deadline, so it is halved.
			if cutOff && r.Begun == d.state.mark && r.PageLimit() > 1 {
				r.Halve(r.Expected())
			}
			return r.Alive(d.state.mark)
		})
		return err
	})
}
