package mapper

import (
	"context"
	"errors"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// What a delivery finds of its range, which another one had in hand meanwhile, and of its
// job. The record that it found is then the work's.
var (
	errDone       = errors.New("another delivery has done the range")
	errChanged    = errors.New("the range, or its job, has changed: it has to be planned anew")
	errSuperseded = errors.New("the range has another task")
	errStopped    = errors.New("the job does not run any more")
)

// fence checks a range that a transaction has read. It is this task's only if
// it is still pending, at the generation that the task names, and as it was when
// the task looked at it.
func (w *work) fence(r *record.Range) error {
	known := w.record
	switch {
	case r.State == record.Done:
		w.record = r
		return errDone
	case r.State != record.Pending || r.Generation != w.task.Generation:
		return errSuperseded
	case r.Cut != known.Cut || r.Children != known.Children:
		w.record = r
		return errChanged
	}
	return nil
}

// change changes the range in a transaction of its own.
func (w *work) change(ctx context.Context, f func(tx *datastore.Transaction, r *record.Range) error) error {
	var changed *record.Range
	err := w.transact(ctx, store.Attempts, func(tx *datastore.Transaction) error {
		changed = new(record.Range)
		err := property.IgnoreUndeclared(tx.Get(w.record.Key(), changed))
		if errors.Is(err, datastore.ErrNoSuchEntity) {
			return errSuperseded // the job's records were deleted
		}
		if err != nil {
			return err
		}
		if err := w.fence(changed); err != nil {
			return err
		}
		if err := f(tx, changed); err != nil {
			return err
		}
		return store.Write(tx, changed.Update())
	})
	if err == nil {
		w.record = changed
	}
	return err
}

// recordSplit records the children of a range, which keeps the first piece.
func (w *work) recordSplit(ctx context.Context, pieces []split.Piece) error {
	return w.change(ctx, func(tx *datastore.Transaction, r *record.Range) error {
		_, err := tx.Mutate(w.cut(r, pieces)...)
		return err
	})
}

// pageAttempts is how often the transaction of a page of several entities that meets another one is
// tried, before the page is halved.
const pageAttempts = 2

// transact runs a transaction on the range. A commit whose answer was lost shows
// as any error; what the record says since counts.
func (w *work) transact(ctx context.Context, attempts int, f func(*datastore.Transaction) error) error {
	_, err := w.engine.client.RunInTransaction(ctx, f, datastore.MaxAttempts(attempts))
	if err == nil || errors.Is(err, errDone) || errors.Is(err, errChanged) || errors.Is(err, errSuperseded) {
		return err
	}
	r, lookup := w.engine.store().LoadRange(ctx, w.job.Ref(), w.record.ID)
	if lookup != nil {
		return err
	}
	if found := w.fence(r); found != nil {
		return found
	}
	return err
}
