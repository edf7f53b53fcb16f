package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// load reads the job and the range of a task. It returns nil if the delivery has no work: for
// example, if the job is stopped, or if the range has a later task.
func (x *Executor) load(ctx context.Context, t body.Range, queued tasks.Delivery) (d *delivery, err error) {
	begunAt := time.Now()
	job, r := &record.Job{ID: t.Job}, new(record.Range)
	stored, err := x.source.Stored(ctx)(
		[]*datastore.Key{record.JobKey(t.Job), record.RangeKey(t.Ref(), t.Range)}, job, r)
	if err != nil {
		return nil, fmt.Errorf("load range %s of job %s: %w", t.Range, t.Job, err)
	}
	lost := stored[1].Gone
	if t.Ref().Is(job) != nil || lost && job.Cleaned {
		return nil, nil // a clean-up has deleted the job's records
	}
	job.Version, r.Version = stored[0].Version, stored[1].Version
	if takes, err := job.Queue.Takes(queued.Queue, x.Queue.Name()); !takes {
		return nil, err
	}
	ended := x.Observer.Range(ctx, job, r, queued, begunAt)
	defer func() {
		if d == nil {
			ended()
		}
	}()
	x.cache.note(job, begunAt)
	if lost {
		return nil, tasks.Drop(fmt.Errorf("there is no range %s of a job %s", t.Range, t.Job))
	}
	if job.State != record.Running || r.State == record.Pending && r.Generation != t.Generation {
		return nil, nil
	}
	def := x.Mappers[job.Mapper]
	if def == nil {
		// The queue delivers the task again, perhaps to a process whose build has the mapper.
		return nil, x.showBuild(ctx, job)
	}
	p, err := x.planner(ctx, job, def)
	if err != nil {
		return nil, err
	}
	d = &delivery{
		x: x, job: job, record: r, generation: t.Generation, begunAt: begunAt, ended: ended, planner: p,
		state: currentRange{queued: queued, redelivered: queued.RetryCount > 0 || r.Lost,
			enqueued: r.Given}, // the start, or a sweep, enqueues the tasks of these children
	}
	if d.functions, err = def.Functions(job.Params, p.Query.KeysOnly); err != nil {
		return nil, fmt.Errorf("job %s: %w", t.Job, err)
	}
	x.paces.Expect(t.Ref(), r.EntitySize)
	if !job.Masks { // the database does not support property masks, see Source.HonoursMasks
		x.source.CantCount()
	}
	return d, nil
}

// showBuild writes into the job's status that this build does not have the job's mapper. Of many
// deliveries, only the first one writes it. showBuild returns the error with which the delivery
// must end, so that the queue delivers the task again.
func (x *Executor) showBuild(ctx context.Context, job *record.Job) error {
	missing := fmt.Errorf("job %s: %w %q", job.ID, function.ErrUnknownMapper, job.Mapper)
	return errors.Join(missing, x.ShowBuild(ctx, job, true))
}
