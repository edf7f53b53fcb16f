package lifecycle

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// EndSmall ends a job without a task, if it has few records and no open range. The caller has just
// ended a range. EndSmall reports whether the job has ended. If it has not, or if that is unknown,
// the caller goes on with Complete.
//
// The job's record must have been read before this call, and must have its version. Ranges appear
// only in the commit of an open range, or together with a change of the job's record. So if none is
// open, and the commit finds the record unchanged, there is no range that the query has missed.
func (js *Jobs) EndSmall(ctx context.Context, job *record.Job) (ended bool) {
	def := js.Mappers[job.Mapper]
	if !job.EndsAtOnce() || job.Queue.Is(js.Queue.Name()) != nil || def == nil || def.OnDone != nil ||
		def.Forget != nil {
		return false
	}
	place, err := js.Gate.Enter(ctx, false)
	if err != nil {
		return false
	}
	defer place.Leave()
	l, all, err := js.Store.FoldFew(ctx, job, cmp.Or(js.Portion.Records, portionRecords))
	if err != nil || !all || l.Pending > 0 || l.Err() != nil || l.Lost != nil {
		return false
	}
	next := *job
	if err := next.Succeed(l.Totals, time.Now()); err != nil {
		return false
	}
	err = js.Store.Replace(ctx, &next)
	switch status.Code(err) {
	case codes.Aborted, codes.FailedPrecondition, codes.NotFound: // somebody else has changed or ended it
		return false
	}
	return js.settle(ctx, step{job.State, &next}, "", err) == nil
}
