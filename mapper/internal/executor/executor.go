package executor

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
	"github.com/scattermap/scattermap/tasks"
)

// An Executor runs the tasks of ranges in this process.
type Executor struct {
	*lifecycle.Jobs
	client *datastore.Client
	source source.Source

	paces pace.Book[record.Ref] // how fast the jobs of this process go
	cache jobCache
}

// New returns an executor for jobs whose records are in a client's database.
func New(client *datastore.Client, jobs *lifecycle.Jobs) *Executor {
	x := &Executor{Jobs: jobs, client: client, source: source.New(client, jobs.Log)}
	x.paces.InUse = x.cache.inUse
	x.cache.forget = func(job record.Ref, r *cachedJob) {
		if left, allowance := r.purse.takeAll(); left > 0 {
			go giveBack(context.Background(), x, job, left, allowance) // whoever needs the place does not wait for that
		}
	}
	return x
}

// pacer returns what knows how large pages may be.
func (x *Executor) pacer() planner.Pacer {
	return planner.Pacer{Paces: &x.paces, Wait: pace.WaitWithin(x.Queue.DispatchDeadline())}
}

// Deliver runs the task of one delivery.
func (x *Executor) Deliver(ctx context.Context, queued tasks.Delivery) error {
	t, err := body.ParseRange(queued.Body)
	if err != nil {
		return tasks.Drop(fmt.Errorf("the body is not a task of ours: %w", err))
	}
	return x.run(ctx, t, queued)
}

// load reads the job and the range of a task. It returns no delivery if there is nothing to do.
func (x *Executor) load(ctx context.Context, t body.Range, queued tasks.Delivery) (d *delivery, err error) {
	begunAt := time.Now()
	job, r := &record.Job{ID: t.Job}, new(record.Range)
	looking, found := wire.Reading(ctx)
	missing, err := source.Lookup(
		func(keys []*datastore.Key, dst any) error { return x.client.GetMulti(looking, keys, dst) },
		[]*datastore.Key{record.JobKey(t.Job), record.RangeKey(t.Ref(), t.Range)}, []any{job, r})
	if err != nil {
		return nil, fmt.Errorf("load range %s of job %s: %w", t.Range, t.Job, err)
	}
	if missing[0] || t.Ref().Is(job) != nil || missing[1] && job.Cleaned {
		return nil, nil // it was cleaned up
	}
	if takes, err := job.Queue.Takes(queued.Queue, x.Queue.Name()); !takes {
		return nil, err
	}
	ended := x.Telemetry.Range(ctx, job, r, queued, begunAt)
	defer func() {
		if d == nil {
			ended()
		}
	}()
	x.cache.note(job, begunAt)
	if missing[1] {
		return nil, tasks.Drop(fmt.Errorf("there is no range %s of a job %s", t.Range, t.Job))
	}
	if job.State != record.Running || r.State == record.Pending && r.Generation != t.Generation {
		return nil, nil
	}
	def := x.Mappers[job.Mapper]
	if def == nil {
		// Another build may have it: the queue tries again.
		return nil, showBuild(ctx, x.Jobs, job)
	}
	q, err := query.Of(job)
	if err != nil {
		return nil, err
	}
	strategy, err := job.Strategy()
	if err != nil {
		return nil, err
	}
	call, err := def.Prepare(job.Params, q.KeysOnly)
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", t.Job, err)
	}
	var callPage function.PageFunc
	if def.PreparePage != nil {
		if callPage, err = def.PreparePage(job.Params); err != nil {
			return nil, fmt.Errorf("job %s: %w", t.Job, err)
		}
	}
	var keys function.Keys
	if def.PrepareKeys != nil {
		if keys, err = def.PrepareKeys(job.Params, q.KeysOnly); err != nil {
			return nil, fmt.Errorf("job %s: %w", t.Job, err)
		}
	}
	x.paces.Expect(t.Ref(), r.EntitySize)
	if !job.Masks { // see source.HonoursMasks
		x.source.CantCount()
	}
	r.Version = found.Of(r.Key()).GetVersion()
	d = &delivery{
		claim: claim{client: x.client, store: x.Store, job: job, record: r, generation: t.Generation},
		planner: planner.Planner{Pacer: x.pacer(), Query: q, Source: x.source.Of(ctx, q), Mode: def.Mode,
			Strategy: strategy},
		x: x, call: call, keys: keys, callPage: callPage, begunAt: begunAt, ended: ended,
		turn: turn{queued: queued, redelivered: queued.RetryCount > 0 || r.Lost},
	}
	return d, nil
}
