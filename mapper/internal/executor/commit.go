package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/telemetry"
)

// processPage runs the function over the page's entities, and commits what it did together with the
// range's record. See page.Page for progress.
func (d *delivery) processPage(
	ctx context.Context, p planner.Plan, progress func(time.Duration, bool),
) (standing, error) {
	run := &page.Page{
		Job: d.job, Query: d.planner.Query, Mode: d.planner.Mode, Call: d.call, At: p.At,
		Read:   d.planner.ReaderAhead(ctx),
		Others: d.planner.Source.Stored(ctx), Keys: d.keys, Complete: d.client.AllocateIDs,
		Alone: d.record.Alone, Attempts: 1 + d.record.RefusalsIn(d.job), Late: late(ctx, d, p),
		Progress: progress, Paces: &d.x.paces, Pause: d.planner.Wait, Strays: &d.x.Gate.Strays,
		Ends: d.x.Gate.IsDraining,
	}
	o, err := run.Run(ctx)
	if err != nil {
		return ours, err
	}
	if err := d.tolerable(ctx, o); err != nil {
		return ours, err
	}
	lose, err := collect(ctx, d, o)
	if err != nil {
		lose()
		return ours, err
	}
	s, err := d.commitPage(ctx, p, o, run)
	if s == superseded || s == done && d.beaten {
		lose()
	}
	return s, err
}

// mostMoves is how often an entity of a page is found changed by others until it gets a range for
// itself, in which that may happen as often as hotAttempts says.
const (
	mostMoves   = 3
	hotAttempts = 20
)

// commitPage commits a page, of which entities that others have changed are run again.
func (d *delivery) commitPage(ctx context.Context, p planner.Plan, o *page.Outcome, run *page.Page) (standing, error) {
	var after committed
	begun, rounds := time.Now(), 0
	s, err := d.claim.commit(ctx, step{
		with: o.Mutations, guards: o.Guards, locks: d.record.Alone,
		put: func(r *record.Range) (children []*record.Range, err error) {
			p := p // of this attempt
			if err := give(ctx, d, &p, o); err != nil {
				return nil, err
			}
			children, after, err = d.putOutcome(r, p, o)
			return children, err
		},
		again: func(ctx context.Context, moved []page.Moved) error {
			if rounds++; d.record.Alone && rounds == hotAttempts {
				return errHot
			}
			late := time.Since(begun) > time.Duration(d.job.PageTime)
			aside := func(m page.Moved) error {
				if !d.record.Alone && (late || o.Moves(m) >= mostMoves) {
					return errHot
				}
				return nil
			}
			before := o.Again
			if err := run.Again(ctx, o, moved, aside); err != nil {
				return err
			}
			d.x.Telemetry.Conflicts(ctx, d.job.Mapper, o.Again-before)
			return d.tolerable(ctx, o)
		},
	})
	if err == nil && s == ours {
		d.takeOver(ctx, after)
		if next := after.next; next != nil && slices.ContainsFunc(o.Others, func(key *datastore.Key) bool {
			return d.planner.Query.Many() || next.Contains(keyspace.At(key))
		}) {
			d.planner.Forget() // what follows was read before it was written
		}
	}
	return s, err
}

// tolerable returns an error if so much fails that its entities can't be blamed: of a full page, or
// of what this process has called lately and of what the job has done so far. A tolerant job has
// them recorded after their last attempt.
func (d *delivery) tolerable(ctx context.Context, o *page.Outcome) error {
	failed := 0
	for _, f := range o.Failures {
		if !errors.Is(f.Err, errHot) {
			failed++
		}
	}
	if failed == 0 || d.record.Alone || d.job.Tolerant && !slices.ContainsFunc(o.Failures, func(f page.Failure) bool {
		return !f.Last(d.job.Backoff().Attempts)
	}) {
		return nil
	}
	r := fault.Refusal{Cause: o.Failures[0].Err, Final: true}
	switch {
	case pace.TooMany(failed, max(o.Reached, int(d.job.PageSize))):
		r.Summary = fmt.Sprintf("the function failed on %d of %d entities of a page", failed, o.Reached)
	case failed*2 > o.Reached: // a small page, or one that took its time, says little by itself
		lately := d.x.paces.Brake(d.job.Ref()).Lately()
		if !pace.TooMany(lately.Failed, lately.All) {
			return nil
		}
		sum, _, err := d.store.SampleTotals(ctx, d.job) // bad neighbours may be all that was called lately
		if err != nil {
			return err
		}
		if !pace.TooMany(failed+int(sum.Failing()), o.Reached+int(sum.Failing()+sum.Processed)) {
			return nil
		}
		r.Final = lately.Busy == 0
		r.Summary = fmt.Sprintf("the function failed on %d of the last %d entities", lately.Failed, lately.All)
	default:
		return nil
	}
	for _, f := range o.Failures {
		r.Final = r.Final && f.Permanent
		r.After = max(r.After, fault.After(f.Err))
	}
	return r
}

// A committed is what a delivery has to do after its commit.
type committed struct {
	next       *record.Range        // what is left of the range, for this task to go on with
	waits      map[string]time.Time // the children that are to be tried again, and when
	ran        time.Duration        // the function
	failed     int                  // how many entities have failed for good
	counters   tally.Counters       // that the page has counted
	overcounts bool                 // the pages of this process have more counters than a job can have
	kinds      string               // of the errors of entities that have failed; empty: none has
	cut        int64                // ranges that were cut off behind the page
}

// takeOver notes what is to be done after a commit, and says what failed.
func (d *delivery) takeOver(ctx context.Context, after committed) {
	d.after = after
	behind := telemetry.BehindPage
	if d.late {
		behind = telemetry.Late
	}
	d.x.Telemetry.Committed(ctx, telemetry.Page{
		Mapper: d.job.Mapper, Job: d.job.Ref().String(), Entities: d.record.Processed, Failures: int64(after.failed),
		Took:   time.Since(d.pageAt),
		CutOff: map[string]int64{behind: after.cut, telemetry.Failed: d.record.Retries + d.record.Recorded},
	})
	if after.kinds != "" {
		d.x.Journal.Failing(ctx, d.job, d.record, d.record.Retries, int64(after.failed), after.kinds)
	}
	if !after.counters.Empty() && !d.job.CountersDropped {
		d.after.overcounts = d.x.cache.at(d.job.Ref()).noteCounters(after.counters)
	}
}

// commit records what became of a page that the function was not run on.
func (d *delivery) commit(ctx context.Context, p planner.Plan, o *page.Outcome) (standing, error) {
	return d.commitPage(ctx, p, o, nil)
}

// errOverlap is a mistake in this package: a page reaches into another range, whose task
// would do its entities once more.
var errOverlap = fault.Fatal(errors.New("the page ends after its range: this is a mistake in scattermap, " +
	"please report it"))

// putOutcome puts the outcome into the range's record, as the transaction has
// read it, and returns the children that come of it.
func (d *delivery) putOutcome(
	r *record.Range, p planner.Plan, o *page.Outcome,
) (children []*record.Range, after committed, err error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	r.RefusedIn = d.job.Generation
	reaches := d.record.Kind == "" // into other spaces, perhaps; planSpaces may have found out
	if d.planner.Query.Many() && len(p.At) > 0 {
		r.In(p.At[0].Space())
	}
	size := nextPage(d, o)
	r.Pace = o.Each()
	add := func(child *record.Range) { children = append(children, child) }
	if p.Pieces != nil {
		switch pieces, err := p.Pieces(); {
		case errors.Is(err, planner.ErrCut):
			return nil, after, err
		case err == nil && len(pieces) > 1 && pieces[0].Holds(p.At[max(1, o.Reached)-1]):
			// otherwise the next page tries again
			children = d.planner.Cut(r, pieces, size)
			after.cut = int64(len(children))
		}
	}
	if rest, ok := d.left(r, p, o); ok {
		if d.planner.Query.Many() && reaches {
			rest.Space, rest.Resample = keyspace.Space{}, true
		}
		child := r.Rest(rest, now)
		child.PageSize = size
		r.End = child.Start
		if d.mayGoOn(child) {
			child.Depth, child.Continued = r.Depth, true
			after.next = child
		}
		add(child)
	}
	if o.Reached > 0 && !r.Contains(p.At[o.Reached-1]) {
		return nil, after, errOverlap
	}
	after.waits = make(map[string]time.Time)
	most := d.job.Backoff().Attempts
	var singles tally.Sum
	for _, f := range o.Failures {
		switch {
		case r.Alone && !f.Last(most):
			return nil, after, fault.Refusal{Summary: "the function failed on an entity", Cause: f.Err,
				After: fault.After(f.Err)}
		case !r.Alone && !f.Last(most):
			child := r.AloneChild(f.At, f.Attempts, f.Suspected, now)
			if f.Attempts > 0 {
				child.NotBefore = now.Add(max(d.job.Backoff().Delay(f.Attempts), fault.After(f.Err)))
			}
			add(child)
			singles = singles.Plus(child.SingleSum())
			r.Retries++
			after.waits[child.ID] = child.NotBefore
		}
	}
	for _, f := range o.Failures {
		if f.Last(most) {
			after.failed++
		}
		switch {
		case f.Last(most) && r.Alone:
			r.Refusals = f.Attempts
			r.Fail(f.Err, now)
		case f.Last(most):
			child := r.AloneChild(f.At, f.Attempts, f.Suspected, now)
			child.Fail(f.Err, now)
			add(child)
			singles = singles.Plus(child.SingleSum())
			r.Recorded++
		}
	}
	if r.Retries+r.Recorded > 0 {
		r.Single = singles.Bytes()
	}
	r.Entities, r.Keys = int64(o.Reached), record.KeysDigest(p.At[:o.Reached])
	r.Processed, r.Written, r.Conflicts, r.Ran = o.Processed, o.Written, o.Again, o.Ran
	keep(d, r, o)
	if r.ID == d.job.Root() {
		r.Unsharded = d.planner.Unsharded()
	}
	r.Full = o.Full(r.PageSize, time.Duration(d.job.PageTime))
	if !d.job.CountersDropped {
		counters, err := o.Counters.Values()
		if err != nil {
			return nil, after, err
		}
		if len(counters) > 0 {
			if r.Counters, err = json.Marshal(counters); err != nil {
				return nil, after, err
			}
			if len(r.Counters) > tally.MaxInPage {
				return nil, after, tally.ErrTooMany
			}
		}
	}
	r.Finish(now)
	d.finished = append(d.finished, r.Done)
	after.ran, after.counters, after.kinds = o.Ran, o.Counters, o.Kinds()
	return children, after, nil
}

// left returns what is left of a range behind what was dealt with, if anything is.
func (d *delivery) left(r *record.Range, p planner.Plan, o *page.Outcome) (rest split.Piece, ok bool) {
	start := p.Next
	if o.Reached < len(p.At) {
		start = p.At[o.Reached]
	}
	if start == nil || !r.Contains(start) { // it is a child's
		return split.Piece{}, false
	}
	s := r.Piece()
	return s.From(start, s.Estimate-int64(o.Reached)), true
}

// recordCulprit records the entity as a failure that the database has refused a page for. If there
// are many of them among what the job has processed, it is the function that is at fault.
func (d *delivery) recordCulprit(ctx context.Context, p planner.Plan, cause fault.CommitRefusal) (standing, error) {
	o := page.Failed(&page.Failure{At: p.At[0], Err: cause, Attempts: 1, Permanent: true})
	s, err := d.commit(ctx, p, o)
	if err != nil || s != ours || d.job.Tolerant {
		return s, err
	}
	sum, _, err := d.store.SampleTotals(ctx, d.job)
	if err != nil {
		return ours, err
	}
	if pace.TooMany(int(sum.Failures), int(sum.Failures+sum.Processed)) {
		summary := fmt.Sprintf("%d of %d entities failed so far, as the database refuses what the function writes",
			sum.Failures, sum.Failures+sum.Processed)
		_, err = d.fail(ctx, fault.Refusal{Summary: summary, Cause: cause, Final: true})
	}
	return ours, err
}

// errHot is the failure of an entity that others have changed in all attempts.
var errHot = errors.New("other clients change the entity, or hold its lock, all the time: in no attempt was it left " +
	"alone from its read to the commit")

// yield has the only entity of a page give way to those after it, because others change it: it gets
// a range for itself, as one that fails does. There it is tried again later, and is a failure after
// its last attempt.
func (d *delivery) yield(ctx context.Context, p planner.Plan) (standing, error) {
	f := page.Failure{At: p.At[0], Err: errHot, Attempts: 1 + d.record.RefusalsIn(d.job)}
	if d.record.Alone && !f.Last(d.job.Backoff().Attempts) {
		return ours, fault.Refusal{Summary: "other clients change an entity all the time", Cause: errHot}
	}
	return d.commit(ctx, p, page.Failed(&f))
}
