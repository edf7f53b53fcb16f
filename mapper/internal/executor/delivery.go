package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/telemetry"
	"github.com/scattermap/scattermap/tasks"
)

// A delivery is one delivery of a range's task. It does that range, and then what is left of it,
// range after range, each of which is a turn.
type delivery struct {
	claim    // the range that it has in hand
	planner  planner.Planner
	x        *Executor
	call     function.Func
	keys     function.Keys     // that the function reads; nil: nobody knows
	callPage function.PageFunc // nil: the mapper has none
	begunAt  time.Time         // when it came
	ended    func()            // is called when it has ended
	place    gate.Place        // inside the gate
	paced    time.Time         // when its last page began that had to wait for the job's rate
	ahead    bool              // what it reads ahead has come out of the job's budget
	turn
}

// A turn is what a delivery has done about one range.
type turn struct {
	queued      tasks.Delivery // as the queue makes it; zero, if the range has no task
	redelivered bool           // there was a delivery of its task before, or of one that is lost
	mark        string         // the delivery's own in the record; empty: it has left none
	begun       bool           // that mark is there

	after    committed      // of the page
	enqueued int64          // how many of its children have tasks, from the first on
	late     bool           // what its page has cut off is what it would have ended late with
	pageAt   time.Time      // when its page began
	used     *billing.Usage // by its page, if that was committed

	newTraces bool // its children have too much to do for one trace
}

// run does what a task asks for:
//
//  1. load the job and the range;
//  2. read the keys of a page, and see where the range is cut;
//  3. if others wait for that: record the children and enqueue them, before the page;
//  4. process the page and commit it with the record, in one transaction. What is left of the range
//     becomes a child;
//  5. enqueue the other children;
//  6. go on with that child, from 2;
//  7. see whether the job is complete.
//
// A delivery that finds the range done goes to 5: the one before may have died there. 7 is for
// ranges with children, too: those of 3 may have ended before their parent.
func (x *Executor) run(ctx context.Context, t body.Range, queued tasks.Delivery) error {
	place, err := x.Gate.Enter(ctx, false) // parameters may be decoded by a user's method
	if err != nil {
		return err
	}
	d, err := x.load(ctx, t, queued) // 1
	place.Leave()
	if err != nil || d == nil {
		return err
	}
	defer d.ended()
	defer d.planner.Close()
	checks, err := d.runAll(ctx)
	if !checks {
		return err
	}
	job, loaded := x.Store.LoadJob(ctx, t.Ref()) // as it is now: the check is for other deliveries, too
	if loaded != nil {
		return errors.Join(err, loaded)
	}
	return errors.Join(err, x.Complete(ctx, job, false)) // 7
}

// runAll does the range, and what is left of it, as one of the job's deliveries of this process. It
// reports whether it is up to this one to check whether the job is complete.
func (d *delivery) runAll(ctx context.Context) (checks bool, err error) {
	ref, ended := d.job.Ref(), false
	job := d.x.cache.enter(ref)
	defer func() { // also if it panics
		last := false
		if checks, last = d.x.cache.leave(job, ended); last {
			giveBackIdle(ctx, d.x, ref, job)
		}
	}()
	for first := d.record.ID; ; {
		ended, err = d.runRange(ctx) // 2 to 5
		if err != nil && handOver(ctx, d, d.record.ID != first, err) {
			return false, nil
		}
		if err != nil || !ended || d.after.next == nil {
			return false, err
		}
		ended = false
		if goesOn, err := d.goOn(ctx); err != nil || !goesOn { // 6
			return false, err
		}
	}
}

// runRange does the range, as far as this delivery can. It reports whether the range has ended, and
// its children have tasks, but for the one to go on with: if there is none the job may be complete.
func (d *delivery) runRange(ctx context.Context) (ended bool, err error) {
	defer d.leave() // also if it panics
	var s standing
	for d.record.State == record.Pending && err == nil && (s == ours || s == changed) {
		if s == changed {
			d.planner.Forget()
		}
		s, err = d.attempt(ctx)
	}
	if err != nil {
		s, err = d.giveUp(ctx, err)
	}
	if err != nil || s != ours && s != done {
		d.unmark(ctx)
	}
	d.leave()
	if err != nil || s == stopped || s == superseded || d.job.State != record.Running {
		return false, err // or this task has ended or paused the job
	}
	if err := d.enqueueChildren(ctx, d.x.Queue, &d.turn); err != nil { // 5
		return false, err
	}
	if d.after.overcounts {
		d.after.overcounts = false
		if over, err := d.fail(ctx, tally.ErrTooMany); err != nil || over {
			return false, err
		}
	}
	job, err := limitFailures(ctx, d, d.after.failed)
	d.job = job
	return err == nil && job.State == record.Running, err
}

// process does the page of a pending range.
func (d *delivery) process(ctx context.Context) (s standing, err error) {
	d.pageAt, d.late = time.Now(), false
	p, err := d.planner.Plan(ctx, d.job, d.record) // 2
	d.newTraces = telemetry.NewTraces(d.job, p.Estimate())
	for err == nil && p.First {
		if s, err = d.split(ctx, p); err != nil || s != ours { // 3
			return s, err
		}
		p, err = d.planner.Plan(ctx, d.job, d.record) // what the range keeps may be for several workers, too
	}
	if err != nil {
		return ours, err
	}
	if len(d.job.Rate) > 0 && !d.record.Solo {
		if d.job, d.paced, s, err = d.x.keepRate(ctx, d.job, d.planner.Mode, len(p.At), d.paced); err != nil ||
			s != ours {
			return s, err
		}
	}
	settle := func() {}
	if len(d.job.Budget) > 0 {
		if settle, s, err = keepBudget(ctx, d, len(p.At)); err != nil || s != ours {
			return s, err
		}
		defer settle()
	}
	if d.x.Gate.IsDraining() { // no page begins any more
		return ours, gate.ErrDraining
	}
	var readOn func()
	if p.Next != nil && d.mayGoOn(d.record) {
		job := d.job
		go func() { _, _ = d.x.cache.load(ctx, d.x.Store, job.Ref()) }() // so that goOn need not wait
		readOn = d.planner.ReadOn()
	}
	if d.record.Solo && !d.record.Alone && d.record.PageLimit() == 1 && len(p.At) == 1 {
		// Whatever becomes of it, it is this entity.
		return d.commit(ctx, p, page.Failed(&page.Failure{At: p.At[0], Suspected: true}))
	}
	if d.record.ID == d.job.Root() {
		d.planner.AwaitCounts(ctx)
	}
	s, err = d.processPage(ctx, p, p.Progress(readOn)) // 4
	settle()
	refused, contended := new(fault.CommitRefusal), d.planner.Mode == function.Update &&
		(fault.Contended(err) || errors.Is(err, errHot))
	switch {
	case errors.As(err, refused) && len(p.At) == 1:
		return d.recordCulprit(ctx, p, *refused)
	case contended && len(p.At) == 1:
		return d.yield(ctx, p)
	case len(p.At) > 1 && (errors.As(err, refused) || contended):
		return d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
			r.Narrow(len(p.At))
			return nil, nil
		})
	}
	return s, err
}

// split cuts the range before its page is processed.
func (d *delivery) split(ctx context.Context, p planner.Plan) (standing, error) {
	pieces, err := p.Pieces()
	if err != nil {
		return ours, fmt.Errorf("cut range %s: %w", d.record.ID, err)
	}
	if len(pieces) < 2 {
		d.planner.KeepWhole() // it is shorter than it was taken for
		return ours, nil
	}
	s, err := d.change(ctx, func(r *record.Range) ([]*record.Range, error) {
		return d.planner.Cut(r, pieces, r.PageSize), nil
	})
	if err != nil || s != ours {
		return s, err
	}
	why := telemetry.BeforePage
	if d.record.ID == d.job.Root() {
		why = telemetry.AtStart
	}
	d.x.Telemetry.CutOff(ctx, d.job.Mapper, map[string]int64{why: int64(len(pieces) - 1)})
	if len(p.At) > 0 && p.Next == nil {
		d.planner.KeepWhole() // a last page is cut once
	}
	return ours, d.enqueueChildren(ctx, d.x.Queue, &d.turn)
}

// mayGoOn reports whether this delivery may go on with what is left of a range.
func (d *delivery) mayGoOn(r *record.Range) bool {
	deadline := d.x.Queue.DispatchDeadline()
	longest := 2*time.Duration(d.job.PageTime) + time.Duration(d.job.Timeout) // of a page, see mapper.StartOptions
	if d.callPage != nil {
		longest += function.MaxInTransaction
	}
	return !r.Alone && !r.Solo && !d.x.Gate.IsDraining() &&
		time.Since(d.begunAt) < min(deadline/4, deadline*19/20-longest-pace.WaitWithin(deadline))
}

// goOn takes up what is left of the range, unless the job has been stopped meanwhile, or this
// process is draining.
func (d *delivery) goOn(ctx context.Context) (goesOn bool, err error) {
	next := d.after.next
	job, err := d.x.cache.load(ctx, d.x.Store, d.job.Ref())
	if err != nil || job.State != record.Running {
		return false, err // whoever resumes it enqueues the range
	}
	if job.Queue.Is(d.x.Queue.Name()) != nil {
		return false, nil // the next sweep in its queue enqueues the range there
	}
	known := d.job
	d.job, d.record, d.generation, d.finished, d.turn = job, next, next.Generation, nil, turn{}
	// whoever did that may not have seen the range
	if job.Generation != known.Generation || job.Epoch != known.Epoch || d.x.Gate.IsDraining() {
		if err := d.x.Queue.Enqueue(ctx, body.TaskOf(next, job)); err != nil && !errors.Is(err, tasks.ErrExists) {
			return false, err
		}
		return false, nil
	}
	d.planner.GoOn(job, next)
	return true, nil
}
