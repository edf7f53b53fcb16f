package executor

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// aroundPages is what a job uses besides its pages, from its start or a resume on: records are read
// when it is split, paused and resumed, which is said; and some tasks have read a page, and more
// ahead, that they may not begin any more.
func aroundPages(page, tasks int64) billing.Usage {
	return billing.Usage{Reads: 1000 + 3*page*min(10, max(1, tasks))}
}

// CheckBudget returns an error if a job whose pages have so many entities, each of which has so
// many writes, could not do any within a budget.
func CheckBudget(budget record.Budget, page, tasks int, writes float64, prices billing.Prices) error {
	n, least := float64(page), aroundPages(int64(page), int64(tasks))
	least = billing.Usage{Reads: least.Reads + int64(3*n) + 4, Writes: int64(n*writes) + 1 + pace.RecordWrites,
		TaskOps: 4}
	if !(budget.Dollars >= 0) || math.IsInf(budget.Dollars, 1) || budget.Operations < 0 ||
		estimate.Share(budget, least, prices) > 1 {
		return setting.Errorf("StartOptions.Budget is %v, and has to be none, or at least $%.4f and %d operations, "+
			"which a page of %d entities may take with what is around it: smaller pages and fewer tasks at once "+
			"(StartOptions.PageSize, StartOptions.ExpectedWorkers) need less",
			budget, prices.Dollars(least), least.Reads+least.Writes+least.TaskOps, page)
	}
	return nil
}

// A purse is what a process has taken out of a job's budget, as a share of that, and not spent yet.
// It is given back when the process drains, when it has nothing more to do for the job, and when it
// forgets the job. What a process that dies has in it counts as spent.
type purse struct {
	turn *semaphore.Weighted // of who takes more out of the budget
	left float64             // less than 0: a page has cost more than was expected

	allowance int64 // of the job, see record.Job: what is left of an earlier one does not count
}

// usageOf returns what a page uses, by its number of entities, of writes besides those of its
// records, and of entities that its transaction compares.
func usageOf(d *delivery, entities, writes, compared float64) billing.Usage {
	// its record, a child's, the job's and the scan's
	u := billing.Usage{Reads: int64(entities+compared) + 4, Writes: int64(writes+1) + pace.RecordWrites, TaskOps: 4}
	if d.planner.Query.Unread(true) {
		u.Reads = 4
	}
	return u
}

// keepBudget takes what a page of n entities is expected to cost out of the job's budget. If there
// is not as much left the job is paused. Settle is called behind the page.
func keepBudget(ctx context.Context, d *delivery, n int) (settle func(), s standing, err error) {
	budget, err := record.BudgetOf(d.job)
	if err != nil {
		return nil, ours, err
	}
	p := &d.x.cache.at(d.job.Ref()).purse
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return nil, ours, err
	}
	// nobody knows what a page costs: the others wait for the first one
	held := d.x.paces.Get(d.job.Ref()).Entities == 0
	defer func() {
		if !held || settle == nil {
			p.turn.Release(1)
		}
	}()
	job := d.job.Ref()
	expected := estimate.Share(budget, usageOf(d, float64(n), float64(n)*d.x.paces.Writes(job, d.planner.Mode.Writes()),
		float64(n)*d.x.paces.Compared(job)), d.x.Prices)
	ahead := 0.0
	// each page of a delivery has the next one read, and what the last one has read is read again
	// by somebody
	if !d.ahead {
		ahead = estimate.Share(budget, billing.Usage{Reads: int64(2 * n)}, d.x.Prices)
	}
	p.renew(d.job.Allowance)
	if need := expected + ahead - p.left; need > 0 {
		around := estimate.Share(budget, aroundPages(d.job.PageSize, d.job.AtOnce()), d.x.Prices)
		got, allowance, err := takeOut(ctx, d.x, d.job, need, around, budget)
		if err != nil || got == 0 {
			return nil, stopped, err
		}
		p.renew(allowance)
		p.left += got
	}
	p.left -= expected + ahead
	d.ahead, d.turn.used = true, nil
	return sync.OnceFunc(func() {
		if !held {
			_ = p.turn.Acquire(context.WithoutCancel(ctx), 1)
		}
		defer p.turn.Release(1)
		if d.turn.used == nil {
			return // it was not committed, and may have cost as much
		}
		p.left += expected - estimate.Share(budget, *d.turn.used, d.x.Prices)
	}), ours, nil
}

// renew has the purse begin with an allowance of its job, if that is a new one.
func (p *purse) renew(allowance int64) {
	if allowance > p.allowance {
		p.allowance, p.left = allowance, 0
	}
}

// takeOut takes a share out of a job's budget, for some pages of each task, and returns of which
// allowance that is. If less is left than is needed it pauses the job, and returns 0.
func takeOut(
	ctx context.Context, x *Executor, job *record.Job, need, around float64, budget record.Budget,
) (got float64, allowance int64, err error) {
	j, err := x.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (changed bool, err error) {
		got = record.Spend(j, around, need, need*float64(max(1, j.AtOnce())))
		return got > 0, nil
	})
	if err != nil {
		return 0, 0, err
	}
	if got > 0 {
		return got, j.Allowance, nil
	}
	_, err = x.Change(ctx, job.Ref(), "its budget is spent", func(j *record.Job) (changed bool, err error) {
		return record.PauseByBudget(j, around, need, budget), nil
	})
	return 0, 0, err
}

// giveBackTime is how long a process tries to give back what it has not spent.
const giveBackTime = 20 * time.Second

// takeAll takes out what is left, unless somebody else is about to.
func (p *purse) takeAll() (left float64, allowance int64) {
	if !p.turn.TryAcquire(1) {
		return 0, 0
	}
	defer p.turn.Release(1)
	if p.left > 0 {
		left, p.left = p.left, 0
	}
	return left, p.allowance
}

// giveBack gives what this process has not spent of an allowance of a job back to it. If the answer
// to that is lost it is not done again: what was given back might have been spent since.
func giveBack(ctx context.Context, x *Executor, job record.Ref, left float64, allowance int64) {
	if left == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	err := store.ChangeOnce(ctx, x.Store, job, func(j *record.Job) (changed bool) {
		return record.GiveBack(j, allowance, left)
	})
	if err != nil && !errors.Is(err, record.ErrNoSuchJob) {
		x.Log.LogAttrs(ctx, slog.LevelWarn, "what is left of a job's budget in this process counts as spent",
			slog.String("job", job.ID), slog.Any("error", err))
	}
}

// giveBackIdle is giveBack for a job whose last delivery here has ended, if there may be no other
// one: it does not run any more, or runs in another queue.
func giveBackIdle(ctx context.Context, x *Executor, job record.Ref, r *cachedJob) {
	if !r.turn.TryAcquire(1) {
		return
	}
	known := r.record
	r.turn.Release(1)
	if known != nil && (known.State != record.Running || known.Queue.Is(x.Queue.Name()) != nil) {
		left, allowance := r.purse.takeAll()
		giveBack(ctx, x, job, left, allowance)
	}
}

// GiveBack gives back what this process has taken out of the budgets of jobs and not spent, when it
// has drained.
func GiveBack(ctx context.Context, x *Executor) {
	var group errgroup.Group
	group.SetLimit(source.Parallel)
	for job, r := range x.cache.idle() {
		if left, allowance := r.purse.takeAll(); left > 0 {
			group.Go(func() error {
				giveBack(ctx, x, job, left, allowance)
				return nil
			})
		}
	}
	_ = group.Wait()
}
