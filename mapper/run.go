package mapper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/survey"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/tasks"
)

// MaxAttempts is how often a mapper's function is tried on an entity that it
// returns an error for, and how often a page is tried that fails as a whole, see
// [Update].
const MaxAttempts = record.MaxAttempts

// A work is one delivery of a range's task.
type work struct {
	engine *Engine
	job    *record.Job
	query  query.Query
	local  query.Query // the part of it that is in the space of the range
	source source.Source
	mode   function.Mode
	apply  function.Func
	task   body.Range

	queued      tasks.Delivery // as the queue makes it
	begunAt     time.Time      // when it came
	redelivered bool           // there was one of it, or of a task that is lost
	delivery    string         // what this one's mark in the record is
	begun       bool           // the mark is there
	place       gate.Place     // inside the gate

	// record is the range as this delivery knows it. Transactions read it anew.
	record     *record.Range
	enqueued   int64                // of its children, the first
	waiting    map[string]time.Time // the children that this delivery has recorded to be tried again, and when
	halfway    func()               // what begins when half of the page is done; nil: nothing
	overcounts bool                 // the pages of this process have more counters than a job can have
	failed     int                  // how many failures this delivery has recorded for good

	splitting  split.Strategy
	entitySize func() int64   // what the root finds out; nil: this is not the root
	unsharded  func() int64   // the same, see record.Range
	weighed    []split.Piece  // the same: the pieces of its range, if they were counted before it was cut
	paced      time.Time      // when its last page began that had to wait for the job's rate
	keys       *source.Stream // from the range's start on
	divided    bool           // the task has cut its range
	ran        time.Duration  // the function, in this delivery
	whole      string         // the range that can't be cut
	listed     string         // the range that is not cut between spaces
	next       *record.Range  // the child that this task goes on with

	slow map[string]error // by key: entities that took too long in this delivery
	stop int              // if not 0: as many entities the page ends, behind one of them
}

// run does what a task asks for:
//
//  1. load the job and the range;
//  2. read the keys of a page, and see where the range is cut;
//  3. if others wait for that: record the children and enqueue them, before the page;
//  4. process the page and commit it with the record, in one transaction. What is left
//     of the range becomes a child;
//  5. enqueue the other children;
//  6. go on with that child, from 2;
//  7. see whether the job is complete.
//
// A delivery that finds the range done goes to 5: the one before may have died
// there. 7 is for ranges with children, too: those of 3 may have ended before
// their parent.
func (e *Engine) run(ctx context.Context, t body.Range, d tasks.Delivery) error {
	place, err := e.gate.Enter(ctx, false) // parameters may be decoded by a user's method
	if err != nil {
		return err
	}
	w, err := e.load(ctx, t)
	place.Leave()
	if err != nil || w == nil {
		return err
	}
	defer w.close()
	w.queued, w.redelivered = d, d.Retries > 0 || w.record.Lost
	look, err := w.runInside(ctx, e.cache.at(t.Ref()))
	if !look {
		return err
	}
	fresh, loaded := e.store().LoadJob(ctx, t.Ref()) // the look is for others, too, who may have seen a later record
	if loaded != nil {
		return errors.Join(err, loaded)
	}
	return errors.Join(err, e.jobs.Complete(ctx, fresh, false))
}

// runInside does the range and those after it, as one of the job's deliveries of this process.
// It reports whether it is up to this one to see whether the job is complete.
func (w *work) runInside(ctx context.Context, job *cachedJob) (look bool, err error) {
	ended := false
	job.enter()
	defer func() { look = job.leave(ended) }() // also if it panics
	ended, err = w.runOn(ctx)
	return false, err
}

// runOn does the range, and goes on with what is left of it. It reports whether the job
// may be complete.
func (w *work) runOn(ctx context.Context) (ended bool, err error) {
	for first := w.task.Range; ; {
		ended, err = w.finish(ctx)
		if err != nil && w.record.ID != first {
			// The range has no task yet; one of its own is tried again with less to walk to.
			if enqueued := w.engine.queue.Enqueue(ctx, body.TaskOf(w.record, w.job)); enqueued == nil || errors.Is(enqueued, tasks.ErrExists) {
				w.engine.log.LogAttrs(ctx, slog.LevelWarn, "range failed, and has a task of its own now", slog.Any("error", err))
				return false, nil
			}
		}
		if err != nil || !ended || w.next == nil {
			return ended, err
		}
		if goOn, err := w.proceed(ctx); err != nil || !goOn {
			return false, err
		}
	}
}

// finish does the range, as far as this delivery can. It reports whether the job may be
// complete.
func (w *work) finish(ctx context.Context) (look bool, err error) {
	defer w.leave() // also if it panics
	for w.record.State == record.Pending && (err == nil || errors.Is(err, errChanged)) {
		w.stop = 0
		if err != nil && w.keys != nil && w.keys.Whole {
			w.dropKeys() // the function may have changed what was read
		}
		err = w.attempt(ctx) // changed: with what it has become
	}
	if err != nil && !errors.Is(err, errDone) && !errors.Is(err, errSuperseded) && !errors.Is(err, errStopped) {
		err = w.giveUp(ctx, err)
	}
	if err != nil && !errors.Is(err, errDone) {
		w.end(ctx)
	}
	w.leave()
	switch {
	case errors.Is(err, errStopped), errors.Is(err, errSuperseded):
		return false, nil
	case err != nil && !errors.Is(err, errDone):
		return false, err
	case State(w.job.State) != Running:
		return false, nil // this task has ended or paused it
	}
	if err := w.enqueueChildren(ctx); err != nil {
		return false, err
	}
	if w.overcounts {
		w.overcounts = false
		if ended, err := w.fail(ctx, tally.ErrTooMany); err != nil || ended {
			w.next = nil
			return false, err
		}
	}
	if err := w.limitFailures(ctx); err != nil || State(w.job.State) != Running {
		w.next = nil
		return false, err
	}
	return true, nil
}

// longest returns how long a delivery goes on with the next page.
func (w *work) longest() time.Duration {
	deadline := w.engine.queue.Deadline()
	page := 2*time.Duration(w.job.PageTime) + time.Duration(w.job.Timeout) // see StartOptions
	return min(deadline/4, deadline*19/20-page-pace.WaitWithin(deadline))
}

// goesOn reports whether this delivery may go on with the child that is what is left of
// a range.
func (w *work) goesOn(r *record.Range) bool {
	return !r.Alone && !r.Solo && w.stop == 0 && time.Since(w.begunAt) < w.longest()
}

// proceed takes up the next range, unless the job has been stopped meanwhile.
func (w *work) proceed(ctx context.Context) (goOn bool, err error) {
	next := w.next
	job, err := w.engine.cachedJob(ctx, w.job.Ref())
	switch {
	case err != nil:
		return false, err
	case State(job.State) != Running:
		return false, nil // whoever resumes it enqueues the range
	}
	changed := job.Generation != w.job.Generation || job.Epoch != w.job.Epoch
	w.job, w.record, w.next = job, next, nil
	if changed { // whoever did that may not have seen the range
		err := w.engine.queue.Enqueue(ctx, body.TaskOf(next, job))
		if errors.Is(err, tasks.ErrExists) {
			err = nil
		}
		return false, err
	}
	w.task = body.Range{Job: next.Job, Incarnation: next.Incarnation, Range: next.ID, Generation: next.Generation}
	w.queued, w.redelivered, w.delivery, w.begun = tasks.Delivery{}, false, "", false
	w.enqueued, w.waiting, w.failed, w.slow = 0, nil, 0, nil
	w.divided = next.Workers <= 1 // after a surprise it is shared anew
	switch {
	case w.keys == nil:
	case !w.keys.Whole && w.readsWhole():
		w.dropKeys()
	default:
		w.keys.Pass(next.Start)
	}
	return true, nil
}

// close ends what the delivery has begun besides.
func (w *work) close() {
	if w.keys != nil {
		w.keys.Close()
	}
}

// load reads the job and the range of a task. It returns no work if there is
// nothing to do.
func (e *Engine) load(ctx context.Context, t body.Range) (*work, error) {
	w := &work{engine: e, begunAt: time.Now(), task: t, job: &record.Job{ID: t.Job}, record: new(record.Range)}
	missing, err := source.Lookup(
		func(keys []*datastore.Key, dst any) error { return e.client.GetMulti(ctx, keys, dst) },
		[]*datastore.Key{record.JobKey(t.Job), record.RangeKey(t.Ref(), t.Range)}, []any{w.job, w.record})
	if err != nil {
		return nil, fmt.Errorf("load range %s of job %s: %w", t.Range, t.Job, err)
	}
	if missing[0] || t.Ref().Is(w.job) != nil || missing[1] && w.job.Cleaned {
		return nil, nil // it was cleaned up
	}
	e.cache.note(w.job, w.begunAt)
	if missing[1] {
		return nil, tasks.Drop(fmt.Errorf("there is no range %s of a job %s", t.Range, t.Job))
	}
	if State(w.job.State) != Running || w.record.State == record.Pending && w.record.Generation != t.Generation {
		return nil, nil
	}
	def := e.mappers[w.job.Mapper]
	if def == nil {
		// Another build may have it: the queue tries again.
		return nil, fmt.Errorf("job %s: %w %q", t.Job, ErrUnknownMapper, w.job.Mapper)
	}
	w.mode = def.Mode
	if w.query, err = query.Of(w.job); err != nil {
		return nil, err
	}
	w.source = e.source().Of(ctx, w.query)
	if w.splitting, err = w.job.Strategy(); err != nil {
		return nil, err
	}
	e.paces.Expect(t.Ref(), w.record.EntitySize)
	if w.apply, err = def.Prepare(w.job.Params, w.query.KeysOnly); err != nil {
		return nil, fmt.Errorf("job %s: %w", t.Job, err)
	}
	return w, nil
}

// process does a pending range.
func (w *work) process(ctx context.Context) error {
	w.halfway = nil
	p, err := w.plan(ctx)
	for err == nil && p.first {
		if err = w.split(ctx, p); err == nil {
			p, err = w.plan(ctx) // what the range keeps may be for several workers, too
		}
	}
	if err != nil {
		return err
	}
	if err := w.keepRate(ctx, len(p.at)); err != nil {
		return err // errChanged: the page is too large by now
	}
	if p.next != nil && w.goesOn(w.record) {
		job := w.job.Ref()
		go func() { _, _ = w.engine.cachedJob(ctx, job) }() // so that proceed need not wait
		w.readOn()
	}
	if w.record.Solo && !w.record.Alone && w.record.PageLimit() == 1 && len(p.at) == 1 {
		// Whatever becomes of it, it is this entity.
		return w.commit(ctx, p, &outcome{reached: 1, failures: []failure{{at: p.at[0], suspected: true}}})
	}
	if w.record.ID == w.job.Root() {
		w.awaitCounts(ctx)
	}
	err = w.processPage(ctx, p)
	refused := new(fault.CommitRefusal)
	switch {
	case errors.As(err, refused) && len(p.at) == 1:
		return w.recordCulprit(ctx, p, *refused)
	case len(p.at) > 1 && (errors.As(err, refused) || w.mode == function.Update && fault.Contended(err)):
		return w.change(ctx, func(_ *datastore.Transaction, r *record.Range) error {
			r.Narrow(len(p.at))
			return nil
		})
	}
	return err
}

// awaitCounts waits for what the root finds out besides.
func (w *work) awaitCounts(ctx context.Context) {
	if w.unsharded == nil { // a delivery before has cut the range
		look := survey.Survey{Source: w.source, Query: w.query}
		w.unsharded = sync.OnceValue(func() int64 { return look.Unsharded(ctx) })
	}
	w.unsharded()
	if w.entitySize != nil {
		w.entitySize()
	}
}

// split cuts the range before its page is processed.
func (w *work) split(ctx context.Context, p page) error {
	pieces, err := p.pieces()
	if err != nil {
		return fmt.Errorf("cut range %s: %w", w.record.ID, err)
	}
	if len(pieces) < 2 {
		w.whole = w.record.ID // it is shorter than it was taken for
		return nil
	}
	if err := w.recordSplit(ctx, pieces); err != nil {
		return err
	}
	if len(p.at) > 0 && p.next == nil {
		w.whole = w.record.ID // a last page is cut once
	}
	if late := pieces[len(pieces)-1].Stagger; late > 0 {
		w.waiting = map[string]time.Time{record.RangeID(w.record.ID, w.record.Children-1): w.record.Created.Add(time.Duration((1 + late) * float64(lateBy)))}
	}
	err = w.enqueueChildren(ctx)
	w.waiting = nil // children of the page may wait for longer, see waits
	return err
}

// lateBy has what is left behind the last full piece of a range begin after the pieces of
// all ranges that were cut together, and the shortest last: where workers have few pages
// each they then end at about the same time. It is as long as it takes to cut and enqueue
// the others.
const lateBy = time.Second / 3

// recordCulprit records the entity as a failure that the database has refused a
// page for. If there are many of them among what the job has processed, it is the
// function that is at fault.
func (w *work) recordCulprit(ctx context.Context, p page, cause fault.CommitRefusal) error {
	o := &outcome{reached: 1, failures: []failure{{at: p.at[0], err: cause, attempts: 1, permanent: true}}}
	if err := w.commit(ctx, p, o); err != nil {
		return err
	}
	if w.job.Tolerant {
		return nil
	}
	sum, _, err := w.engine.store().SampleTotals(ctx, w.job)
	if err != nil {
		return err
	}
	if tooMany(int(sum.Failures), int(sum.Failures+sum.Processed)) {
		summary := fmt.Sprintf("%d of %d entities failed so far, as the database refuses what the function writes", sum.Failures, sum.Failures+sum.Processed)
		_, err = w.fail(ctx, fault.Refusal{Summary: summary, Cause: cause, Final: true})
		return err
	}
	return nil
}

// giveUp decides what becomes of a range whose delivery failed. What passes by
// itself is up to the queue, which delivers the task again. A refusal is tried again
// by another task, later, up to MaxAttempts times; then the job fails, and keeps
// what it has recorded.
func (w *work) giveUp(ctx context.Context, cause error) error {
	cause = fmt.Errorf("job %s: range %s: %w", w.job.ID, w.record.ID, cause)
	if !fault.IsFatal(cause) && !fault.Refused(cause) {
		return cause
	}
	last := false
	err := w.change(ctx, func(_ *datastore.Transaction, r *record.Range) error {
		r.Refusals, r.RefusedIn = r.RefusalsIn(w.job)+1, w.job.Generation
		r.NotBefore = time.Now().Add(max(fault.RetryDelay(r.Refusals), fault.After(cause))).UTC().Truncate(time.Microsecond)
		if last = fault.IsFatal(cause) || r.Refusals >= MaxAttempts; last {
			r.Refusals, r.NotBefore = 0, time.Time{} // for who resumes the job
		}
		r.Generation++
		r.Alive(w.delivery)
		r.Calm() // this task is over
		return nil
	})
	switch {
	case errors.Is(err, errDone), errors.Is(err, errSuperseded):
		return err
	case err != nil:
		return errors.Join(cause, err)
	}
	w.delivery = "" // it has no mark any more
	if last {
		if ended, err := w.fail(ctx, cause); err != nil || ended {
			return err
		}
	}
	w.engine.log.LogAttrs(ctx, slog.LevelWarn, "range refused, and tried again later",
		slog.Any("error", cause), slog.Int64("attempts", w.record.Refusals), slog.Time("not_before", w.record.NotBefore))
	if err := w.engine.queue.Enqueue(ctx, body.TaskOf(w.record, w.job)); err != nil && !errors.Is(err, tasks.ErrExists) {
		return fmt.Errorf("enqueue range %s of job %s again: %w", w.record.ID, w.job.ID, err)
	}
	return errSuperseded // by that task
}

// fail ends the job. It reports whether the job has ended: it goes on if somebody has
// resumed it since this delivery began.
func (w *work) fail(ctx context.Context, cause error) (ended bool, err error) {
	first, err := w.engine.jobs.Fail(ctx, w.job, cause)
	if err != nil {
		return false, err
	}
	if first {
		w.engine.log.LogAttrs(ctx, slog.LevelError, "job failed", slog.String("job", w.job.ID), slog.String("range", w.record.ID))
	}
	job, err := w.engine.store().LoadJob(ctx, w.job.Ref())
	if err != nil {
		return false, err
	}
	w.job = job
	return State(job.State) != Running, nil
}
