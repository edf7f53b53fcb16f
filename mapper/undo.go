package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undo"
)

// startUndo starts the undo of a job.
func startUndo(ctx context.Context, j *Job, o *StartOptions) (undone *Job, err error) {
	e := engineOf(ctx, j)
	job, err := e.store().LoadJob(ctx, j.ref())
	if err != nil {
		return nil, err
	}
	def := e.mappers[job.Mapper]
	switch {
	case def == nil:
		return nil, fmt.Errorf("%w %q: have %s", ErrUnknownMapper, job.Mapper, e.names())
	case def.Mode != function.Update:
		return nil, fmt.Errorf("%w: its mapper %q is no Update, and what that did elsewhere is not known here",
			ErrInvalidArgument, job.Mapper)
	}
	opts := StartOptions{}
	if o != nil {
		opts = *o
	}
	params, err := function.EncodeParams(undo.Of(job))
	if err != nil {
		return nil, err
	}
	opts.FailureLimit = cmp.Or(opts.FailureLimit, -1) // what can't be undone is no reason to let the rest grow older
	if opts.PageSize = cmp.Or(opts.PageSize, undo.PageSize); opts.ID == "" && !opts.DryRun {
		if opts.ID, err = undo.ID(ctx, e.store(), job, params); err != nil {
			return nil, err
		}
	}
	if opts.Budget != (Budget{}) {
		return nil, fmt.Errorf("%w: an undo takes no budget", ErrInvalidArgument)
	}
	s, err := e.prepare(e.mappers[undo.Name(job.Mapper)], publicQuery(undo.Records(job)), params, &opts)
	if err != nil {
		return nil, err
	}
	ctx, ended := s.traced(ctx)
	defer func() { ended(err) }()
	if err = mayUndo(ctx, e, job, opts.ID); err != nil {
		return nil, err
	}
	if err = s.findOut(ctx); err != nil {
		return nil, err
	}
	if s.found.Existing == nil {
		if err = undo.Check(ctx, e.client, job); err == nil && !opts.DryRun {
			err = s.control.Undo(ctx, job, opts.ID)
		}
	}
	if err != nil {
		return nil, err
	}
	undone, err = s.run(ctx, nil)
	return undone, err
}

// mayUndo says why a job can't be undone by one of an ID. If there is that one it was started
// before, and is as any other job that is started again.
func mayUndo(ctx context.Context, e *Engine, job *record.Job, id string) error {
	if id != "" {
		if _, err := e.store().LoadJob(ctx, record.Ref{ID: id}); !errors.Is(err, record.ErrNoSuchJob) {
			return err
		}
	}
	return record.MayBeUndone(job)
}

// isDerived reports whether a mapper of that name is made from another one, of a user.
func isDerived(name string) bool { return function.IsRehearsal(name) || undo.Is(name) }

// A NotUndone is an entity that an undo has not restored.
type NotUndone struct {
	Key    *datastore.Key `json:"key"` // nil: Reason says how many more there are, whose keys are not known
	Reason string         `json:"reason"`
}
