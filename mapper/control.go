package mapper

import (
	"context"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// ErrState says that a job is not in a state in which it can do what was asked.
var ErrState = record.ErrState

// Pause has the job begin no more pages. Those under way come to their end. A
// paused job loses nothing, however long it is paused.
func (j *Job) Pause(ctx context.Context) error {
	if err := j.jobs().Pause(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: pause %s: %w", j.ID, err)
	}
	return nil
}

// Abort ends the job. Pages under way come to their end; what was not processed
// stays as it is. An aborted job can't be resumed.
func (j *Job) Abort(ctx context.Context) error {
	if err := j.jobs().Abort(ctx, j.ref()); err != nil {
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
	if err := j.jobs().Resume(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: resume %s: %w", j.ID, err)
	}
	return nil
}
