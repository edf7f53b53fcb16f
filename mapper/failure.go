package mapper

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Failure is an entity that the function could not process.
type Failure struct {
	Key      *datastore.Key
	Error    string    // of the last attempt
	Attempts int       // that were made
	Time     time.Time // of the last one
}

// Failures returns some failures of the job, and where to go on: an empty cursor
// is the beginning, and the end. A page has up to 100 failures, and costs as many
// reads.
func (j *Job) Failures(ctx context.Context, cursor string) (failures []Failure, next string, err error) {
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil {
		return nil, "", fmt.Errorf("mapper: failures: %w", err)
	}
	after, ok := strings.CutPrefix(cursor, job.Incarnation)
	if cursor != "" && (!ok || !record.ValidRangeID(after)) {
		return nil, "", fmt.Errorf("mapper: failures of %s: %w: the cursor %.80q is not one of the job's Failures", j.ID, ErrArguments, cursor)
	}
	ranges, err := j.engine.store().FirstMarked(ctx, "failed", job.Ref(), after, store.FailurePage)
	if err != nil {
		return nil, "", fmt.Errorf("mapper: failures of %s: %w", j.ID, err)
	}
	for _, r := range ranges {
		failures = append(failures, Failure{Key: r.Start.Key, Error: r.Error, Attempts: int(r.Refusals), Time: r.Done})
	}
	if len(ranges) == store.FailurePage {
		next = job.Incarnation + ranges[store.FailurePage-1].ID
	}
	return failures, next, nil
}

// limitFailures pauses the job if too many entities have failed.
func (w *work) limitFailures(ctx context.Context) error {
	if w.failed == 0 {
		return nil
	}
	over, sum, err := w.overLimit(ctx)
	if err != nil || over == "" {
		return err
	}
	job, err := w.engine.store().UpdateJob(ctx, w.job.Ref(), func(j *record.Job) (bool, error) {
		return j.PauseByLimit(w.job.Epoch, over, &sum), nil
	})
	if err == nil {
		w.job = job
	}
	return err
}

// overLimit says which limit the job's failures are over, if any, and what the job
// has done so far, about, if that matters.
func (w *work) overLimit(ctx context.Context) (over string, sum record.Totals, err error) {
	if limit := int(w.job.Limit); limit > 0 && w.counts(limit/100/w.failed) {
		failed, err := w.engine.store().CountFailures(ctx, w.job.Ref(), limit+1)
		if err != nil {
			return "", sum, fmt.Errorf("count the failures of job %s: %w", w.job.ID, err)
		}
		if failed > int64(limit) {
			return fmt.Sprintf("more than %d entities have failed", limit), sum, nil
		}
	}
	if w.job.LimitShare < 1 {
		if sum, _, err = w.engine.store().SampleTotals(ctx, w.job); err != nil {
			return "", sum, err
		}
		const fewest = 10 // as many say nothing yet
		failed, tried := sum.Failures-w.job.Failures, sum.Failures+sum.Processed-w.job.Tried
		if failed > fewest && float64(failed) > w.job.LimitShare*float64(tried) {
			over = fmt.Sprintf("about %d of %d entities have failed", failed, tried)
		}
	}
	return over, sum, nil
}

// counts chooses one range of n, by its ID, which is a hash: so that counting up to
// a limit does not cost its square.
func (w *work) counts(n int) bool {
	hash, err := record.Hash(w.record.ID)
	return err != nil || hash%uint64(max(1, n)) == 0
}
