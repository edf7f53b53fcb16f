package mapper

import (
	"context"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
)

// CleanUpOptions say what becomes of the records of a job that has ended.
type CleanUpOptions struct {
	// Failures has the records of failures cleaned up, too. By default they are kept,
	// for [Job.Failures].
	Failures bool `json:"failures,omitempty"`

	// Job has the job's own record cleaned up, too, and with it the failures. By
	// default it is kept: while it is there, a start under its ID returns this job, and
	// does not run the mapper again.
	Job bool `json:"job,omitempty"`

	// Expire, if it is not 0, has the records get the property "expires" in place of
	// being deleted: that much later than now, for time-to-live policies on the kinds
	// ScattermapRange and ScattermapJob.
	Expire time.Duration `json:"expire,omitempty"`
}

// CleanUp has the records of the job's ranges deleted, by tasks of its own; nil is
// the default. The job has to have ended. It keeps its status, and can't be resumed,
// retried or verified any more. The ranges of a job that failed or was aborted are taken away from
// pages that are still under way, which then have no effect. A second CleanUp can clean up more.
func (j *Job) CleanUp(ctx context.Context, o *CleanUpOptions) error {
	var opts CleanUpOptions
	if o != nil {
		opts = *o
	}
	if err := j.jobs().CleanUp(ctx, j.ref(), lifecycle.CleanUp(opts)); err != nil {
		return fmt.Errorf("mapper: clean up %s: %w", j.ID, err)
	}
	return nil
}
