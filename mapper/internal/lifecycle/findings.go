package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/tasks"
)

// Findings are the facts about the queue and the database that the start of a job needs.
type Findings struct {
	Concurrent int         // how many tasks the queue delivers at once, see [Concurrency]
	Existing   *record.Job // the job that has the ID; nil: there is none, or it was not looked for

	masks, times                             bool // results of Source.HonoursMasks and Source.Probe
	existingFailed, masksFailed, timesFailed error
}

// FindOut reads the facts about the queue and the database that the start of a job needs. Its calls
// run concurrently, so it takes as long as the slowest one.
//
// It returns an error only for the queue. Errors of the other calls are in the Findings, because a
// repeated start may not need them.
func (js *Jobs) FindOut(
	ctx context.Context, src source.Source, q query.Query, id string, mayExist, allowEmpty bool,
) (found Findings, err error) {
	var group sync.WaitGroup
	group.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, source.Patience)
		defer cancel()
		found.Concurrent, err = Concurrency(ctx, js.Queue)
	})
	group.Go(func() {
		found.masksFailed = source.Answered(ctx, func(ctx context.Context) (err error) {
			found.masks, err = src.HonoursMasks(ctx)
			return err
		})
	})
	group.Go(func() { found.times, found.timesFailed = src.Probe(ctx, q, allowEmpty) })
	if mayExist {
		group.Go(func() {
			job, err := js.Store.LoadJob(ctx, record.Ref{ID: id})
			switch {
			case err == nil:
				found.Existing = job
			case !errors.Is(err, record.ErrNoSuchJob):
				found.existingFailed = err
			}
		})
	}
	group.Wait()
	return found, err
}

// Database sets what the record of a new job says about the database, or returns the error of
// finding it out. It is not called if the job exists: such a start must work even if the database
// would no longer accept the query.
func (f Findings) Database(job *record.Job) error {
	job.Masks, job.Times = f.masks, f.times
	return cmp.Or(f.existingFailed, f.masksFailed, f.timesFailed)
}

// Concurrency returns how many tasks a queue delivers at the same time. It returns 0 if this
// process may not read the queue's settings.
func Concurrency(ctx context.Context, queue *tasks.Queue) (int, error) {
	n, err := queue.MaxConcurrent(ctx)
	if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unimplemented {
		return 0, nil
	}
	return n, err
}
