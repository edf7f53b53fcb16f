package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/undo"
)

// UndoOptions are the settings of an undo ([Job.Undo]). Fields mean the same as in [StartOptions].
// An undo may overlap with all other jobs, and has no budget.
type UndoOptions struct {
	// ID is the ID of the undo's job. Defaults to "undo-" and the job's ID. If a job other than
	// this undo has the default ID, a suffix is added. A second Undo returns the same job as the
	// first one, unless that was aborted. With DryRun, ID defaults to a new random ID.
	ID string `json:"id,omitempty"`

	// DryRun makes the undo write nothing. Its counters say what it would do.
	DryRun bool `json:"dry_run,omitempty"`

	// Queue is the queue of the undo's job, as in StartOptions. Defaults to the queue of the job's
	// mapper.
	Queue string `json:"queue,omitempty"`

	// PageSize is how many pages of the job are undone in one commit at most. Defaults to 4,
	// because each page may have written many entities.
	PageSize int `json:"page_size,omitempty"`

	// ExpectedWorkers is the number of tasks that run at once, as in StartOptions.
	ExpectedWorkers int `json:"expected_workers,omitempty"`

	// Splitting says how the undo's ranges are cut. Defaults to adaptive.
	Splitting Splitting `json:"splitting,omitzero"`

	// Rate limits the speed of the undo. Defaults to no limit.
	Rate Rate `json:"rate,omitzero"`

	// Retries say how often, and when, a page is retried. Defaults to [DefaultUpdateAttempts].
	Retries RetryPolicy `json:"retries,omitzero"`

	// FailureLimit pauses the undo when more pages than this have failed. Defaults to [Unlimited],
	// because Datastore might drop the old states of entities during a pause.
	FailureLimit int `json:"failure_limit,omitempty"`

	// Retain is how long the undo's records are kept after its end. Defaults to
	// [EngineOptions.Retain].
	Retain time.Duration `json:"retain_ns,omitempty"`
}

// start converts the options into [StartOptions].
func (o *UndoOptions) start() StartOptions {
	if o == nil {
		return StartOptions{}
	}
	return StartOptions{ID: o.ID, DryRun: o.DryRun, Queue: o.Queue, PageSize: o.PageSize,
		ExpectedWorkers: o.ExpectedWorkers, Splitting: o.Splitting, Rate: o.Rate, Retries: o.Retries,
		FailureLimit: o.FailureLimit, Retain: o.Retain}
}

// startUndo starts the undo of a job, or its rehearsal.
func startUndo(ctx context.Context, j *Job, o *UndoOptions) (undone *Job, err error) {
	e := j.engine
	job, err := e.store().LoadJob(ctx, j.ref())
	if err != nil {
		return nil, err
	}
	def := e.mappers[job.Mapper]
	switch {
	case def == nil:
		return nil, fmt.Errorf("%w %q: have %s", ErrUnknownMapper, job.Mapper, e.names())
	case def.Mode != function.Update:
		if record.IsRehearsal(job.Mapper) { // a rehearsal runs the function of an Update
			return nil, fmt.Errorf("%w: it is a rehearsal, and has written nothing", ErrInvalidArgument)
		}
		return nil, fmt.Errorf("%w: its mapper %q is no Update, and what that did elsewhere is not known here",
			ErrInvalidArgument, job.Mapper)
	}
	opts := o.start()
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
	defer func() { err = setting.Renamed(err, "StartOptions.", "UndoOptions.") }()
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
			err = j.control(ctx).Undo(ctx, job, opts.ID) // the undo itself may run in another queue
		}
	}
	if err != nil {
		return nil, err
	}
	undone, err = s.run(ctx, nil)
	return undone, err
}

// mayUndo returns an error if the job can't be undone. The parameter id is the ID of the undo, or
// empty. If a job with that ID exists already, mayUndo returns nil, because the start then compares
// the two jobs.
func mayUndo(ctx context.Context, e *Engine, job *record.Job, id string) error {
	if id != "" {
		if _, err := e.store().LoadJob(ctx, record.Ref{ID: id}); !errors.Is(err, record.ErrNoSuchJob) {
			return err
		}
	}
	return job.MayBeUndone()
}

// isDerived reports whether the engine has made the mapper with this name from a user's mapper, as
// its rehearsal or undo.
func isDerived(name string) bool { return record.IsRehearsal(name) || undo.Is(name) }

// A NotUndone is an entity that an undo has not restored: see [Job.NotUndonePage].
type NotUndone struct {
	Key    *datastore.Key `json:"key"`  // nil for entities whose keys are not known; Reason says how many
	Path   string         `json:"path"` // the key for people, as in [Failure]
	Reason string         `json:"reason"`
}
