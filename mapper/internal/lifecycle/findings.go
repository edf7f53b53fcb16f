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

// Findings are what a job's start has to find out.
type Findings struct {
	Concurrent int         // see [Concurrency]
	Existing   *record.Job // nil: there is none with the ID, or none was asked for

	masks, times                             bool // see source.HonoursMasks and source.Probe
	existingFailed, masksFailed, timesFailed error
}

// FindOut finds out all at once what a job's start has to know of the queue and the database, so
// that it takes as long as the slowest of these calls. A start that is repeated, whose job may
// exist, needs only one of them. An error is that of the queue.
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
			found.masks, err = source.HonoursMasks(ctx, src)
			return err
		})
	})
	group.Go(func() { found.times, found.timesFailed = source.Probe(ctx, src, q, allowEmpty) })
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

// Database sets what a new job has to know of the database. If its job exists already, the caller
// may repeat its start when the database would not serve the query any more: this is for others.
func (f Findings) Database(job *record.Job) error {
	job.Masks, job.Times = f.masks, f.times
	return cmp.Or(f.existingFailed, f.masksFailed, f.timesFailed)
}

// Concurrency returns how many tasks a queue delivers at once, or 0 if nobody may know.
func Concurrency(ctx context.Context, queue *tasks.Queue) (int, error) {
	n, err := queue.MaxConcurrent(ctx)
	if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unimplemented {
		return 0, nil
	}
	return n, err
}
