package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// A delivery is one request of the queue for a range's task. It processes that range, and then the
// rest of it, range after range.
type delivery struct {
	x      *Executor
	job    *record.Job
	record *record.Range // the record of the current range, as last read or written
	// the range's generation in the task's body; each new task of the range has the next number
	generation int64
	planner    planner.Planner
	functions  function.Functions

	begunAt time.Time  // when the queue's request arrived
	ended   func()     // called at the end of the delivery
	place   gate.Place // the delivery's place in the gate; the gate decides which tasks run at the same time
	// whether a page of this delivery has reserved the cost of reading the next page ahead
	ahead bool
	state currentRange
	page  currentPage

	// number of calls of a service that the function has announced, and that no record counts yet
	announced atomic.Int64
}

// A currentRange is the part of a delivery's state that belongs to its current range. It starts
// anew with the next range.
type currentRange struct {
	// the delivered task, if it is the range's own; zero if the delivery has continued with this
	// range
	queued      tasks.Delivery
	redelivered bool   // whether this task, or a lost task of the range, was delivered before
	mark        string // the crash mark of this delivery (record.CrashMark); empty: none
	begun       bool   // whether the range's record has the mark

	finished []time.Time   // the values of Range.Done in this delivery's attempts to commit
	beaten   bool          // whether another delivery has done the range
	follow   record.Follow // what to do after the page's commit
	over     bool          // whether this process' counters of the job have more names than a job may have
	enqueued int64         // number of the range's first children that already have tasks
	idle     int64         // number of idle workers, if known; the next children are for them

	newTraces bool // whether the children start their own traces, because one trace would be too large
}

// A currentPage is the part of a delivery's state that belongs to the page that it processes. It
// starts anew with each attempt to process a page.
type currentPage struct {
	startedAt time.Time
	yielded   time.Duration // how long the page of a background job has waited for a slot (giveWay)
	grant     pace.Grant    // the page's reservation of the job's rate; zero: the job has no rate
	ran       time.Duration // how long the function took for the page, including its waits
	// whether the page's cut was not planned, but made because this task would end late with the
	// rest
	late    bool
	used    *billing.Usage // reads, writes and other costs of the committed page; nil if it was not committed
	reached int            // the number of entities in the committed page
}

// Deliver runs the task of one delivery:
//
// 1. Load the job and the range.
// 2. Plan: read the keys of a page, and decide where the range is cut.
// 3. If the range has work for idle workers (Plan.First), split: record the children and enqueue
// their tasks before the page runs.
// 4. Run the function on the page. Commit the result and the range's record in one call. The rest
// of the range becomes a child.
// 5. Enqueue the tasks of the other children.
// 6. Continue with that child at step 2.
// 7. Check whether the job is complete. A small job ends here.
//
// A delivery that finds its range done continues at step 5, because the delivery that has done it
// may have died before this step. Step 7 is also for ranges with children, because the children of
// step 3 may end before their parent.
func (x *Executor) Deliver(ctx context.Context, queued tasks.Delivery) error {
	t, err := body.ParseRange(queued.Body)
	if err != nil {
		return tasks.Drop(fmt.Errorf("the body is not a task of ours: %w", err))
	}
	if t.Idle && queued.RetryCount == 0 {
		x.dispatch.Note(queued.ScheduleTime, time.Now())
	}
	place, err := x.Gate.Enter(ctx, false) // decoding the parameters may call code of the user
	if err != nil {
		return err
	}
	d, err := x.load(ctx, t, queued) // 1
	place.Leave()
	if d == nil {
		return err
	}
	defer d.ended()
	defer d.planner.Close()
	if d.job.Background {
		x.background.enter(x.client)
		defer x.background.leave()
	}
	known, loaded := x.cache.enter(d.job.Ref()), d.job
	ended := false
	leave := sync.OnceValue(func() (checks bool) {
		checks, last := x.cache.leave(known, ended)
		if last {
			x.giveBackIdle(ctx, t.Ref(), known)
		}
		return checks
	})
	defer leave()              // also if the delivery panics
	ended, err = d.runAll(ctx) // 2 to 6
	if !leave() {
		return err
	}
	if known.pages.Load() < fewPages && x.EndSmall(ctx, loaded) { // 7
		return err
	}
	// not from the cache, because the check is also for other deliveries
	job, failed := x.Store.LoadJob(ctx, t.Ref())
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, x.Complete(ctx, job, false))
}

// runAll processes the range, and then the rest of it, range after range. ended is true if the last
// range is done and nothing remains. The job may then be complete.
func (d *delivery) runAll(ctx context.Context) (ended bool, err error) {
	for first := d.record.ID; ; {
		ended, err := d.runRange(ctx) // 2 to 5
		if err != nil && d.handOver(ctx, d.record.ID != first, err) {
			return false, nil
		}
		if !ended || d.state.follow.Next == nil {
			return ended, err
		}
		if goesOn, err := d.goOn(ctx); !goesOn { // 6
			return false, err
		}
	}
}

// runRange processes the current range until this delivery can do no more for it. ended is true if
// the range is done, and each child has a task or is continued by this delivery.
func (d *delivery) runRange(ctx context.Context) (ended bool, err error) {
	defer d.leave() // deferred, so that it also runs after a panic
	var s standing
	for d.record.State == record.Pending && err == nil && (s == ours || s == changed) {
		if s == changed {
			d.planner.Forget()
		}
		s, err = d.attempt(ctx)
	}
	if err != nil {
		s, err = d.afterFailure(ctx, err)
	}
	if err != nil || s != ours && s != done {
		d.unmark(ctx)
	}
	d.leave()
	if err != nil || s == stopped || s == superseded || d.job.State != record.Running {
		return false, err // false if this delivery has ended or paused the job
	}
	if err := d.enqueueChildren(ctx); err != nil { // 5
		return false, err
	}
	if d.state.over {
		d.state.over = false
		if _, err := d.fail(ctx, tally.ErrTooMany); err != nil {
			return false, err
		}
	}
	err = d.limitFailures(ctx)
	return err == nil && d.job.State == record.Running, err
}

// attempt tries to process one page of the current range. If the range is suspected of killing its
// process, the attempt is exclusive: the process does nothing else. After the attempt, the delivery
// keeps its exclusive place in the gate, because the range's record may still say that its process
// does nothing else.
func (d *delivery) attempt(ctx context.Context) (standing, error) {
	if d.x.Gate.IsDraining() { // the delivery may still have a place from the last attempt
		return ours, gate.ErrDraining
	}
	exclusive := !d.state.begun && d.record.Suspected() || d.record.Solo
	if s, err := d.enter(ctx, exclusive); err != nil || s != ours {
		return s, err
	}
	if !d.state.begun && (d.state.redelivered || exclusive) {
		if s, err := d.begin(ctx, exclusive, d.place.Quiet); err != nil || s != ours {
			return s, err
		}
		if n := d.record.Died(time.Now()); d.record.Alone && n >= record.MaxDeaths {
			return d.condemn(ctx, n)
		}
		if d.record.Doomed() || (d.record.Alone || d.record.Solo) && d.state.queued.RetryCount >= maxRedeliveries {
			return d.postpone(ctx)
		}
	}
	return d.processPage(ctx)
}

// processPage processes the next page of the current range. It plans, waits for the job's rate and
// budget, runs the function, and commits.
func (d *delivery) processPage(ctx context.Context) (standing, error) {
	d.page = currentPage{startedAt: time.Now()}
	p, s, err := d.plan(ctx) // 2 and 3
	if err != nil || s != ours {
		return s, err
	}
	freeSlot, s, err := d.giveWay(ctx, p)
	if err != nil || s != ours {
		return s, err
	}
	defer freeSlot()
	settle, s, err := d.admit(ctx, &p)
	if err != nil || s != ours {
		return s, err
	}
	defer settle()
	if d.x.Gate.IsDraining() { // a draining process starts no page
		return ours, gate.ErrDraining
	}
	if d.record.Solo && !d.record.Alone && d.record.PageLimit() == 1 && len(p.At) == 1 {
		// This entity may have killed its process, so it gets a range of its own.
		return d.commitPage(ctx, p, page.Failed(&record.Failure{At: p.At[0], Suspected: true}), nil)
	}
	s, err = d.runPage(ctx, p) // 4
	if settle(); errors.Is(err, errStopped) {
		return stopped, nil
	}
	return d.refused(ctx, p, s, err)
}

// plan reads the keys of the next page. If other workers are idle, it first splits the range for
// them.
func (d *delivery) plan(ctx context.Context) (p planner.Plan, s standing, err error) {
	p, err = d.planner.Plan(ctx, d.job, d.record)
	d.state.newTraces = observe.NewTraces(d.job, p.Range.Estimate)
	for p.First {
		if s, err = d.split(ctx, p); err != nil || s != ours {
			return p, s, err
		}
		// the range is now only its first piece, which may again be enough for several workers
		p, err = d.planner.Plan(ctx, d.job, d.record)
	}
	return p, ours, err
}

// admit waits until the job's rate allows the page, and reserves the page's cost in the job's
// budget. If the rate allows fewer entities than planned, admit shortens the page. The caller calls
// settle after the page. A second call of settle has no effect.
func (d *delivery) admit(ctx context.Context, p *planner.Plan) (settle func(), s standing, err error) {
	settle = func() {}
	if len(d.job.Rate) > 0 && !d.record.Solo {
		if d.page.grant, settle, s, err = d.keepRate(ctx, len(p.At)); err != nil || s != ours {
			return settle, s, err
		}
		p.Shorten(d.page.grant.N)
	}
	if len(d.job.Budget) > 0 {
		settleRate := settle
		settleBudget, s, err := d.keepBudget(ctx, len(p.At))
		if err != nil || s != ours {
			return settleRate, s, err
		}
		return func() { settleRate(); settleBudget() }, ours, nil
	}
	return settle, ours, nil
}

// runPage runs the function on a page, and commits the result. Meanwhile, it reads the next page
// and the boundaries for a cut in the background.
func (d *delivery) runPage(ctx context.Context, p planner.Plan) (standing, error) {
	var readOn func()
	goesOn := p.Next != nil && !d.record.Solo && d.mayGoOn()
	if goesOn {
		readOn = d.planner.ReadOn()
	}
	if d.record.ID == d.job.Root() {
		d.planner.AwaitCounts(ctx)
	}
	run := d.pageOf(ctx, p, p.Progress(readOn))
	from := time.Now()
	o, err := run.Run(ctx)
	if err != nil {
		return ours, err
	}
	if err := d.tolerable(ctx, o); err != nil {
		return ours, err
	}
	lose, err := d.collect(ctx, o)
	if err != nil {
		lose()
		return ours, err
	}
	d.page.ran = time.Since(from)
	if goesOn {
		job := d.job.Ref()
		// reads the job into the cache during the commit, so that goOn does not wait for it
		go func() { _, _ = d.x.cache.load(ctx, d.x.Store, job) }()
	}
	s, err := d.commitPage(ctx, p, o, run)
	if s == superseded || d.state.beaten {
		lose()
	}
	return s, err
}

// split cuts the range before its page is processed, and enqueues the tasks of the children.
func (d *delivery) split(ctx context.Context, p planner.Plan) (standing, error) {
	pieces, err := p.Pieces()
	if err != nil {
		return ours, fmt.Errorf("cut range %s: %w", d.record.ID, err)
	}
	if len(pieces) < 2 {
		d.planner.KeepWhole() // the range has fewer entities than estimated
		return ours, nil
	}
	workers := d.record.Workers
	if d.record.ID == d.job.Root() && !d.record.Cut {
		workers = d.job.Workers
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
	d.state.idle = workers - 1
	defer func() { d.state.idle = 0 }()
	return ours, d.enqueueChildren(ctx)
}

// goOn makes the rest of the range the delivery's current range. It returns false if this delivery
// must end instead, because the job was stopped or changed, or because the process drains.
func (d *delivery) goOn(ctx context.Context) (goesOn bool, err error) {
	next := d.state.follow.Next
	job, err := d.x.cache.load(ctx, d.x.Store, d.job.Ref())
	if err != nil || job.State != record.Running {
		return false, err // a Resume of the job will enqueue the rest's task
	}
	if job.Queue.Is(d.x.Queue.Name()) != nil {
		return false, nil // a sweep in the job's new queue will enqueue the rest's task
	}
	known := d.job
	d.job, d.record, d.generation, d.state = job, next, next.Generation, currentRange{}
	// A Resume, or a change of the job, may not have seen the rest of the range. So the rest gets a
	// task, as it does when this process drains.
	if job.Generation != known.Generation || job.Epoch != known.Epoch || d.x.Gate.IsDraining() {
		return false, d.enqueueAgain(ctx)
	}
	d.planner.GoOn(job, next)
	return true, nil
}
