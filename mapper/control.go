package mapper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// ErrState says that a job is not in a state in which it can do what was asked.
var ErrState = errors.New("the job's state does not allow that")

// Pause has the job begin no more pages. Those under way come to their end. A
// paused job loses nothing, however long it is paused.
func (j *Job) Pause(ctx context.Context) error {
	_, err := j.engine.store().UpdateJob(ctx, j.ref(), func(r *record.Job) error {
		switch State(r.State) {
		case Paused:
			return store.ErrNothing
		case Running:
			r.State, r.Error = string(Paused), ""
		default:
			return fmt.Errorf("%w: it is %q", ErrState, r.State)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mapper: pause %s: %w", j.ID, err)
	}
	return nil
}

// Abort ends the job. Pages under way come to their end; what was not processed
// stays as it is. An aborted job can't be resumed.
func (j *Job) Abort(ctx context.Context) error {
	_, err := j.engine.store().UpdateJob(ctx, j.ref(), func(r *record.Job) error {
		switch State(r.State) {
		case Aborted:
			return store.ErrNothing
		case Running, Paused, Failed:
			if State(r.State) != Failed {
				r.Error = "" // which says what it waits for
			}
			r.State, r.Ended = string(Aborted), time.Now().UTC().Truncate(time.Microsecond)
		default:
			return fmt.Errorf("%w: it is %q", ErrState, r.State)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mapper: abort %s: %w", j.ID, err)
	}
	return nil
}

// Resume has a paused or failed job go on where it stopped: nothing that was done
// is repeated. A job that a failure limit has paused may have as many failures, or as
// great a share of what follows, again. In a job that failed, pages that fail as a
// whole record their failures from now on, up to the limits; and one whose counters can't be kept
// goes on without: see [Entity.Count]. All open ranges get new
// tasks, so it also revives a running job whose queue was purged, sooner than its next
// sweep would.
func (j *Job) Resume(ctx context.Context) error {
	failed, job, err := j.engine.failures(ctx, j.ref())
	if err != nil {
		return fmt.Errorf("mapper: resume %s: %w", j.ID, err)
	}
	record, err := j.engine.store().UpdateJob(ctx, job, func(r *record.Job) error {
		switch State(r.State) {
		case Running, Paused, Failed:
			if r.Cleaned || r.Cleaning != "" {
				return fmt.Errorf("%w: its records are cleaned up", ErrState)
			}
			if r.Limited && r.Limit > 0 {
				r.Limit = failed + r.LimitStep
			}
			r.GoOn(time.Now())
		default:
			return fmt.Errorf("%w: it is %q", ErrState, r.State)
		}
		return nil
	})
	if err == nil {
		err = j.engine.enqueueFullSweep(ctx, record)
	}
	if err == nil && record.Retrying {
		err = j.engine.enqueue(ctx, record, retryPath, body.Job{}, time.Time{})
	}
	if err != nil {
		return fmt.Errorf("mapper: resume %s: %w", j.ID, err)
	}
	return nil
}

// failures counts the failures of a job that a limit has paused. It returns which job that is.
func (e *Engine) failures(ctx context.Context, ref record.Ref) (n int64, _ record.Ref, err error) {
	job, err := e.store().LoadJob(ctx, ref)
	if err != nil {
		return 0, ref, err
	}
	if job.Limited {
		err = e.source().EachIn(ctx, query.Scan{Query: store.Marked("failed", job.Ref(), "")}, func(*keyspace.Position) bool {
			n++
			return true
		})
	}
	return n, job.Ref(), err
}
