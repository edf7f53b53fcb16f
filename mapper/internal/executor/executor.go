package executor

import (
	"context"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// An Executor runs the tasks of ranges in this process.
type Executor struct {
	*lifecycle.Jobs
	client *datastore.Client
	source source.Source

	paces    pace.Book[record.Ref] // how fast this process works in each job: time and size per entity
	dispatch *pace.Dispatch        // measures how fast the queue delivers tasks
	cache    jobCache

	background *background
}

// New returns an executor for the jobs in the client's database.
func New(client *datastore.Client, jobs *lifecycle.Jobs) *Executor {
	x := &Executor{Jobs: jobs, client: client, source: source.New(client, jobs.Log),
		dispatch: pace.NewDispatch(time.Now()), background: new(background)}
	x.paces.InUse = x.cache.inUse
	x.cache.forget = func(job record.Ref, r *cachedJob) {
		left, allowance := r.purse.takeAll()
		// in the background, because a delivery waits for the place in the cache
		go x.giveBack(context.Background(), job, left, allowance)
	}
	return x
}

// Beside returns an executor for the jobs of another queue. Both executors share the limit for
// pages of background jobs.
func (x *Executor) Beside(jobs *lifecycle.Jobs) *Executor {
	other := New(x.client, jobs)
	other.background = x.background
	return other
}

// planner returns a planner for a job with the mapper def.
func (x *Executor) planner(ctx context.Context, job *record.Job, def *function.Definition) (planner.Planner, error) {
	q, err := query.Of(job)
	if err != nil {
		return planner.Planner{}, err
	}
	strategy, err := job.Strategy()
	return planner.Planner{Query: q, Source: x.source.Of(ctx, q), Mode: def.Mode, Strategy: strategy,
		Paces: &x.paces, Wait: pace.WaitWithin(x.Queue.DispatchDeadline())}, err
}
