package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

const (
	firstPause   = 50 * time.Millisecond // between two looks at a job that is waited for; it grows to
	longestPause = 2 * time.Second
	patience     = time.Minute // with errors
	fewFailures  = 5           // in a row are none, however long they take
	lookEvery    = time.Minute // at the queue
)

// Await waits until a job has ended, or a failure limit has paused it, and calls then. Now and then
// it asks the queue, and logs why it can't deliver the job's tasks. It goes on through errors, also
// of then, that pass within a minute: from the first one on, and with several after it.
func (js *Jobs) Await(ctx context.Context, ref record.Ref, then func(ended record.Ref) error) error {
	looked := time.Now()
	var failing time.Time // since when each read fails
	failed := 0           // in a row
	for pause := firstPause; ; pause = min(longestPause, pause*3/2) {
		job, err := js.Store.LoadJob(ctx, ref)
		if err == nil {
			ref = job.Ref() // another job that takes the ID is not the one to wait for
			if job.Over() || job.State == record.Paused && job.Limited {
				if err = then(ref); err == nil {
					return nil
				}
			}
		}
		switch {
		case err == nil:
			failed = 0
			if job.State == record.Running && time.Since(looked) > lookEvery {
				looked = time.Now()
				js.Look(ctx, job)
			}
		case errors.Is(err, record.ErrNoSuchJob), fault.Refused(err):
			return err
		default: // the first one may have taken long, or this process has stood still
			if failed++; failed == 1 {
				failing = time.Now()
			}
			if failed >= fewFailures && time.Since(failing) > patience {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
