package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
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
	if err := j.engine.cleanUp(ctx, j.ref(), opts); err != nil {
		return fmt.Errorf("mapper: clean up %s: %w", j.ID, err)
	}
	return nil
}

func (e *Engine) cleanUp(ctx context.Context, ref record.Ref, o CleanUpOptions) error {
	if o.Expire < 0 {
		return fmt.Errorf("%w: CleanUpOptions.Expire is %v", ErrArguments, o.Expire)
	}
	o.Failures = o.Failures || o.Job
	encoded, err := json.Marshal(o)
	if err != nil {
		return err
	}
	job, err := e.store().UpdateJob(ctx, ref, func(r *record.Job) error {
		switch {
		case !State(r.State).Ended():
			return fmt.Errorf("%w: it is %s, and has to end first", ErrState, r.State)
		case r.Cleaning == string(encoded):
			return store.ErrNothing
		case r.Cleaning != "":
			return fmt.Errorf("%w: it is being cleaned up in another way, which takes until the sweep after the last record", ErrState)
		}
		r.Cleaning, r.Cleaned = string(encoded), true
		r.Epoch++
		return nil
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

// A clean-up has a task for each slice of the IDs, and before them one that adds up the records of
// a job that has no totals yet. They are numbered by the tick at which they are enqueued, and by
// what they are for: that of a slice by the slice, and the other one by addUp.
const addUp = store.SlicesOfIDs

// enqueueCleanup enqueues the tasks that begin to clean up. A sweep does it again under the names
// of its tick.
func (e *Engine) enqueueCleanup(ctx context.Context, job *record.Job) error {
	first, last := int64(0), int64(store.SlicesOfIDs-1)
	if len(job.Totals) == 0 {
		first, last = addUp, addUp
	}
	tick, _ := nextTick(job, time.Now())
	for i := first; i <= last; i++ {
		if err := e.enqueue(ctx, job, cleanupPath, body.Job{Tick: tick*(addUp+1) + i}, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

// sweepCleanup runs the sweep of a job that is being cleaned up. If it finds nothing
// left to do, that was it.
func (e *Engine) sweepCleanup(ctx context.Context, job *record.Job, now time.Time) error {
	if err := e.enqueueSweep(ctx, job, now); err != nil {
		return err
	}
	if len(job.Totals) == 0 {
		return e.enqueueCleanup(ctx, job)
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

// runCleanup runs a task of a clean-up.
func (e *Engine) runCleanup(ctx context.Context, job *record.Job, t body.Job) error {
	if job.Cleaning == "" || job.Epoch != t.Epoch {
		return nil
	}
	i := t.Tick % (addUp + 1)
	if i == addUp {
		return e.addUpForCleanup(ctx, job, t)
	}
	if len(job.Totals) == 0 {
		return fmt.Errorf("clean up job %s: its records were not added up", job.ID)
	}
	from, to := store.SliceOfIDs(i)
	last, n, err := e.cleanRecords(ctx, job, max(from, t.After), to)
	if err != nil || n < cleanupRanges {
		return err
	}
	t.After = last
	return e.enqueue(ctx, job, cleanupPath, t, time.Time{})
}

// addUpForCleanup adds up the records of a job that failed or was aborted, before they go. Pages
// may still be under way then, in processes that have stood still for long: first it takes every
// open range away from them. As ranges appear only in the commit of one that is open, none is left
// behind that could change when none is open.
func (e *Engine) addUpForCleanup(ctx context.Context, job *record.Job, t body.Job) error {
	for left := cleanupRanges; ; left -= sweepRanges {
		open, err := e.store().FirstMarked(ctx, "open", job.Ref(), "", sweepRanges)
		if err != nil {
			return fmt.Errorf("clean up job %s: look for open ranges: %w", job.ID, err)
		}
		if len(open) == 0 {
			break
		}
		if left <= 0 {
			t.After = open[0].ID // which only makes another name
			return e.enqueue(ctx, job, cleanupPath, t, time.Time{})
		}
		group, gctx := errgroup.WithContext(ctx)
		group.SetLimit(sweepParallel)
		for _, r := range open {
			group.Go(func() error { return e.abandon(gctx, r.Key()) })
		}
		if err := group.Wait(); err != nil {
			return fmt.Errorf("clean up job %s: %w", job.ID, err)
		}
	}
	l, err := e.store().Fold(ctx, job)
	if err != nil {
		return err
	}
	epoch := job.Epoch
	job, err = e.store().UpdateJob(ctx, job.Ref(), func(j *record.Job) (err error) {
		if j.Epoch != epoch || len(j.Totals) > 0 {
			return store.ErrNothing
		}
		j.Totals, err = json.Marshal(l.Totals)
		return err
	})
	if err != nil || job.Epoch != epoch || job.Cleaning == "" {
		return err
	}
	return e.enqueueCleanup(ctx, job)
}

// abandon takes a pending range away from its task, for good.
func (e *Engine) abandon(ctx context.Context, key *datastore.Key) error {
	return e.store().Transact(ctx, func(tx *datastore.Transaction) error {
		r := new(record.Range)
		err := property.IgnoreUndeclared(tx.Get(key, r))
		if errors.Is(err, datastore.ErrNoSuchEntity) || err == nil && r.State != record.Pending {
			return store.ErrNothing
		}
		if err != nil {
			return err
		}
		r.State, r.Open = record.Abandoned, ""
		return store.Write(tx, r.Update())
	})
}

// cleanRecords cleans up the first records of a stretch of IDs, and returns the last
// one and how many there were.
func (e *Engine) cleanRecords(ctx context.Context, job *record.Job, from, to string) (last string, n int, err error) {
	o, err := cleanUpOf(job)
	if err != nil {
		return "", 0, err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(sweepParallel)
	var batch []*record.Range
	flush := func() {
		if len(batch) > 0 {
			all := batch
			group.Go(func() error { return e.cleanBatch(gctx, all, o) })
		}
		batch = nil
	}
	errFull := errors.New("enough")
	err = e.store().Each(ctx, store.Records(job.Ref(), from, to), func(r *record.Range) error {
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

// cleanBatch cleans up some records. Those to expire are changed in a transaction, which leaves out
// those that somebody else has deleted meanwhile.
func (e *Engine) cleanBatch(ctx context.Context, batch []*record.Range, o CleanUpOptions) error {
	keys := make([]*datastore.Key, len(batch))
	for i, r := range batch {
		keys[i] = r.Key()
	}
	if o.Expire == 0 {
		return e.client.DeleteMulti(ctx, keys)
	}
	expires := time.Now().Add(o.Expire).UTC().Truncate(time.Microsecond)
	return e.store().Transact(ctx, func(tx *datastore.Transaction) error {
		all, dst := make([]record.Range, len(keys)), make([]any, len(keys))
		for i := range all {
			dst[i] = &all[i]
		}
		missing, err := source.Lookup(tx.GetMulti, keys, dst)
		if err != nil {
			return err
		}
		for i := range all {
			if r := &all[i]; !missing[i] && r.Expires.IsZero() {
				r.Expires, r.Samples = expires, nil // nobody will split it
				if err := store.Write(tx, r.Update()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// endCleanup ends the clean-up, and the job's own record if that is to go.
func (e *Engine) endCleanup(ctx context.Context, job *record.Job) error {
	return e.store().Transact(ctx, func(tx *datastore.Transaction) error {
		j, err := store.GetJob(tx, job.Ref())
		if err != nil {
			return err
		}
		if j.Epoch != job.Epoch || j.Cleaning == "" {
			return store.ErrNothing
		}
		o, err := cleanUpOf(j)
		if err != nil {
			return err
		}
		if o.Job && o.Expire == 0 {
			return tx.Delete(record.JobKey(j.ID))
		}
		j.Cleaning = ""
		if o.Job {
			j.Expires = time.Now().Add(o.Expire).UTC().Truncate(time.Microsecond)
		}
		_, err = tx.Mutate(j.Update())
		return err
	})
}

// cleanUpOf returns how the records of a job are being cleaned up.
func cleanUpOf(j *record.Job) (o CleanUpOptions, err error) {
	if err = json.Unmarshal([]byte(j.Cleaning), &o); err != nil {
		err = fmt.Errorf("job %s: what is to be cleaned up: %w", j.ID, err)
	}
	return o, err
}
