package mapper

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
)

// complete ends a job if none of its ranges is open. The job was read before
// that look: if its epoch has changed since, ranges may have appeared that the
// look did not see, and the job goes on. Otherwise ranges appear only in the
// commit of their parent, which is open itself until then.
func (e *Engine) complete(ctx context.Context, job *jobRecord) error {
	open := datastore.NewQuery(rangeKind).FilterField("open", "=", job.ID).Limit(1)
	seen, err := e.readKeys(ctx, open, 1)
	if err != nil {
		return fmt.Errorf("look for open ranges of job %s: %w", job.ID, err)
	}
	if len(seen.keys) > 0 {
		return nil
	}
	sum, err := e.fold(ctx, job.ID)
	if err != nil {
		return err
	}
	return e.end(ctx, job, func(j *jobRecord) error {
		if j.Epoch != job.Epoch {
			return nil
		}
		j.State = string(Succeeded)
		if sum.Failures > 0 {
			j.State = string(SucceededWithFailures)
		}
		j.Totals, err = json.Marshal(sum)
		return err
	})
}

// fail ends a job for a reason. Its open ranges stay recorded as they are; their
// tasks find the job ended and leave them. It reports whether it was this call that
// ended it.
func (e *Engine) fail(ctx context.Context, job *jobRecord, reason error) (first bool, err error) {
	err = e.end(ctx, job, func(j *jobRecord) error {
		first = true
		j.State, j.Error = string(Failed), explain(reason)
		return nil
	})
	return first && err == nil, err
}

// end changes the record of a job that has not ended.
func (e *Engine) end(ctx context.Context, job *jobRecord, change func(*jobRecord) error) error {
	_, err := e.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		j := &jobRecord{ID: job.ID}
		if err := recordError(tx.Get(jobKey(job.ID), j)); err != nil {
			return err
		}
		if State(j.State).Ended() {
			return nil
		}
		j.Ended = time.Now().UTC().Truncate(time.Microsecond)
		if err := change(j); err != nil || j.State == string(Running) {
			return err
		}
		_, err := tx.Mutate(datastore.NewUpdate(jobKey(job.ID), j))
		return err
	}, datastore.MaxAttempts(transactionAttempts))
	if err != nil {
		return fmt.Errorf("end job %s: %w", job.ID, err)
	}
	return nil
}
