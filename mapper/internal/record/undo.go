package record

import (
	"encoding/json"
	"fmt"
	"strings"
)

// UndoPrefix begins the names of the mappers that undo the jobs of others, and of no mapper of
// users.
const UndoPrefix = "undo:"

// IsUndo reports whether a mapper of that name undoes jobs, or is a rehearsal of that.
func IsUndo(mapper string) bool { return strings.Contains(mapper, UndoPrefix) }

// Undone returns the job that a job undoes, or rehearses to undo. Takes reports whether it is the
// undo itself, which changes entities and which the undone job's record names.
func Undone(j *Job) (ref Ref, takes bool) {
	if !IsUndo(j.Mapper) {
		return Ref{}, false
	}
	var of struct{ Job, Incarnation string }
	if json.Unmarshal(j.Params, &of) != nil { // its pages say so
		return Ref{}, false
	}
	return Ref{of.Job, of.Incarnation}, strings.HasPrefix(j.Mapper, UndoPrefix)
}

// Undoes reports whether a job is the undo that the record of another one names.
func Undoes(j, o *Job) bool {
	ref, takes := Undone(j)
	return takes && j.ID == o.Undo && ref == o.Ref()
}

// NeedsUndone reports whether a job is an undo that may still read the records of the job that it
// undoes: it runs, is paused, or has failed and may be resumed.
func NeedsUndone(j *Job) bool { return j.Unfinished() || j.State == Failed }

// HasRecords returns an error if records of a job's ranges are deleted, or are about to be.
func HasRecords(j *Job) error {
	if j.Cleaned || j.Cleaning != "" {
		return CleanedUp(j)
	}
	return nil
}

// MayBeUndone returns an error if a job can't be undone, by whatever job: it has to have ended, and
// to have its records.
func MayBeUndone(j *Job) error {
	if !j.Over() {
		return fmt.Errorf("%w: it is %q: abort it first", ErrState, j.State)
	}
	return HasRecords(j)
}

// Undo notes which job undoes one. The store sees to it that another one which was noted before is
// over, see store.UpdateJob.
func Undo(j *Job, id string) (changed bool, err error) {
	if err := MayBeUndone(j); err != nil || j.Undo == id {
		return false, err
	}
	j.Undo = id
	return true, nil
}
