package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

const (
	// Limits of the time between two reads of a job whose end a caller awaits. The time is a tenth
	// of the wait so far.
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
	patience     = time.Minute // how long reads may fail before Await returns an error
	fewFailures  = 5           // number of consecutive errors that Await always accepts, however long they last
	lookEvery    = time.Minute // how often Await asks the queue whether it can deliver the job's tasks
)

// Await waits until a job has ended, or one of its limits has paused it. Then it calls then. It
// reads the job's record when this process changes the job's state, and otherwise after a tenth of
// the time waited so far. Once a minute it asks the queue whether it can deliver the job's tasks.
// If not, it logs the reason.
//
// Await ignores temporary errors, also of then, unless several consecutive ones have lasted for
// more than a minute.
func (js *Jobs) Await(ctx context.Context, ref record.Ref, then func(ended record.Ref) error) error {
	begun := time.Now()
	w := wait{js: js, ref: ref, then: then, asked: begun}
	for {
		changed, stop := js.Observer.Awaits(ref.ID)
		if over, err := w.look(ctx); over {
			stop()
			return err
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(min(max(time.Since(begun)/10, firstPause), longestPause)):
		}
		if stop(); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// A wait is the state of a call of Await.
type wait struct {
	js   *Jobs
	ref  record.Ref
	then func(ended record.Ref) error

	asked   time.Time // when the queue was last asked
	failed  int       // number of consecutive failed reads
	failing time.Time // when the first of these failed
}

// look reads the job's record, and reports whether the wait is over.
func (w *wait) look(ctx context.Context) (over bool, err error) {
	job, err := w.js.Store.LoadJob(ctx, w.ref)
	if err == nil {
		w.ref = job.Ref() // another job that takes the ID is not the one to wait for
		if job.Over() || job.State == record.Paused && (job.Limited || job.OverBudget) {
			if err = w.then(w.ref); err == nil {
				return true, nil
			}
		}
	}
	switch {
	case err == nil:
		w.failed = 0
		if job.State == record.Running && time.Since(w.asked) > lookEvery {
			w.asked = time.Now()
			w.js.Look(ctx, job)
		}
	case errors.Is(err, record.ErrNoSuchJob), fault.Refused(err):
		return true, err
	// time alone is not enough: the first read may have taken long, or this process may have been
	// suspended
	default:
		if w.failed++; w.failed == 1 {
			w.failing = time.Now()
		}
		return w.failed >= fewFailures && time.Since(w.failing) > patience, err
	}
	return false, nil
}
