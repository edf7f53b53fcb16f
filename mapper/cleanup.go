package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
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
// the default. The job has to have ended; if it failed or was aborted, for as long as
// the queue's Deadline, as pages may be under way until then. It keeps its status, and
// can't be resumed, retried or verified any more. A second CleanUp can clean up more.
func (j *Job) CleanUp(ctx context.Context, o *CleanUpOptions) error {
	var opts CleanUpOptions
	if o != nil {
		opts = *o
	}
	if err := j.engine.cleanUp(ctx, j.ID, opts); err != nil {
		return fmt.Errorf("mapper: clean up %s: %w", j.ID, err)
	}
	return nil
}

func (e *Engine) cleanUp(ctx context.Context, id string, o CleanUpOptions) error {
	if o.Expire < 0 {
		return fmt.Errorf("%w: CleanUpOptions.Expire is %v", ErrArguments, o.Expire)
	}
	o.Failures = o.Failures || o.Job
	encoded, err := json.Marshal(o)
	if err != nil {
		return err
	}
	job, err := e.loadJob(ctx, id)
	if err != nil {
		return err
	}
	if s := State(job.State); s == Failed || s == Aborted {
		if wait := time.Until(job.Ended.Add(e.queue.Deadline())); wait > 0 {
			return fmt.Errorf("%w: pages may still be under way, try again in %v", ErrState, wait.Round(time.Second))
		}
	}
	var sum totals // of a job that has none: its records are about to go
	folded := State(job.State).Ended() && len(job.Totals) == 0
	if folded {
		if sum, err = e.fold(ctx, id); err != nil {
			return err
		}
	}
	epoch := job.Epoch
	job, err = e.alter(ctx, id, func(r *jobRecord) (err error) {
		switch {
		case !State(r.State).Ended():
			return fmt.Errorf("%w: it is %s, and has to end first", ErrState, r.State)
		case r.Cleaning != "" && r.Cleaning != string(encoded):
			return fmt.Errorf("%w: it is being cleaned up in another way, which takes until the sweep after the last record", ErrState)
		case folded && r.Epoch != epoch:
			return fmt.Errorf("%w: it has changed meanwhile, try again", ErrState)
		}
		if len(r.Totals) == 0 {
			r.Totals, err = json.Marshal(sum)
		}
		if r.Cleaning == "" {
			r.Cleaning, r.Cleaned = string(encoded), true
			r.Epoch++
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := e.enqueueSweep(ctx, job, time.Now()); err != nil {
		return err
	}
	return e.enqueueCleanup(ctx, job)
}

const (
	cleanupPath = "cleanup"

	// cleanupRanges is how many records one task cleans up, and cleanupBatch how many
	// one commit: with 10 KiB a record the 10 MiB of a commit are far.
	cleanupRanges = 5000
	cleanupBatch  = 100
)

// enqueueCleanup enqueues the tasks that begin to clean up, each with a slice of the
// IDs. A sweep does it again under the names of its tick.
func (e *Engine) enqueueCleanup(ctx context.Context, job *jobRecord) error {
	tick, _ := job.nextTick(time.Now())
	for i := range int64(slicesOfIDs) {
		if err := e.enqueue(ctx, job, cleanupPath, jobTask{Tick: tick*slicesOfIDs + i}, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

// sweepCleanup runs the sweep of a job that is being cleaned up. If it finds nothing
// left to do, that was it.
func (e *Engine) sweepCleanup(ctx context.Context, job *jobRecord, now time.Time) error {
	if err := e.enqueueSweep(ctx, job, now); err != nil {
		return err
	}
	_, n, err := e.cleanRecords(ctx, job, "", "")
	switch {
	case err != nil:
		return err
	case n == 0:
		return e.endCleanup(ctx, job)
	case n == cleanupRanges:
		return e.enqueueCleanup(ctx, job)
	}
	return nil
}

// runCleanup cleans up some records of a slice.
func (e *Engine) runCleanup(ctx context.Context, job *jobRecord, t jobTask) error {
	if job.Cleaning == "" || job.Epoch != t.Epoch {
		return nil
	}
	from, to := sliceOfIDs(t.Tick % slicesOfIDs)
	last, n, err := e.cleanRecords(ctx, job, max(from, t.After), to)
	if err != nil || n < cleanupRanges {
		return err
	}
	t.After = last
	return e.enqueue(ctx, job, cleanupPath, t, time.Time{})
}

// cleanRecords cleans up the first records of a stretch of IDs, and returns the last
// one and how many there were.
func (e *Engine) cleanRecords(ctx context.Context, job *jobRecord, from, to string) (last string, n int, err error) {
	o, err := job.cleanUp()
	if err != nil {
		return "", 0, err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(sweepParallel)
	var batch []*rangeRecord
	flush := func() {
		if len(batch) > 0 {
			all := batch
			group.Go(func() error { return e.cleanBatch(gctx, all, o) })
		}
		batch = nil
	}
	errFull := errors.New("enough")
	err = e.each(ctx, records(job.ID, from, to), func(r *rangeRecord) error {
		if r.Failed != "" && !o.Failures || o.Expire > 0 && !r.Expires.IsZero() {
			return nil
		}
		if batch = append(batch, r); len(batch) == cleanupBatch {
			flush()
		}
		if last, n = r.ID, n+1; n == cleanupRanges {
			return errFull
		}
		return nil
	})
	flush()
	if errors.Is(err, errFull) {
		err = nil
	}
	if err := errors.Join(err, group.Wait()); err != nil {
		return "", 0, fmt.Errorf("clean up job %s: %w", job.ID, err)
	}
	return last, n, nil
}

func (e *Engine) cleanBatch(ctx context.Context, batch []*rangeRecord, o CleanUpOptions) error {
	keys := make([]*datastore.Key, len(batch))
	for i, r := range batch {
		keys[i] = r.key()
		r.Expires = time.Now().Add(o.Expire).UTC().Truncate(time.Microsecond)
		r.Samples = nil // of a range that nobody will split
	}
	if o.Expire == 0 {
		return e.client.DeleteMulti(ctx, keys)
	}
	_, err := e.client.PutMulti(ctx, keys, batch)
	return err
}

// endCleanup ends the clean-up, and the job's own record if that is to go.
func (e *Engine) endCleanup(ctx context.Context, job *jobRecord) error {
	o, err := job.cleanUp()
	if err != nil {
		return err
	}
	return e.transact(ctx, func(tx *datastore.Transaction) error {
		j := &jobRecord{ID: job.ID}
		if err := recordError(tx.Get(jobKey(job.ID), j)); err != nil {
			return err
		}
		if j.Epoch != job.Epoch || j.incarnation() != job.incarnation() {
			return errNothing
		}
		if o.Job && o.Expire == 0 {
			return tx.Delete(jobKey(job.ID))
		}
		j.Cleaning = ""
		if o.Job {
			j.Expires = time.Now().Add(o.Expire).UTC().Truncate(time.Microsecond)
		}
		_, err := tx.Mutate(j.update())
		return err
	})
}

func (j *jobRecord) cleanUp() (o CleanUpOptions, err error) {
	if err = json.Unmarshal([]byte(j.Cleaning), &o); err != nil {
		err = fmt.Errorf("job %s: what is to be cleaned up: %w", j.ID, err)
	}
	return o, err
}
