package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"
)

// An entity may kill the process that works on it: it has the function call
// os.Exit, or take all memory, or panic in a goroutine of its own. Nobody is left to
// say so, and the pages that ran beside it die, too. So that the others are not
// blamed:
//
//   - A delivery that is not the first one of its task leaves a mark in the range's
//     record before it begins, unless there is one, and takes it away when it ends in
//     good order. Who finds the mark of a delivery that must have ended takes its
//     process for dead.
//   - A range whose delivery died in company is run solo: while its process does
//     nothing else. Others wait for that.
//   - One that died solo is halved, until it is one entity. What is left behind
//     is halved, too, and solo from the start.
//   - A single entity gets a range for itself. One whose process dies MaxAttempts
//     times while it does nothing else is recorded as a failure.
//
// A process that is killed for another reason, as those that are shut down are, has
// its ranges suspected, and no more: it would have to be killed MaxAttempts times,
// each time during the same entity.

// suspected reports whether the range's deliveries have to be solo.
func (r *rangeRecord) suspected() bool { return r.Solo || r.Begun != "" }

// endTime returns for how long a delivery tries to take its mark away.
func endTime(deadline time.Duration) time.Duration { return max(deadline, 10*time.Minute) }

// A mark is what a delivery leaves in the record of its range when it begins.
type mark struct {
	delivery string
	at       time.Time // when the delivery came
	task     string    // that it is of
	try      int64     // how many attempts of that task were before
}

// begin leaves a mark, and draws conclusions from the one that it finds, if that one's
// delivery must have ended. If it may have been cut off by the queue's deadline it may be
// alive, and about to say so. If it need not have ended its mark stays.
func (r *rangeRecord) begin(m mark, now time.Time, deadline time.Duration) {
	r.Lost = false
	r.Attempts++
	switch size := r.pageSize(); {
	case r.Begun == "": // the last one ended in good order, or was the first
	case !r.ended(m, now, deadline):
		r.noteBehind(m)
		return
	case !r.Solo:
		r.Solo = true
	case size > 1:
		r.narrow(r.expected())
	case r.Alone:
		settled := now
		if now.Sub(r.BegunAt) >= deadline*9/10 { // clocks differ
			settled = r.BegunAt.Add(deadline + endTime(deadline))
		}
		r.Deaths, r.Settled = append(r.Deaths, r.Begun), append(r.Settled, settled)
	}
	r.Doubtful = r.SeenTask != "" && (r.SeenTask != m.task || r.SeenTry >= m.try)
	if r.SeenTask != m.task || r.SeenTry < m.try {
		r.SeenTask, r.SeenTry = m.task, m.try
	}
	r.Begun, r.BegunAt = m.delivery, m.at
}

// ended reports whether the delivery whose mark is in the record has ended, now that another
// one begins. The queue makes an attempt when the one before has been answered, or its
// deadline has passed. But it may have made that twice; and a delivery of another task, of a
// Resume for instance, says nothing. Then only the deadline does. A delivery that was answered
// before it has begun is not seen, so a mark of its twin may be taken for a death: that makes
// a range solo, and a death of a single entity is taken back when the twin ends.
func (r *rangeRecord) ended(m mark, now time.Time, deadline time.Duration) bool {
	return r.SeenTask == m.task && r.SeenTry < m.try && !r.Doubtful || now.Sub(r.BegunAt) > deadline
}

// noteBehind notes a delivery that leaves no mark, as there is one of its own task: if that
// is of the same attempt, the next one says nothing of it.
func (r *rangeRecord) noteBehind(m mark) {
	if r.SeenTask == m.task && r.SeenTry <= m.try {
		r.SeenTry, r.Doubtful = m.try, true
	}
}

// alive takes away the mark of a delivery, and its death, if it seemed to have died. That the
// range is solo, and smaller, stays.
func (r *rangeRecord) alive(delivery string) {
	if r.Begun == delivery {
		r.Begun = ""
	}
	if i := slices.Index(r.Deaths, delivery); i >= 0 {
		r.Deaths, r.Settled = slices.Delete(r.Deaths, i, i+1), slices.Delete(r.Settled, i, i+1)
	}
}

// died returns how many deaths of the range's entity are settled.
func (r *rangeRecord) died(now time.Time) (n int64) {
	for _, at := range r.Settled {
		if !at.After(now) {
			n++
		}
	}
	return n
}

// attempt processes a pending range, in company or solo.
func (w *work) attempt(ctx context.Context) error {
	solo := !w.begun && w.record.suspected() || w.record.Solo
	leave, waited, err := w.engine.gate.enter(ctx, solo)
	if err != nil {
		return fmt.Errorf("wait for other pages: %w", err)
	}
	defer leave()
	if waited || w.begun {
		job, err := w.engine.loadJob(ctx, w.job.ref())
		if err != nil {
			return err
		}
		if State(job.State) != Running {
			return errStopped
		}
	}
	if !w.begun && (w.redelivered || solo) {
		if err := w.begin(ctx, solo); err != nil {
			return err
		}
		if n := w.record.died(time.Now()); w.record.Alone && n >= MaxAttempts {
			return w.condemn(ctx, n)
		}
	}
	return w.process(ctx)
}

// condemn records the range's entity as a failure, if it is still there: its process has
// died often enough.
func (w *work) condemn(ctx context.Context, deaths int64) error {
	p := page{at: []*position{w.record.Start}}
	_, missing, err := w.reader(w.engine.get(ctx, w.query.at))(p.at)
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
func (w *work) begin(ctx context.Context, solo bool) error {
	w.delivery = cmp.Or(w.delivery, strconv.FormatUint(w.engine.random(), 36))
	now := time.Now().UTC().Truncate(time.Microsecond)
	err := w.change(ctx, func(_ *datastore.Transaction, r *rangeRecord) error {
		switch {
		case r.Begun == w.delivery: // the answer to a commit was lost
		case r.suspected() != solo:
			w.record = r
			return errChanged
		default:
			m := mark{w.delivery, w.begunAt.UTC().Truncate(time.Microsecond), w.queued.TaskID, int64(w.queued.Retries)}
			r.begin(m, now, w.engine.queue.Deadline())
		}
		return nil
	})
	w.begun = err == nil
	return err
}

// end records that this delivery has ended in good order, even if nobody waits for
// it any more. While the database is out of reach it waits: this must not look like a
// death, and nothing else can be done.
func (w *work) end(ctx context.Context) {
	if w.delivery == "" {
		return
	}
	cutOff := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime(w.engine.queue.Deadline()))
	defer cancel()
	for wait := firstDelay; ; wait = min(2*wait, 30*time.Second) {
		err := w.engine.transact(ctx, func(tx *datastore.Transaction) error {
			r := new(rangeRecord)
			err := recordError(tx.Get(w.record.key(), r))
			if errors.Is(err, datastore.ErrNoSuchEntity) || err == nil && (r.State == done || r.Begun != w.delivery && !slices.Contains(r.Deaths, w.delivery)) {
				return errNothing
			}
			if err != nil {
				return err
			}
			if cutOff && r.Begun == w.delivery && r.pageSize() > 1 { // it may be too much
				r.narrow(r.expected())
			}
			r.alive(w.delivery)
			return r.update(tx)
		})
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
