package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/tasks"
)

// A delivery is one delivery of a range's task. It does that range, and then what is left of it,
// range after range. For each range it has a turn.
type delivery struct {
	x          *Executor
	job        *record.Job
	record     *record.Range // the range in hand, as the delivery knows it
	generation int64         // of the range, that the task names
	planner    planner.Planner

	call     function.Func
	keys     function.Keys     // that the function reads; nil: nobody knows
	callPage function.PageFunc // nil: the mapper has none

	begunAt time.Time  // when it came
	ended   func()     // is called when it has ended
	place   gate.Place // inside the gate
	ahead   bool       // what it reads ahead has come out of the job's budget
	turn    turn
}

// A turn is the state of a delivery that belongs to one range.
type turn struct {
	queued      tasks.Delivery // of the range's task; zero: it has none
	redelivered bool           // an earlier delivery of this task, or of a lost one, has been here
	mark        string         // the crash mark that this delivery puts into the record; empty: none
	begun       bool           // the record has that mark

	finished []time.Time    // the Done times that this delivery has tried to commit
	beaten   bool           // another delivery has done the range
	follow   record.Follow  // what to do after the page's commit
	over     bool           // this process has counted under more names than a job may have
	enqueued int64          // the first children that have tasks
	late     bool           // the page gave work away because this task would end late with it
	pageAt   time.Time      // when the page began
	used     *billing.Usage // by the page; nil: it was not committed
	reached  int            // entities of the page that was committed
	grant    pace.Grant     // of the job's rate to the page; zero: the job has none

	newTraces bool // its children have too much to do for one trace
}

// Deliver runs the task of one delivery:
//
//  1. load the job and the range;
//  2. plan: read the keys of a page, and see where the range is cut;
//  3. if others wait for that, split: record the children and enqueue them, before the page;
//  4. run the function on the page, and commit what it did together with the range's record, in one
//     call. What is left of the range becomes a child;
//  5. enqueue the other children;
//  6. go on with that child, from 2;
//  7. see whether the job is complete.
//
// A delivery that finds the range done goes to 5: the one before may have died there. 7 is for
// ranges with children, too: those of 3 may have ended before their parent.
func (x *Executor) Deliver(ctx context.Context, queued tasks.Delivery) error {
	t, err := body.ParseRange(queued.Body)
	if err != nil {
		return tasks.Drop(fmt.Errorf("the body is not a task of ours: %w", err))
	}
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
	ref := d.job.Ref()
	known := x.cache.enter(ref)
	left := false
	leave := func(ended bool) (checks bool) {
		left = true
		checks, last := x.cache.leave(known, ended)
		if last {
			giveBackIdle(ctx, x, ref, known)
		}
		return checks
	}
	defer func() {
		if !left { // it panics
			leave(false)
		}
	}()
	ended, err := d.runAll(ctx)
	if !leave(ended) {
		return err
	}
	job, loaded := x.Store.LoadJob(ctx, t.Ref()) // as it is now: the check is for other deliveries, too
	if loaded != nil {
		return errors.Join(err, loaded)
	}
	return errors.Join(err, x.Complete(ctx, job, false)) // 7
}

// runAll does the range, and then the rest of it, range after range. It reports whether the last
// one has ended with nothing left: the job may be complete.
func (d *delivery) runAll(ctx context.Context) (ended bool, err error) {
	for first := d.record.ID; ; {
		ended, err := d.runRange(ctx) // 2 to 5
		if err != nil && handOver(ctx, d, d.record.ID != first, err) {
			return false, nil
		}
		if err != nil || !ended || d.turn.follow.Next == nil {
			return ended, err
		}
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
	if err := d.enqueueChildren(ctx); err != nil { // 5
		return false, err
	}
	if d.turn.over {
		d.turn.over = false
		if over, err := d.fail(ctx, tally.ErrTooMany); err != nil || over {
			return false, err
		}
	}
	job, err := limitFailures(ctx, d, d.turn.follow.Failed)
	d.job = job
	return err == nil && job.State == record.Running, err
}

// attempt processes a pending range, in company or exclusively. Whether it is suspected of killing
// its process, and is halved, is decided by record.Range.Begin. It keeps its place inside the gate:
// while there is a mark that says that it is alone, it has to be.
func (d *delivery) attempt(ctx context.Context) (standing, error) {
	if d.x.Gate.IsDraining() { // it may have its place from the attempt before
		return ours, gate.ErrDraining
	}
	exclusive := !d.turn.begun && d.record.Suspected() || d.record.Solo
	waited, err := d.enter(ctx, exclusive)
	if err != nil {
		return ours, fmt.Errorf("wait for other tasks: %w", err)
	}
	if waited || d.turn.begun {
		job, err := d.x.Store.LoadJob(ctx, d.job.Ref())
		if err != nil {
			return ours, err
		}
		if job.State != record.Running {
			return stopped, nil
		}
	}
	if !d.turn.begun && (d.turn.redelivered || exclusive) {
		if s, err := d.begin(ctx, exclusive, d.place.Alone); err != nil || s != ours {
			return s, err
		}
		if n := d.record.Died(time.Now()); d.record.Alone && n >= record.MaxDeaths {
			return d.condemn(ctx, n)
		}
		if d.record.Doomed() || (d.record.Alone || d.record.Solo) && d.turn.queued.RetryCount >= patience {
			return d.postpone(ctx)
		}
	}
	return d.page(ctx)
}

// page does the page of a pending range.
func (d *delivery) page(ctx context.Context) (standing, error) {
	d.turn.pageAt, d.turn.late = time.Now(), false
	p, s, err := d.plan(ctx) // 2 and 3
	if err != nil || s != ours {
		return s, err
	}
	settle, s, err := d.admit(ctx, &p)
	if err != nil || s != ours {
		return s, err
	}
	defer settle()
	if d.x.Gate.IsDraining() { // no page begins any more
		return ours, gate.ErrDraining
	}
	if d.record.Solo && !d.record.Alone && d.record.PageLimit() == 1 && len(p.At) == 1 {
		// Whatever becomes of it, it is this entity.
		return d.commitPage(ctx, p, page.Failed(&record.Failure{At: p.At[0], Suspected: true}), nil)
	}
	s, err = d.runPage(ctx, p) // 4
	settle()
	return d.refused(ctx, p, s, err)
}

// plan reads the keys of the next page. If other workers wait, it first splits the range for them.
func (d *delivery) plan(ctx context.Context) (p planner.Plan, s standing, err error) {
	p, err = d.planner.Plan(ctx, d.job, d.record)
	d.turn.newTraces = observe.NewTraces(d.job, p.Estimate())
	for err == nil && p.First {
		if s, err = d.split(ctx, p); err != nil || s != ours {
			return p, s, err
		}
		// what the range keeps may be for several workers, too
		p, err = d.planner.Plan(ctx, d.job, d.record)
	}
	return p, ours, err
}

// admit waits until the job's rate allows the page, and reserves the page's cost in the budget. The
// rate may allow fewer entities than were planned: the page has only those. The caller calls settle
// after the page.
func (d *delivery) admit(ctx context.Context, p *planner.Plan) (settle func(), s standing, err error) {
	settle, d.turn.used, d.turn.grant = func() {}, nil, pace.Grant{}
	if len(d.job.Rate) > 0 && !d.record.Solo {
		if d.turn.grant, settle, s, err = d.keepRate(ctx, len(p.At)); err != nil || s != ours {
			return settle, s, err
		}
		p.Shorten(d.turn.grant.N)
	}
	if len(d.job.Budget) > 0 {
		settleRate := settle
		settleBudget, s, err := keepBudget(ctx, d, len(p.At))
		if err != nil || s != ours {
			settleRate()
			return func() {}, s, err
		}
		return func() { settleRate(); settleBudget() }, ours, nil
	}
	return settle, ours, nil
}

// runPage runs the function on a page, and commits what it did. Meanwhile it reads the next page in
// the background, and looks for boundaries.
func (d *delivery) runPage(ctx context.Context, p planner.Plan) (standing, error) {
	var readOn func()
	if p.Next != nil && !d.record.Alone && !d.record.Solo && d.mayGoOn() {
		job := d.job
		go func() { _, _ = d.x.cache.load(ctx, d.x.Store, job.Ref()) }() // so that goOn need not wait
		readOn = d.planner.ReadOn()
	}
	if d.record.ID == d.job.Root() {
		d.planner.AwaitCounts(ctx)
	}
	run := d.pageOf(ctx, p, p.Progress(readOn))
	o, err := run.Run(ctx)
	if err != nil {
		return ours, err
	}
	if err := tolerable(ctx, d, o); err != nil {
		return ours, err
	}
	lose, err := collect(ctx, d, o)
	if err != nil {
		lose()
		return ours, err
	}
	s, err := d.commitPage(ctx, p, o, run)
	if s == superseded || s == done && d.turn.beaten {
		lose()
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
		r.EntitySize = cmp.Or(d.planner.EntitySize(), r.EntitySize)
		return r.Divide(pieces, r.PageSize, d.planner.Query.Many(), now()), nil
	})
	if err != nil || s != ours {
		return s, err
	}
	why := observe.BeforePage
	if d.record.ID == d.job.Root() {
		why = observe.AtStart
	}
	d.x.Observer.CutOff(ctx, d.job.Mapper, map[string]int64{why: int64(len(pieces) - 1)})
	if len(p.At) > 0 && p.Next == nil {
		d.planner.KeepWhole() // a last page is cut once
	}
	return ours, d.enqueueChildren(ctx)
}

// goOn takes up what is left of the range, unless the job has been stopped meanwhile, or this
// process is draining.
func (d *delivery) goOn(ctx context.Context) (goesOn bool, err error) {
	next := d.turn.follow.Next
	job, err := d.x.cache.load(ctx, d.x.Store, d.job.Ref())
	if err != nil || job.State != record.Running {
		return false, err // whoever resumes it enqueues the range
	}
	if job.Queue.Is(d.x.Queue.Name()) != nil {
		return false, nil // the next sweep in its queue enqueues the range there
	}
	known := d.job
	d.job, d.record, d.generation, d.turn = job, next, next.Generation, turn{}
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
