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

// Findings are facts about the queue and the database that a job's start needs.
type Findings struct {
	Concurrent int         // number of tasks that the queue delivers at the same time, see [Concurrency]
	Existing   *record.Job // the job with the ID; nil: it does not exist, or FindOut did not look for it

	masks, times                             bool // results of Source.HonoursMasks and Source.Probe
	existingFailed, masksFailed, timesFailed error
}

// FindOut reads the facts about the queue and the database that a job's start needs. Its calls run
// concurrently, so it takes as long as the slowest of them. It reads the job with the ID only if
// mayExist is set. The parameter allowEmpty is for Source.Probe.
//
// It returns an error only if the queue can't be read. Errors of the other calls are in the
// Findings, because a repeated start may not need their results.
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

// Database sets the fields of a new job's record that depend on the database. If these facts could
// not be read, it returns the error. Start does not call Database for a job that exists: a repeated
// start must work even if the database no longer accepts the query.
func (f Findings) Database(job *record.Job) error {
	job.Masks, job.Times = f.masks, f.times
	return cmp.Or(f.existingFailed, f.masksFailed, f.timesFailed)
}

// Concurrency returns the number of tasks that a queue delivers at the same time. If this process
// may not read the queue's settings, it returns 0.
func Concurrency(ctx context.Context, queue *tasks.Queue) (int, error) {
	n, err := queue.MaxConcurrent(ctx)
	if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unimplemented {
		return 0, nil
	}
	return n, err
}
