package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Start has a new job begin, unless there is one with its ID: then that is started again, if its
// arguments are the same. Who has seen it passes it as existing. Start returns the job that there is.
func (js *Jobs) Start(ctx context.Context, created, existing *record.Job) (job *record.Job, err error) {
	if job = existing; job != nil {
		err = sameArguments(job, created)
	} else {
		job, err = js.create(ctx, created)
	}
	if err != nil || job.State != record.Running {
		return job, err
	}
	if job == created {
		err = js.EnqueueAgain(ctx, job, job.RootRange())
	} else {
		err = js.ensureTask(ctx, job, job.Root())
	}
	if err == nil {
		err = js.enqueueSweep(ctx, job, created.Created)
	}
	return job, err
}

// create writes a job and its root in one transaction, unless the job exists.
// It returns the job as it stands.
func (js *Jobs) create(ctx context.Context, job *record.Job) (*record.Job, error) {
	err := js.Store.Create(ctx, job)
	if err == nil {
		return job, nil
	}
	// It may exist, or the commit may have taken place though its answer was lost.
	existing, lookup := js.Store.LoadJob(ctx, record.Ref{ID: job.ID})
	switch {
	case errors.Is(lookup, record.ErrNoSuchJob):
		return nil, err
	case lookup != nil:
		return nil, errors.Join(err, lookup)
	}
	return existing, sameArguments(existing, job)
}

// ensureTask makes sure that a pending range has a task.
func (js *Jobs) ensureTask(ctx context.Context, job *record.Job, id string) error {
	r, err := js.Store.LoadRange(ctx, job.Ref(), id)
	if err != nil || r.State != record.Pending {
		return err
	}
	return js.EnqueueAgain(ctx, job, r)
}

// sameArguments says why a start with other arguments is not this job's.
func sameArguments(j, o *record.Job) error {
	switch {
	case j.Mapper != o.Mapper:
		return fmt.Errorf("%w: it runs the mapper %q", record.ErrOtherArguments, j.Mapper)
	case string(j.Query) != string(o.Query):
		return fmt.Errorf("%w: its query is %s", record.ErrOtherArguments, j.Query)
	case string(j.Params) != string(o.Params):
		return fmt.Errorf("%w: its params are different", record.ErrOtherArguments)
	}
	return nil
}
