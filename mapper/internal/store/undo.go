package store

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// An undo reads the records of the job that it undoes, and a clean-up deletes them. Only one of the
// two may happen. So each transaction that starts one of them, or continues an undo, reads both
// jobs. UpdateJob and Create check this for every change of a job.

// keepUndo returns an error if a change of a job's record conflicts with an undo of this job. The
// parameter was is the record before the change, and job the record after it. The change must not
// start to delete records that the undo needs, and must not give the job a second undo.
func keepUndo(tx *datastore.Transaction, was, job *record.Job) error {
	cleans := was.Cleaning == "" && job.Cleaning != ""
	if cleans || job.Undo != was.Undo {
		undo, err := undoOf(tx.Get, was)
		switch {
		case err != nil:
			return err
		case undo == nil:
		case job.Undo == "" && job.Cleaned && !undo.NeedsUndone():
			// After a clean-up has deleted the records, no later undo can take the ended undo's
			// place.
		case cleans && undo.NeedsUndone():
			return fmt.Errorf("%w: job %s, which is %s, undoes it and needs its records: wait for the end of that "+
				"job, "+
				"or abort it", record.ErrState, undo.ID, undo.State)
		case !cleans && undo.State != record.Aborted:
			return fmt.Errorf("%w: job %s undoes it", record.ErrState, undo.ID)
		}
	}
	if was.Unfinished() || !job.Unfinished() {
		return nil
	}
	return goesOn(tx, job, was.State == record.Failed)
}

// undoOf returns the undo of a job that the job's record names. It returns nil if there is none,
// even if another job has the undo's ID now.
func undoOf(get func(*datastore.Key, any) error, job *record.Job) (*record.Job, error) {
	if job.Undo == "" {
		return nil, nil
	}
	undo := &record.Job{ID: job.Undo}
	_, err := found(get, record.JobKey(job.Undo), undo)
	if !record.Undoes(undo, job) {
		return nil, err
	}
	return undo, err
}

// goesOn returns an error if the job is an undo that must not start or continue, because records of
// the undone job are or may be deleted. The argument failed says that the undo has failed before. A
// failed undo may continue while a clean-up waits for it, see HoldsBack.
func goesOn(tx *datastore.Transaction, job *record.Job, failed bool) error {
	ref, takes := job.Undone()
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
	if err := undone.MayBeUndone(); err != nil {
		return fmt.Errorf("job %s, which it undoes: %w", ref.ID, err)
	}
	return nil
}

// HoldsBack reports whether a clean-up of a job must wait because the job's undo still needs the
// records. Newer builds refuse to start such a clean-up. So only a clean-up that an older build has
// started may have to wait.
func (st Store) HoldsBack(ctx context.Context, job *record.Job) (bool, error) {
	undo, err := undoOf(func(key *datastore.Key, dst any) error { return st.client.Get(ctx, key, dst) }, job)
	return undo != nil && undo.NeedsUndone(), err
}

// errIncomplete is the error of an undo that may have missed changes: records of the undone job
// were deleted before the undo read them.
var errIncomplete = errors.New("an older build cleaned up the records of the job that it undoes meanwhile: pages " +
	"whose records were gone are neither undone nor listed. Compare the entities; abort this job to let the clean-up " +
	"go on")

// Incomplete checks an undo that is about to succeed. It returns an error as why if the undo may
// have missed records of the undone job, and otherwise nil. It sees this in the undone job's
// record, which a clean-up marks before it deletes anything.
func Incomplete(tx *datastore.Transaction, job *record.Job) (why, err error) {
	ref, _ := job.Undone()
	if ref.ID == "" {
		return nil, nil
	}
	undone, err := GetJob(tx, ref)
	switch {
	case errors.Is(err, record.ErrNoSuchJob):
		return errIncomplete, nil
	case err == nil && undone.HasRecords() != nil:
		return errIncomplete, nil
	}
	return nil, err
}
