package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// commit records what became of a page, in a transaction of its own.
func (w *work) commit(ctx context.Context, p page, o *outcome) error {
	err := w.change(ctx, func(tx *datastore.Transaction, r *record.Range) error { return w.putOutcome(tx, r, p, o) })
	if err == nil {
		w.committed(o)
	}
	return err
}

// committed takes over what the delivery has to do after its commit.
func (w *work) committed(o *outcome) {
	w.waiting, w.next, w.ran = o.waiting, o.next, w.ran+o.ran
	if !o.counters.Empty() && !w.job.CountersDropped {
		w.overcounts = w.engine.cache.at(w.job.Ref()).counts(o.counters)
	}
	for _, f := range o.failures {
		if f.last() {
			w.failed++
		}
	}
}

// errOverlap is a mistake in this package: a page reaches into another range, whose task
// would do its entities once more.
var errOverlap = fault.Fatal(errors.New("the page ends behind its range: this is a mistake in scattermap, please report it"))

// putOutcome puts the outcome into the range's record, which the transaction has
// read, and inserts the children that come of it.
func (w *work) putOutcome(tx *datastore.Transaction, r *record.Range, p page, o *outcome) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	r.RefusedIn = w.job.Generation
	reaches := w.record.Kind == "" // into other spaces, perhaps; planSpaces may have found out
	if w.query.Many() && len(p.at) > 0 {
		r.In(p.at[0].Space())
	}
	var inserts []*datastore.Mutation
	add := func(child *record.Range) { inserts = append(inserts, child.Insert()) }
	if p.pieces != nil {
		switch pieces, err := p.pieces(); {
		case errors.Is(err, errCut):
			return err
		case err == nil && len(pieces) > 1 && pieces[0].Holds(p.at[len(p.at)-1]): // otherwise the next page tries again
			inserts = w.cut(r, pieces)
		}
	}
	o.next = nil
	size := o.nextPage(w.job.PageSize, time.Duration(w.job.PageTime), w.engine.paces.Get(w.job.Ref()).Each())
	if rest, ok := w.left(r, p, o); ok {
		if w.query.Many() && reaches {
			rest.Space, rest.Resample = keyspace.Space{}, true
		}
		child := r.Rest(rest, now)
		child.PageSize = size
		r.End = child.Start
		if w.goesOn(child) {
			child.Depth, child.Continued = r.Depth, true
			o.next = child
		}
		add(child)
	}
	if o.reached > 0 && !r.Contains(p.at[o.reached-1]) {
		return errOverlap
	}
	o.waiting = make(map[string]time.Time)
	var singles tally.Sum
	for _, f := range o.failures {
		switch {
		case r.Alone && !f.last():
			return fault.Refusal{Summary: "the function failed on an entity", Cause: f.err, After: fault.After(f.err)}
		case !r.Alone && !f.last():
			child := r.AloneChild(f.at, f.attempts, f.suspected, now)
			if f.attempts > 0 {
				child.NotBefore = now.Add(max(fault.RetryDelay(f.attempts), fault.After(f.err)))
			}
			add(child)
			singles = singles.Plus(child.SingleSum())
			r.Retries++
			o.waiting[child.ID] = child.NotBefore
		}
	}
	for _, f := range o.failures {
		switch {
		case f.last() && r.Alone:
			r.Refusals = f.attempts
			r.Fail(f.err, now)
		case f.last():
			child := r.AloneChild(f.at, f.attempts, f.suspected, now)
			child.Fail(f.err, now)
			add(child)
			singles = singles.Plus(child.SingleSum())
			r.Recorded++
		}
	}
	if r.Retries+r.Recorded > 0 {
		r.Single = singles.Bytes()
	}
	r.Entities, r.Keys = int64(o.reached), record.KeysDigest(p.at[:o.reached])
	r.Processed = o.processed
	if r.ID == w.job.Root() && w.unsharded != nil {
		r.Unsharded = w.unsharded()
	}
	r.Full = o.reached >= int(r.PageSize) || o.bytes >= maxPageBytes || o.spent >= time.Duration(w.job.PageTime)
	if !w.job.CountersDropped {
		counters, err := o.counters.Values()
		if err != nil {
			return err
		}
		if len(counters) > 0 {
			if r.Counters, err = json.Marshal(counters); err != nil {
				return err
			}
		}
	}
	r.Finish(now)
	_, err := tx.Mutate(inserts...)
	return err
}

// left returns what is left of a range behind what was dealt with, if anything is. If the
// function takes longer there than expected, all workers may share it.
func (w *work) left(r *record.Range, p page, o *outcome) (rest split.Piece, ok bool) {
	start := p.next
	if o.reached < len(p.at) {
		start = p.at[o.reached]
	}
	if start == nil || !r.Contains(start) { // it is a child's
		return split.Piece{}, false
	}
	s := r.Piece()
	rest = s.From(start, s.Estimate-int64(o.reached))
	if w.surprising(o) {
		rest.Workers, rest.FairShare = w.job.Workers, 0
	}
	return rest, true
}
