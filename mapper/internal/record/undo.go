package record

import (
	"encoding/json"
	"fmt"
	"strings"
)

// UndoPrefix is the prefix of the names of mappers that undo jobs. Users' mappers can't have it.
const UndoPrefix = "undo:"

// IsUndo reports whether this is the name of a mapper that undoes a job, or that rehearses an undo.
func IsUndo(mapper string) bool { return strings.Contains(mapper, UndoPrefix) }

// Undone returns the job that j undoes, or whose undo j rehearses. The bool takes is true if j is a
// real undo, which changes entities. Then the record of the undone job has j's ID.
func (j *Job) Undone() (ref Ref, takes bool) {
	if !IsUndo(j.Mapper) {
		return Ref{}, false
	}
	var of struct{ Job, Incarnation string }
	if json.Unmarshal(j.Params, &of) != nil { // the undo's pages return this error
		return Ref{}, false
	}
	return Ref{of.Job, of.Incarnation}, strings.HasPrefix(j.Mapper, UndoPrefix)
}

// Undoes reports whether j is the undo whose ID is stored in the record of the job o.
func Undoes(j, o *Job) bool {
	ref, takes := j.Undone()
	return takes && j.ID == o.Undo && ref == o.Ref()
}

// NeedsUndone reports whether the undo j may still read the records of the job that it undoes. This
// is so if the undo runs, is paused, or has failed and can be resumed. After a clean-up, it can't
// be resumed.
func (j *Job) NeedsUndone() bool {
	return j.Unfinished() || j.State == Failed && j.HasRecords() == nil
}

// HasRecords returns an error if a clean-up has deleted records of a job's ranges, or will delete
// them.
func (j *Job) HasRecords() error {
	if j.Cleaned || j.Cleaning != "" {
		return j.CleanedUp()
	}
	return nil
}

// MayBeUndone returns an error if a job can't be undone because it has not ended, or its records
// were deleted.
func (j *Job) MayBeUndone() error {
	if !j.Over() {
		return fmt.Errorf("%w: it is %q: abort it first", ErrState, j.State)
	}
	return j.HasRecords()
}

// Undo stores in j the ID of the job that undoes j. It may replace the ID of an earlier undo that
// has ended, which store.UpdateJob checks. Undo returns false if j already has this ID.
func Undo(j *Job, id string) (changed bool, err error) {
	if err := j.MayBeUndone(); err != nil || j.Undo == id {
		return false, err
	}
	j.Undo = id
	return true, nil
}
