package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

const (
	firstPause   = 50 * time.Millisecond // between two reads of the job; it grows up to
	longestPause = 2 * time.Second
	patience     = time.Minute // with errors that repeat
	fewFailures  = 5           // this number of errors in a row is accepted, however long they take
	lookEvery    = time.Minute // at the queue
)

// Await waits until a job has ended, or a failure limit has paused it, and calls then. Once a
// minute it asks the queue whether it can deliver the job's tasks, and logs why not.
//
// Await retries errors, its own and the ones that then returns. It gives up if at least five in a
// row take more than a minute, and at once if the error can't pass.
func (js *Jobs) Await(ctx context.Context, ref record.Ref, then func(ended record.Ref) error) error {
	looked := time.Now()
	var failing time.Time // time of the first of these errors
	failed := 0           // number of errors in a row
	for pause := firstPause; ; pause = min(longestPause, pause*3/2) {
		job, err := js.Store.LoadJob(ctx, ref)
		if err == nil {
			ref = job.Ref() // not a later job with the ID
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
		default: // one error may have taken long, or this process may have stood still
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
