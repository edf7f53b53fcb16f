package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Retire records that a clean-up was started automatically, because the job's retention is over.
func (j *Job) Retire(now time.Time) {
	j.Retired, j.CleanedAt = true, now.UTC().Truncate(time.Microsecond)
}

// DueAt returns when a job is cleaned up automatically, or the zero time if it will not be.
func (j *Job) DueAt() time.Time {
	if j.Retain <= 0 || j.Retired || !j.Over() || j.Ended.IsZero() {
		return time.Time{}
	}
	return j.Ended.Add(j.Retain)
}

// Due reports whether a job should be cleaned up automatically by now.
func (j *Job) Due(now time.Time) bool {
	at := j.DueAt()
	return !at.IsZero() && !at.After(now)
}

// retires returns the job's entry in the index of automatic clean-ups: its queue, then the time. It
// returns "" if no automatic clean-up is planned, or if one is under way.
func retires(j *Job) string {
	if at := j.DueAt(); !at.IsZero() && j.Cleaning == "" {
		return retiring(j.Queue) + fmt.Sprintf("%016x", at.UnixMicro())
	}
	return ""
}

// retiring returns the text with which the index entries of a queue's jobs start, see retires.
func retiring(queue Owner) string {
	h := sha256.Sum256([]byte(queue))
	return hex.EncodeToString(h[:8]) + "."
}

// RetiringBounds returns the bounds of the index entries for the jobs of a queue whose automatic
// clean-up is due by now.
func RetiringBounds(queue Owner, now time.Time) (from, to string) {
	return retiring(queue), retiring(queue) + fmt.Sprintf("%016x", now.UnixMicro()+1)
}

// Days formats a duration, in days if it is a whole number of days.
func Days(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == day:
		return "a day"
	case d > 0 && d%day == 0:
		return fmt.Sprintf("%d days", d/day)
	}
	return d.String()
}

// CleanedUp returns the error of an operation that needs the records of the job's ranges after a
// clean-up has deleted them. The error says whether the clean-up was automatic.
func (j *Job) CleanedUp() error {
	if err := j.CheckRecords(); err != nil {
		return err
	}
	return fmt.Errorf("%w: its records are cleaned up", ErrState)
}

// CheckRecords returns an error if the records of the job's ranges were deleted by an automatic
// clean-up.
func (j *Job) CheckRecords() error {
	if !j.Retired {
		return nil
	}
	return fmt.Errorf("%w: its records were cleaned up on %s, as its retention of %s says", ErrState,
		j.CleanedAt.Format(time.DateOnly), Days(j.Retain))
}
