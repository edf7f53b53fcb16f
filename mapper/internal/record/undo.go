package record

import (
	"encoding/json"
	"fmt"
	"strings"
)

// UndoPrefix is the prefix of the names of mappers that undo jobs. Users' mappers can't have it.
const UndoPrefix = "undo:"

// IsUndo reports whether the mapper of this name undoes a job, or rehearses an undo.
func IsUndo(mapper string) bool { return strings.Contains(mapper, UndoPrefix) }

// Undone returns the job that j undoes, or whose undo j rehearses. takes is true if j is a real
// undo, which changes entities. Then the undone job's record has j's ID.
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

// Undoes reports whether j is the undo whose ID the record of job o has.
func Undoes(j, o *Job) bool {
	ref, takes := j.Undone()
	return takes && j.ID == o.Undo && ref == o.Ref()
}

// NeedsUndone reports whether an undo may still read the records of the job that it undoes. This is
// so if the undo runs, is paused, or has failed and can be resumed. After a clean-up, it can't be
// resumed.
func (j *Job) NeedsUndone() bool {
	return j.Unfinished() || j.State == Failed && j.HasRecords() == nil
}

// HasRecords returns an error if a clean-up has deleted records of a job's ranges, or is about to.
func (j *Job) HasRecords() error {
	if j.Cleaned || j.Cleaning != "" {
		return j.CleanedUp()
	}
	return nil
}

// MayBeUndone returns an error unless a job can be undone: it must have ended, and still have its
// records.
func (j *Job) MayBeUndone() error {
	if !j.Over() {
		return fmt.Errorf("%w: it is %q: abort it first", ErrState, j.State)
	}
	return j.HasRecords()
}

// Undo records the ID of the job that undoes j. The ID may replace an earlier undo's, if that undo
// has ended. store.UpdateJob checks this.
func Undo(j *Job, id string) (changed bool, err error) {
	if err := j.MayBeUndone(); err != nil || j.Undo == id {
		return false, err
	}
	j.Undo = id
	return true, nil
}
