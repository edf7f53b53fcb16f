package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// aroundPages returns what a job uses besides its committed pages, from its start or a Resume on.
// page is the number of entities in a page, and tasks the number of tasks at the same time.
//
// There are two parts. Splitting, pausing and resuming a job read its records: up to 1,000 reads.
// When the job pauses, up to ten tasks have each read up to three pages ahead that they do not
// process.
func aroundPages(page, tasks int64) billing.Usage {
	return billing.Usage{Reads: 1000 + 3*page*min(10, max(1, tasks))}
}

// CheckBudget returns an error if a budget is too small for even one page. page is the number of
// entities in a page, tasks the number of tasks at the same time, and writes the number of writes
// per entity.
func CheckBudget(budget record.Budget, page, tasks int, writes float64, prices billing.Prices) error {
	if enough, least := Suffices(budget, page, tasks, writes, prices); !enough {
		return setting.Errorf("StartOptions.Budget is %v, and has to be none, or at least %s, "+
			"which a page of %d entities may take with what is around it: smaller pages and fewer tasks at once "+
			"(StartOptions.PageSize, StartOptions.ExpectedWorkers) need less", budget, least, page)
	}
	return nil
}

// Suffices reports whether a budget is enough for one page: see CheckBudget. It also returns the
// least sufficient budget, as a text.
func Suffices(budget record.Budget, page, tasks int, writes float64, prices billing.Prices) (is bool, least string) {
	n, u := float64(page), aroundPages(int64(page), int64(tasks))
	u = billing.Usage{Reads: u.Reads + int64(3*n) + 4, Writes: int64(n*writes) + 1 + pace.RecordWrites, TaskOps: 4}
	is = budget.Dollars >= 0 && !math.IsInf(budget.Dollars, 1) && budget.Operations >= 0 &&
		estimate.Share(budget, u, prices) <= 1
	return is, fmt.Sprintf("$%v and %d operations", setting.Up(prices.Dollars(u)), u.Reads+u.Writes+u.TaskOps)
}

// A purse is the part of a job's budget that this process has reserved. The process returns the
// unspent rest to the job when it drains, has no more deliveries of the job, or forgets the job. If
// the process dies, the whole purse counts as spent.
type purse struct {
	turn *semaphore.Weighted // held by the delivery that uses the purse
	// the unspent share of the whole budget; negative if a page has cost more than expected
	left float64

	// the job's Allowance, which grows each time the budget is raised or renewed, at the
	// reservation; if the job has another one now, the purse is void
	allowance int64
}

// usageOf returns what a page uses. entities is the number of its entities, and others the number
// of reads of other entities. writes counts only the function's writes; usageOf adds the writes of
// records.
func (d *delivery) usageOf(entities, writes, others float64) billing.Usage {
	// reads of the range's record, a child's record, the job's record, and of the query itself
	if d.planner.Query.Unread(true) {
		entities = 0
	}
	return billing.Usage{Reads: int64(entities+others) + 4, Writes: int64(writes+1) + pace.RecordWrites, TaskOps: 4}
}

// keepBudget reserves the expected cost of a page of n entities in the job's budget. If less than
// this remains, it pauses the job and returns stopped. The caller calls settle after the page. If
// the page was committed, settle replaces the expected cost by the actual cost.
func (d *delivery) keepBudget(ctx context.Context, n int) (settle func(), s standing, err error) {
	budget, err := d.job.BudgetLimit()
	if err != nil {
		return nil, ours, err
	}
	p := &d.x.cache.at(d.job.Ref()).purse
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return nil, ours, err
	}
	// While the cost of a page is unknown, other pages wait until the first page has ended.
	held := d.x.paces.Get(d.job.Ref()).Entities == 0
	defer func() {
		if !held || settle == nil {
			p.turn.Release(1)
		}
	}()
	job := d.job.Ref()
	expected := estimate.Share(budget, d.usageOf(float64(n), float64(n)*d.x.paces.Writes(job, d.planner.Mode.Writes()),
		float64(n)*d.x.paces.Others(job)), d.x.Prices)
	ahead := 0.0
	// Each page of a delivery reads the next page ahead. When a delivery ends, its last page has
	// read entities that another delivery reads again. The first page of each delivery pays for
	// this.
	if !d.ahead {
		ahead = estimate.Share(budget, billing.Usage{Reads: int64(2 * n)}, d.x.Prices)
	}
	p.renew(d.job.Allowance)
	need := expected + ahead
	if p.allowance == d.job.Allowance { // otherwise the record is older than the purse
		need -= p.left
	}
	if need > 0 {
		around := estimate.Share(budget, aroundPages(d.job.PageSize, d.job.AtOnce()), d.x.Prices)
		got, allowance, err := d.x.takeOut(ctx, d.job, need, around, budget)
		switch {
		case errors.Is(err, errOtherBudget): // which applies from the next page on
			held = false
			return func() {}, ours, nil
		case got == 0:
			return nil, stopped, err
		}
		p.renew(allowance)
		p.left += got
	}
	p.left -= expected + ahead
	allowance := p.allowance
	d.ahead = true
	return sync.OnceFunc(func() {
		if !held {
			_ = p.turn.Acquire(context.WithoutCancel(ctx), 1)
		}
		defer p.turn.Release(1)
		if d.page.used == nil || p.allowance != allowance {
			return // the page was not committed, but may have cost as much as expected; or the purse is another one
		}
		p.left += expected - estimate.Share(budget, *d.page.used, d.x.Prices)
	}), ours, nil
}

// renew empties the purse if the job's budget was raised or renewed after the purse's reservation.
// The parameter allowance is the job's current Allowance, which grows with each such change.
func (p *purse) renew(allowance int64) {
	if allowance > p.allowance {
		p.allowance, p.left = allowance, 0
	}
}

// errOtherBudget says that the budget was changed since the delivery has read the job's record.
var errOtherBudget = errors.New("the job has another budget")

// takeOut reserves at least need of the job's budget for this process. If the budget is large
// enough, it reserves need for each task that the job may run at the same time. The parameter
// around is the job's cost besides its pages, which the job's first reservation includes. All
// amounts are shares of the whole budget.
//
// It returns the reserved part and the job's Allowance. When the job gets another Allowance, the
// part is void. If less than need remains, takeOut pauses the job and returns 0. If the job has
// another budget by now, it returns errOtherBudget, because the amounts are no shares of it.
func (x *Executor) takeOut(
	ctx context.Context, job *record.Job, need, around float64, budget record.Budget,
) (got float64, allowance int64, err error) {
	// unlessOther returns do as a change of the job that is refused if the job has another budget.
	unlessOther := func(do func(j *record.Job) (changed bool)) func(*record.Job) (bool, error) {
		return func(j *record.Job) (changed bool, err error) {
			if !bytes.Equal(j.Budget, job.Budget) {
				return false, errOtherBudget
			}
			return do(j), nil
		}
	}
	for {
		j, err := x.Store.UpdateJob(ctx, job.Ref(), unlessOther(func(j *record.Job) (changed bool) {
			got = j.Spend(around, need, need*float64(max(1, j.AtOnce())))
			return got > 0
		}))
		if err != nil {
			return 0, 0, err
		}
		if got > 0 {
			return got, j.Allowance, nil
		}
		why := observe.WithWhy(ctx, j.Shortage(around, need, budget))
		j, err = x.Change(why, job.Ref(), record.PausedByBudget, unlessOther(func(j *record.Job) (changed bool) {
			return j.PauseByBudget(around, need, budget)
		}))
		if err != nil || j.State != record.Running {
			return 0, 0, err
		}
		// Somebody has renewed the budget since the first transaction.
	}
}

// giveBackTime is how long a process tries to return the unspent part of a job's budget.
const giveBackTime = 20 * time.Second

// takeAll empties the purse and returns the rest. If a delivery is using the purse, it returns 0.
func (p *purse) takeAll() (left float64, allowance int64) {
	if !p.turn.TryAcquire(1) {
		return 0, 0
	}
	defer p.turn.Release(1)
	left = max(0, p.left)
	p.left -= left
	return left, p.allowance
}

// giveBack returns the unspent part of a budget to its job. The parameter left is that part, as a
// share of the whole budget, and allowance is the job's Allowance at its reservation. giveBack
// makes only one attempt: if an answer is lost, a second attempt could return the same amount
// twice.
func (x *Executor) giveBack(ctx context.Context, job record.Ref, left float64, allowance int64) {
	if left == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	err := x.Store.ChangeOnce(ctx, job, func(j *record.Job) (changed bool) {
		return j.GiveBack(allowance, left)
	})
	if err != nil && !errors.Is(err, record.ErrNoSuchJob) {
		x.Log.LogAttrs(ctx, slog.LevelWarn, "what is left of a job's budget in this process counts as spent",
			slog.String("job", job.ID), slog.Any("error", err))
	}
}

// giveBackIdle is called after a job's last delivery in this process. If the job no longer runs, or
// runs in another queue, it returns the unspent part of the job's budget. While the job runs here,
// it returns nothing, because the next delivery may need this part.
func (x *Executor) giveBackIdle(ctx context.Context, job record.Ref, r *cachedJob) {
	if !r.turn.TryAcquire(1) {
		return
	}
	known := r.record
	r.turn.Release(1)
	if known != nil && (known.State != record.Running || known.Queue.Is(x.Queue.Name()) != nil) {
		left, allowance := r.purse.takeAll()
		x.giveBack(ctx, job, left, allowance)
	}
}

// GiveBack returns the unspent parts of the budgets of all jobs. The caller must have drained the
// process.
func (x *Executor) GiveBack(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(source.Parallel)
	for job, r := range x.cache.idle() {
		left, allowance := r.purse.takeAll()
		group.Go(func() error {
			x.giveBack(ctx, job, left, allowance)
			return nil
		})
	}
	_ = group.Wait()
}
