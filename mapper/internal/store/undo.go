package store

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// An undo reads the records of the job that it undoes, and a clean-up deletes them. So one of the
// two takes place: the transactions that begin either, or have an undo go on, read both jobs. That
// is so for whatever changes a job, as it is here that jobs are changed.

// keepUndo refuses a change of a job, from what it was, that takes records away from an undo, or
// has two undos of one job.
func keepUndo(tx *datastore.Transaction, was, job *record.Job) error {
	cleans := was.Cleaning == "" && job.Cleaning != ""
	if was.Undo != "" && (cleans || job.Undo != was.Undo) {
		undo, err := undoOf(tx.Get, was)
		switch {
		case err != nil:
			return err
		case undo == nil:
		case job.Undo == "" && job.Cleaned && !record.NeedsUndone(undo): // nobody can undo it again
		case cleans && record.NeedsUndone(undo):
			return fmt.Errorf("%w: job %s undoes it, which needs its records, and is %s: wait for its end, or abort it",
				record.ErrState, undo.ID, undo.State)
		case !cleans && undo.State != record.Aborted:
			return fmt.Errorf("%w: job %s undoes it", record.ErrState, undo.ID)
		}
	}
	if was.Unfinished() || !job.Unfinished() {
		return nil
	}
	return goesOn(tx, job, was.State == record.Failed)
}

// undoOf returns the undo that the record of a job names, if there is one. Another job may have its
// ID by now.
func undoOf(get func(*datastore.Key, any) error, job *record.Job) (*record.Job, error) {
	if job.Undo == "" {
		return nil, nil
	}
	undo := &record.Job{ID: job.Undo}
	if there, err := found(get, record.JobKey(job.Undo), undo); err != nil || !there || !record.Undoes(undo, job) {
		return nil, err
	}
	return undo, nil
}

// goesOn refuses that an undo begins, or goes on after it had ended, without the records of the job
// that it undoes. One that has failed may go on while a clean-up waits for it, see HoldsBack.
func goesOn(tx *datastore.Transaction, job *record.Job, failed bool) error {
	ref, takes := record.Undone(job)
	if ref.ID == "" {
		return nil
	}
	undone, err := GetJob(tx, ref)
	switch {
	case errors.Is(err, record.ErrNoSuchJob):
		return fmt.Errorf("%w: the job that it undoes is gone: %w", record.ErrState, err)
	case err != nil:
		return err
	case takes && undone.Undo != job.ID:
		return fmt.Errorf("%w: it is no longer the undo of job %s, whose record names %q", record.ErrState, ref.ID,
			undone.Undo)
	case failed && undone.Cleaning != "":
		return nil
	}
	if err := record.MayBeUndone(undone); err != nil {
		return fmt.Errorf("job %s, which it undoes: %w", ref.ID, err)
	}
	return nil
}

// HoldsBack reports whether a clean-up of a job has to wait, as the undo of the job needs the
// records. The transaction that begins a clean-up refuses it then; one of an older build does not.
func HoldsBack(ctx context.Context, st Store, job *record.Job) (bool, error) {
	undo, err := undoOf(func(key *datastore.Key, dst any) error { return st.client.Get(ctx, key, dst) }, job)
	return undo != nil && record.NeedsUndone(undo), err
}

// errIncomplete is why an undo fails that can't know whether all was undone.
var errIncomplete = errors.New("the records of the job that it undoes were cleaned up meanwhile, by an older build: " +
	"pages whose records were gone " +
	"are not undone, and not listed. Compare the entities; abort this job to let the clean-up go on")

// Incomplete returns why an undo that is about to end with success did not see all records of the
// job that it undoes. Whoever cleans up says so in that job's record before the first one is
// deleted.
func Incomplete(tx *datastore.Transaction, job *record.Job) (why, err error) {
	ref, _ := record.Undone(job)
	if ref.ID == "" {
		return nil, nil
	}
	undone, err := GetJob(tx, ref)
	switch {
	case errors.Is(err, record.ErrNoSuchJob):
		return errIncomplete, nil
	case err == nil && record.HasRecords(undone) != nil:
		return errIncomplete, nil
	}
	return nil, err
}
