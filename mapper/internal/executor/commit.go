package executor

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// Limits of conflicts with other clients. If others change an entity of a page mostMoves times, the
// entity gets a range of its own. In that range, an attempt fails if others change the entity
// hotAttempts times during the attempt.
const (
	mostMoves   = 3
	hotAttempts = 20
)

// commitPage commits a page. If other clients have changed some of its entities since they were
// read, commitPage runs the function again on these. run is nil if the function was not called.
//
// If the commit took effect but its answer was lost, d.state.follow stays zero. Then each child
// gets a task, also the rest of the range.
func (d *delivery) commitPage(ctx context.Context, p planner.Plan, o *page.Results, run *page.Page) (standing, error) {
	var follow record.Follow
	var calls int64
	begun, rounds := time.Now(), 0
	s, err := d.apply(ctx, step{
		with: o.Mutations, guards: o.Guards, locks: d.record.Alone,
		put: func(r *record.Range) (children []*record.Range, err error) {
			of, err := d.outcome(ctx, p, o)
			if err != nil {
				return nil, err
			}
			calls = of.Calls
			if children, follow, err = r.Commit(of, now()); err == nil {
				d.state.finished = append(d.state.finished, r.Done)
			}
			return children, err
		},
		again: func(ctx context.Context, moved []page.Moved, inTransaction bool) error {
			if rounds++; d.record.Alone && rounds == hotAttempts {
				return hot(o)
			}
			late := time.Since(begun) > time.Duration(d.job.PageTime)
			aside := func(m page.Moved) error {
				if !d.record.Alone && (late || o.Moves(m) >= mostMoves) {
					return errHot
				}
				return nil
			}
			before := o.Again
			run.Calls = d.calls(inTransaction)
			if err := run.Again(ctx, o, moved, aside); err != nil {
				return err
			}
			d.x.Observer.Conflicts(ctx, d.job.Mapper, o.Again-before)
			return d.tolerable(ctx, o)
		},
	})
	if err == nil && s == ours {
		used := d.usageOf(float64(o.Reached), float64(o.Writes()), float64(o.OtherReads()))
		d.page.used, d.page.reached = &used, o.Reached
		d.state.follow = follow
		d.announced.Add(-calls)
		d.tell(ctx, o)
		written := func(key *datastore.Key) bool { return follow.Next.Contains(keyspace.At(key)) }
		if follow.Next != nil && slices.ContainsFunc(o.Others, written) {
			d.planner.Forget() // the page has written entities of the next page, which was read ahead
		}
	}
	return s, err
}

// outcome returns the result of a page in the form that the range's record stores. It decides where
// the rest of the range is cut.
func (d *delivery) outcome(ctx context.Context, p planner.Plan, o *page.Results) (of record.Outcome, err error) {
	if d.record.Alone {
		for _, f := range o.Failures {
			if !f.Last(d.job.Backoff().Attempts) {
				return of, fault.Refusal{Summary: "the function failed on an entity", Cause: f.Err,
					After: fault.After(f.Err)}
			}
		}
	}
	of = record.Outcome{
		Done: p.At[:o.Reached], Next: p.Next, GoesOn: d.mayGoOn(), Failed: o.Failures, Backoff: d.job.Backoff(),
		JobGeneration: d.job.Generation, NextPage: d.nextPageSize(o), Each: o.Each(),
		EntitySize: d.planner.EntitySize(),
		Processed:  o.Processed, Written: o.Written, Calls: d.announced.Load(), Conflicts: o.Again, Ran: o.Ran,
		Yielded: d.page.yielded, Full: o.Full(d.record.PageSize, time.Duration(d.job.PageTime)),
		Left: o.Left, Examples: o.Examples[:min(len(o.Examples), record.PageExamples)],
	}
	if o.Reached < len(p.At) {
		of.Next = p.At[o.Reached]
	}
	if d.planner.Query.Many() && len(p.At) > 0 {
		space := p.At[0].Space()
		// planning may have limited the range to one kind and namespace
		of.Space, of.Beyond = &space, d.record.Kind == ""
	}
	d.page.late = p.Pieces == nil
	if of.Cut, err = d.cut(ctx, p, o); err != nil {
		return of, err
	}
	if d.record.ID == d.job.Root() {
		of.Unsharded = d.planner.Unsharded()
	}
	if d.planner.Mode == function.Update {
		of.Wrote = wrote(o)
	}
	if !d.job.CountersDropped {
		of.Counters, err = o.Counters.Encode()
	}
	return of, err
}

// tell reports a committed page in metrics and logs, and adds its counters to this process's sums.
func (d *delivery) tell(ctx context.Context, o *page.Results) {
	after := observe.Planned
	if d.page.late {
		after = observe.Late
	}
	d.x.cache.at(d.job.Ref()).pages.Add(1)
	failed := int64(d.state.follow.Failed)
	d.x.Observer.Committed(ctx, observe.Page{
		Mapper: d.job.Mapper, Job: d.job.Ref().String(), Entities: d.record.Processed, Failures: failed,
		Took:   time.Since(d.page.startedAt),
		CutOff: map[string]int64{after: d.state.follow.CutOff, observe.Failed: d.record.Retries + d.record.Recorded},
	})
	if kinds := o.Kinds(); kinds != "" {
		d.x.Observer.Failing(ctx, d.job, d.record, d.record.Retries, failed, kinds)
	}
	if !d.job.CountersDropped {
		d.state.over = d.x.cache.at(d.job.Ref()).noteCounters(o.Counters)
	}
}

// now returns the time in UTC, to the microsecond, as records store it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// wrote returns which entities a page's commit writes, in the form that the range's record stores.
// An undo reads it.
func wrote(o *page.Results) []byte {
	settled := time.Now().Add(-settledFor)
	var fresh []*datastore.Key
	for i, key := range o.Own {
		if at := o.OwnAt[i]; at == 0 || at > settled.UnixMicro() {
			fresh = append(fresh, key)
		}
	}
	w := undolog.Wrote{
		Own: undolog.KeysOf(o.Own, len(o.Own) == o.Reached), Written: int64(len(o.Own)),
		Gone:  undolog.KeysOf(o.Gone, len(o.Gone) == len(o.Own)),
		Fresh: undolog.KeysOf(fresh, len(fresh) == len(o.Own)), Settled: settled, Others: o.Others,
	}
	return w.Encode()
}

// settledFor is how long an entity must be unchanged before a page changes it, so that an undo can
// restore it later. After an hour, an undo can read only the states of whole minutes, and the last
// such state is up to a minute older than the page.
const settledFor = 2 * time.Minute
