package mapper

import (
	"context"
	"fmt"
)

// Retry has the job process its failures again, and nothing that is done: each gets
// as many attempts as at first. The job runs again until they are done, and what else
// was left, if it was paused or had failed; its finalizer takes effect again. A job
// that was aborted or cleaned up is refused with [ErrState].
func (j *Job) Retry(ctx context.Context) error {
	if err := j.jobs().Retry(ctx, j.ref()); err != nil {
		return fmt.Errorf("mapper: retry %s: %w", j.ID, err)
	}
	return nil
}
