package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// attempt processes a pending range, in company or solo. It keeps its place inside the gate: while
// there is a mark that says that it is alone, it has to be.
func (w *work) attempt(ctx context.Context) error {
	solo := !w.begun && w.record.Suspected() || w.record.Solo
	waited, err := w.enter(ctx, solo)
	if err != nil {
		return fmt.Errorf("wait for other tasks: %w", err)
	}
	if waited || w.begun {
		job, err := w.engine.store().LoadJob(ctx, w.job.Ref())
		if err != nil {
			return err
		}
		if State(job.State) != Running {
			return errStopped
		}
	}
	if !w.begun && (w.redelivered || solo) {
		if err := w.begin(ctx, solo, w.place.Alone); err != nil {
			return err
		}
		if n := w.record.Died(time.Now()); w.record.Alone && n >= record.MaxAttempts {
			return w.condemn(ctx, n)
		}
	}
	return w.process(ctx)
}

// enter has the delivery pass the gate, unless it is inside already, and solo if it has to be. It
// reports whether it had to wait.
func (w *work) enter(ctx context.Context, solo bool) (waited bool, err error) {
	if w.place.Leave != nil && (w.place.Exclusive || !solo) {
		return false, nil
	}
	w.leave()
	w.place, err = w.engine.gate.Enter(ctx, solo)
	return w.place.Waited, err
}

// leave has the delivery leave the gate, if it is inside.
func (w *work) leave() {
	if w.place.Leave != nil {
		w.place.Leave()
	}
	w.place = gate.Place{}
}

// condemn records the range's entity as a failure, if it is still there: its process has
// died often enough.
func (w *work) condemn(ctx context.Context, deaths int64) error {
	p := page{at: []*keyspace.Position{w.record.Start}}
	_, missing, err := w.reader(w.source.Get(ctx))(p.at)
	if err != nil {
		return err
	}
	o := &outcome{reached: 1}
	if !missing[0] {
		err := fmt.Errorf("the process died %d times while it did nothing but this entity", deaths)
		o.failures = []failure{{at: w.record.Start, err: err, attempts: deaths, permanent: true}}
	}
	return w.commit(ctx, p, o)
}

// begin records that this delivery begins.
func (w *work) begin(ctx context.Context, solo, alone bool) error {
	w.delivery = cmp.Or(w.delivery, w.engine.jobs.NewDelivery())
	now := time.Now().UTC().Truncate(time.Microsecond)
	err := w.change(ctx, func(_ *datastore.Transaction, r *record.Range) error {
		switch {
		case r.Begun == w.delivery: // the answer to a commit was lost
		case r.Suspected() != solo:
			w.record = r
			return errChanged
		default:
			m := record.CrashMark{Delivery: w.delivery, At: w.begunAt.UTC().Truncate(time.Microsecond), Task: w.queued.TaskID, Try: int64(w.queued.Retries), Alone: alone}
			r.Begin(m, now, w.engine.queue.Deadline())
		}
		return nil
	})
	w.begun = err == nil
	return err
}

// end records that this delivery has ended in good order, even if nobody waits for
// it any more.
func (w *work) end(ctx context.Context) {
	if w.delivery == "" {
		return
	}
	cutOff := ctx.Err() != nil
	w.engine.jobs.Insist(ctx, func(ctx context.Context) error {
		return w.engine.store().Transact(ctx, func(tx *datastore.Transaction) error {
			r := new(record.Range)
			err := property.IgnoreUndeclared(tx.Get(w.record.Key(), r))
			if errors.Is(err, datastore.ErrNoSuchEntity) || err == nil && r.State != record.Pending {
				return store.ErrNothing
			}
			if err != nil {
				return err
			}
			if cutOff && r.Begun == w.delivery && r.PageLimit() > 1 { // it may be too much
				r.Narrow(r.Expected())
			}
			if !r.Alive(w.delivery) {
				return store.ErrNothing
			}
			return store.Write(tx, r.Update())
		})
	})
}
