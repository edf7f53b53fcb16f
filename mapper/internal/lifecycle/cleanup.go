package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A CleanUp says which records of an ended job are deleted, and when. The fields are explained at
// mapper.CleanUpOptions. The job's record stores it as JSON.
type CleanUp struct {
	IncludeFailures bool          `json:"failures,omitempty"`
	IncludeJob      bool          `json:"job,omitempty"`
	ExpireAfter     time.Duration `json:"expire,omitempty"`
}

const (
	cleanupPath = "cleanup"

	// cleanupRanges is the number of records that one task cleans up, and cleanupBatch the number
	// in one commit. Most records have at most 10 KiB, and the few with many keys 160 KiB. So a
	// commit has far less than the allowed 10 MiB.
	cleanupRanges = 5000
	cleanupBatch  = 50
)

// addUpTask is the number of the clean-up task that adds up the records of a job without totals.
// The tasks that then delete the records have the numbers of their slices of IDs. A task's name has
// its number, and the time of the sweep that enqueued it.
const addUpTask = store.SlicesOfIDs

// enqueueCleanUp enqueues the first tasks of a clean-up. If they are lost, a sweep calls it again.
// Their names then contain a later tick, so the queue accepts them.
func (js *Jobs) enqueueCleanUp(ctx context.Context, job *record.Job) error {
	first, last := int64(0), int64(store.SlicesOfIDs-1)
	if len(job.Totals) == 0 {
		first, last = addUpTask, addUpTask
	}
	tick, _ := nextTick(job, time.Now())
	for i := first; i <= last; i++ {
		if err := js.enqueue(ctx, job, cleanupPath, body.Job{Tick: tick*(addUpTask+1) + i}, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

// sweepCleanUp is the sweep of a job that is being cleaned up. It enqueues the lost tasks of the
// clean-up. If no record remains to be cleaned up, it ends the clean-up.
func (js *Jobs) sweepCleanUp(ctx context.Context, job *record.Job, now time.Time) error {
	if err := js.enqueueSweep(ctx, job, now); err != nil {
		return err
	}
	if held, err := js.Store.HoldsBack(ctx, job); err != nil || held {
		return err // a later sweep continues
	}
	if len(job.Totals) == 0 {
		if d, err := js.draft(ctx, job); err != nil || now.Sub(d.Kept) < sweepEvery {
			return err // a task is adding up the records
		}
		return js.enqueueCleanUp(ctx, job)
	}
	_, n, err := js.cleanRecords(ctx, job, "", "")
	switch {
	case err != nil:
		return err
	case n == 0:
		// Records may remain, such as failures, for which an automatic clean-up is planned.
		if err := js.planRetention(ctx, job); err != nil {
			return err
		}
		return js.finishCleanUp(ctx, job)
	case n == cleanupRanges:
		return js.enqueueCleanUp(ctx, job)
	}
	return nil
}

// runCleanUp runs a task of a clean-up.
func (js *Jobs) runCleanUp(ctx context.Context, job *record.Job, t body.Job) error {
	if job.Cleaning == "" || job.Epoch != t.Epoch {
		return nil
	}
	if held, err := js.Store.HoldsBack(ctx, job); err != nil || held {
		return err // a later sweep continues
	}
	i := t.Tick % (addUpTask + 1)
	if i == addUpTask {
		return js.recordTotals(ctx, job, t)
	}
	if len(job.Totals) == 0 {
		return fmt.Errorf("clean up job %s: its records were not added up", job.ID)
	}
	from, to := store.SliceOfIDs(i)
	last, n, err := js.cleanRecords(ctx, job, max(from, t.After), to)
	if err != nil || n < cleanupRanges {
		return err
	}
	t.After = last
	return js.enqueue(ctx, job, cleanupPath, t, time.Time{})
}

// recordTotals adds up the records of a job that failed or was aborted, before they are deleted.
// First it abandons all open ranges, because a slow process may be about to commit a page. New
// ranges are created only in the commit of an open range. So afterwards, no record changes any
// more.
func (js *Jobs) recordTotals(ctx context.Context, job *record.Job, t body.Job) error {
	left, err := js.abandonOpen(ctx, job.Ref(), cleanupRanges)
	if err != nil {
		return fmt.Errorf("clean up job %s: %w", job.ID, err)
	}
	if left != "" {
		t.After = left // gives the next task another name
		return js.enqueue(ctx, job, cleanupPath, t, time.Time{})
	}
	epoch := job.Epoch
	untotalled := func(j *record.Job) bool { return j.Epoch == epoch && len(j.Totals) == 0 }
	l, err := js.addUp(ctx, job, cleanupPath, t, untotalled)
	if err != nil || l == nil {
		return err
	}
	job, err = js.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (changed bool, err error) {
		if !untotalled(j) {
			return false, nil
		}
		return true, l.RecordIn(j)
	})
	if err != nil || job.Epoch != epoch || job.Cleaning == "" {
		return err
	}
	return js.enqueueCleanUp(ctx, job)
}

// abandonOpen ends open ranges of an ended job without a result, see abandon. It does so for all of
// them if there are at most as many as the parameter most says, and otherwise for at least that
// many. It returns the ID of an open range that remains, or "" if none does.
func (js *Jobs) abandonOpen(ctx context.Context, job record.Ref, most int) (left string, err error) {
	for ; ; most -= sweepRanges {
		open, err := js.Store.FirstMarked(ctx, "open", job, "", sweepRanges)
		switch {
		case err != nil:
			return "", fmt.Errorf("look for open ranges: %w", err)
		case len(open) == 0:
			return "", nil
		case most <= 0:
			return open[0].ID, nil
		}
		group, gctx := errgroup.WithContext(ctx)
		group.SetLimit(source.Parallel)
		for _, r := range open {
			group.Go(func() error { return js.abandon(gctx, r.Key()) })
		}
		if err := group.Wait(); err != nil {
			return "", err
		}
	}
}

// abandon ends a pending range without a result, so that a late task can't commit its page. A
// damaged record may be open without being pending. From such a record, abandon only removes the
// property open, so that the next search does not find the record again.
func (js *Jobs) abandon(ctx context.Context, key *datastore.Key) error {
	_, err := js.Store.UpdateRange(ctx, key, func(r *record.Range) bool {
		if r.Open == "" {
			return false
		}
		if r.Open = ""; r.State == record.Pending {
			r.State = record.Abandoned
		}
		return true
	})
	return err
}

// cleanRecords cleans up the first records whose range IDs are in [from, to). It returns the ID of
// the last one, and the number of records.
func (js *Jobs) cleanRecords(ctx context.Context, job *record.Job, from, to string) (last string, n int, err error) {
	o, err := cleanUpOf(job)
	if err != nil {
		return "", 0, err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(source.Parallel)
	var batch []*record.Range
	flush := func() {
		if len(batch) > 0 {
			all := batch
			group.Go(func() error { return js.cleanBatch(gctx, all, o) })
		}
		batch = nil
	}
	errFull := errors.New("enough")
	err = js.Store.Each(ctx, store.Records(job.Ref(), from, to), func(r *record.Range) error {
		if r.Failed != "" && !o.IncludeFailures || o.ExpireAfter > 0 && !r.Expires.IsZero() {
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
	if err == nil && n < cleanupRanges && record.IsUndo(job.Mapper) {
		var batches int
		batches, err = js.cleanBatches(ctx, job, from, to, o)
		n += batches
	}
	if err := errors.Join(err, group.Wait()); err != nil {
		return "", 0, fmt.Errorf("clean up job %s: %w", job.ID, err)
	}
	return last, n, nil
}

// cleanBatches cleans up batches of an undo ([record.Batch]) whose names are in [from, to), and
// returns their number.
func (js *Jobs) cleanBatches(ctx context.Context, job *record.Job, from, to string, o CleanUp) (n int, err error) {
	expires := time.Now().Add(o.ExpireAfter).UTC().Truncate(time.Microsecond)
	var keys []*datastore.Key
	flush := func() (err error) {
		if o.ExpireAfter == 0 {
			err = js.Store.Delete(ctx, keys)
		} else {
			err = js.Store.ExpireBatches(ctx, keys, expires)
		}
		n, keys = n+len(keys), nil
		return err
	}
	err = js.Store.EachBatch(ctx, store.Batches(job.Ref(), from, to),
		func(key *datastore.Key, b *record.Batch) error {
			if o.ExpireAfter == 0 || b.Expires.IsZero() {
				keys = append(keys, key)
			}
			if len(keys) < cleanupBatch {
				return nil
			}
			return flush()
		})
	if err == nil && len(keys) > 0 {
		err = flush()
	}
	return n, err
}

// cleanBatch deletes some records. If the clean-up lets records expire instead, a transaction sets
// their expiry. It skips records that no longer exist.
func (js *Jobs) cleanBatch(ctx context.Context, batch []*record.Range, o CleanUp) error {
	keys := make([]*datastore.Key, len(batch))
	for i, r := range batch {
		keys[i] = r.Key()
	}
	if o.ExpireAfter == 0 {
		return js.Store.Delete(ctx, keys)
	}
	expires := time.Now().Add(o.ExpireAfter).UTC().Truncate(time.Microsecond)
	return js.Store.Transact(ctx, func(tx *datastore.Transaction) error {
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
				r.Expires, r.Samples = expires, nil // the samples are for splitting the range, which has ended
				if err := store.Write(tx, r.Update()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// finishCleanUp ends the clean-up. It also deletes the job's own record, if that was requested.
func (js *Jobs) finishCleanUp(ctx context.Context, job *record.Job) error {
	return js.Store.Transact(ctx, func(tx *datastore.Transaction) error {
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
		if err := store.EndDraft(tx, j); err != nil {
			return err
		}
		if o.IncludeJob && o.ExpireAfter == 0 {
			return tx.Delete(record.JobKey(j.ID))
		}
		j.Cleaning = ""
		if o.IncludeJob {
			j.Expires = time.Now().Add(o.ExpireAfter).UTC().Truncate(time.Microsecond)
		}
		_, err = tx.Mutate(j.Update())
		return err
	})
}

// cleanUpOf returns the options of a job's clean-up.
func cleanUpOf(j *record.Job) (o CleanUp, err error) {
	if err = json.Unmarshal([]byte(j.Cleaning), &o); err != nil {
		err = fmt.Errorf("job %s: the options of its clean-up can't be read: %w", j.ID, err)
	}
	return o, err
}
