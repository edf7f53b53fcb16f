package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// attempt processes a pending range, in company or exclusively. Whether it is suspected of killing
// its process, and is halved, is decided by record.Range.Begin. It keeps its place inside the gate:
// while there is a mark that says that it is alone, it has to be.
func (d *delivery) attempt(ctx context.Context) (standing, error) {
	if d.x.Gate.IsDraining() { // it may have its place from the attempt before
		return ours, gate.ErrDraining
	}
	exclusive := !d.begun && d.record.Suspected() || d.record.Solo
	waited, err := d.enter(ctx, exclusive)
	if err != nil {
		return ours, fmt.Errorf("wait for other tasks: %w", err)
	}
	if waited || d.begun {
		job, err := d.store.LoadJob(ctx, d.job.Ref())
		if err != nil {
			return ours, err
		}
		if job.State != record.Running {
			return stopped, nil
		}
	}
	if !d.begun && (d.redelivered || exclusive) {
		if s, err := d.begin(ctx, exclusive, d.place.Alone); err != nil || s != ours {
			return s, err
		}
		if n := d.record.Died(time.Now()); d.record.Alone && n >= record.MaxDeaths {
			return d.condemn(ctx, n)
		}
		if d.record.Doomed() || (d.record.Alone || d.record.Solo) && d.queued.RetryCount >= patience {
			return d.postpone(ctx)
		}
	}
	return d.process(ctx)
}

// enter has the delivery pass the gate, unless it is inside already, and exclusively if it has to
// be. It reports whether it had to wait.
func (d *delivery) enter(ctx context.Context, exclusive bool) (waited bool, err error) {
	if d.place.Leave != nil && (d.place.Exclusive || !exclusive) {
		return false, nil
	}
	d.leave()
	d.place, err = d.x.Gate.Enter(ctx, exclusive)
	return d.place.Waited, err
}

// leave has the delivery leave the gate, if it is inside.
func (d *delivery) leave() {
	if d.place.Leave != nil {
		d.place.Leave()
	}
	d.place = gate.Place{}
}

// condemn records the range's entity as a failure, if it is still there: its process has died often
// enough.
func (d *delivery) condemn(ctx context.Context, deaths int64) (standing, error) {
	p := planner.Plan{At: []*keyspace.Position{d.record.Start}}
	stored, err := d.planner.Reader(d.planner.Source.Stored(ctx))(p.At)
	if err != nil {
		return ours, err
	}
	var f *page.Failure
	if !stored[0].Gone {
		err := fmt.Errorf("the process died %d times while it did nothing but this entity", deaths)
		f = &page.Failure{At: d.record.Start, Err: err, Attempts: deaths, Permanent: true}
	}
	return d.commit(ctx, p, page.Failed(f))
}

// patience is how many redeliveries a task of a solo or single-entity range gets before a new task
// replaces it. The queue's back-off has grown to some 25 seconds then, and would become an hour
// between two deaths.
const patience = 8

// postpone has another task go on with a range, once it is certain which of its processes have
// died.
func (d *delivery) postpone(ctx context.Context) (standing, error) {
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		r.Postpone(time.Now())
		return nil, nil
	})
	if err != nil || s != ours {
		return s, err
	}
	d.mark = "" // it is not there any more
	if err := d.x.Queue.Enqueue(ctx, body.TaskOf(d.record, d.job)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return ours, fmt.Errorf("enqueue range %s of job %s again: %w", d.record.ID, d.job.ID, err)
	}
	return superseded, nil // by that task
}

// begin records that this delivery begins.
func (d *delivery) begin(ctx context.Context, exclusive, alone bool) (standing, error) {
	d.mark = cmp.Or(d.mark, d.x.NewDelivery())
	now := time.Now().UTC().Truncate(time.Microsecond)
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		switch {
		case r.Begun == d.mark: // the answer to a commit was lost
		case r.Suspected() != exclusive:
			return nil, fencedError{changed, r}
		default:
			m := record.CrashMark{Delivery: d.mark, At: d.begunAt.UTC().Truncate(time.Microsecond),
				Task: d.queued.TaskID, Try: int64(d.queued.RetryCount), Alone: alone}
			r.Begin(m, now, d.x.Queue.DispatchDeadline())
		}
		return nil, nil
	})
	d.begun = err == nil && s == ours
	return s, err
}

// unmark records that this delivery has ended in good order, even if nobody waits for it any more.
func (d *delivery) unmark(ctx context.Context) {
	if d.mark == "" {
		return
	}
	cutOff := ctx.Err() != nil
	d.x.Insist(ctx, func(ctx context.Context) error {
		_, err := d.store.UpdateRange(ctx, d.record.Key(), func(r *record.Range) bool {
			if r.State != record.Pending {
				return false
			}
			if cutOff && r.Begun == d.mark && r.PageLimit() > 1 { // it may be too much
				r.Narrow(r.Expected())
			}
			return r.Alive(d.mark)
		})
		return err
	})
}

// giveUp decides what becomes of a range whose delivery failed. What passes by itself is up to the
// queue, which delivers the task again. A refusal is tried again by another task, later, as often
// as the job's back-off says; then the job fails, and keeps what it has recorded.
func (d *delivery) giveUp(ctx context.Context, cause error) (standing, error) {
	cause = fmt.Errorf("job %s: range %s: %w", d.job.ID, d.record.ID, cause)
	if !fault.IsFatal(cause) && !fault.Refused(cause) {
		return ours, cause
	}
	last := false
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		last = r.Refuse(d.job, fault.After(cause), fault.IsFatal(cause), time.Now())
		r.Alive(d.mark)
		r.Calm() // this task is over
		return nil, nil
	})
	switch {
	case err != nil:
		return ours, errors.Join(cause, err)
	case s == changed:
		return ours, cause // whoever has cut it did more than this delivery
	case s != ours:
		return s, nil
	}
	d.mark = "" // it is not there any more
	if last {
		if over, err := d.fail(ctx, cause); err != nil || over {
			return ours, err
		}
	}
	if err := d.x.Queue.Enqueue(ctx, body.TaskOf(d.record, d.job)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return ours, fmt.Errorf("enqueue range %s of job %s again: %w", d.record.ID, d.job.ID, err)
	}
	showRefusal(ctx, d.x.Jobs, d.job, d.record, cause)
	return superseded, nil // by that task
}

// fail ends the job. It reports whether the job is over: it goes on if somebody has resumed it
// since this delivery began.
func (d *delivery) fail(ctx context.Context, cause error) (over bool, err error) {
	if err := d.x.Fail(ctx, d.job, cause); err != nil {
		return false, err
	}
	job, err := d.store.LoadJob(ctx, d.job.Ref())
	if err != nil {
		return false, err
	}
	d.job = job
	return job.State != record.Running, nil
}
