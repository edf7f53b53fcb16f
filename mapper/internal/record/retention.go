package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Retire records that the retention of a job has started a clean-up.
func (j *Job) Retire(now time.Time) {
	j.Retired, j.CleanedAt = true, now.UTC().Truncate(time.Microsecond)
}

// DueAt returns when a job's retention cleans it up; zero if it does not.
func (j *Job) DueAt() time.Time {
	if j.Retain <= 0 || j.Retired || !j.Over() || j.Ended.IsZero() {
		return time.Time{}
	}
	return j.Ended.Add(j.Retain)
}

// Due reports whether a job's retention period is over.
func (j *Job) Due(now time.Time) bool {
	at := j.DueAt()
	return !at.IsZero() && !at.After(now)
}

// retires returns the job's entry in the index of retentions: its queue, then the time when it is
// due. It is empty if the retention does not clean the job up, and during a clean-up.
func retires(j *Job) string {
	if at := j.DueAt(); !at.IsZero() && j.Cleaning == "" {
		return retiring(j.Queue) + fmt.Sprintf("%016x", at.UnixMicro())
	}
	return ""
}

// retiring returns the start of the entries of a queue's jobs.
func retiring(queue Owner) string {
	h := sha256.Sum256([]byte(queue))
	return hex.EncodeToString(h[:8]) + "."
}

// RetiringBounds returns the bounds of the entries of a queue's jobs that are due at a time.
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

// CleanedUp returns the error of an operation that needs the records of a job which was cleaned up,
// or is being cleaned up.
func (j *Job) CleanedUp() error {
	if err := j.CheckRecords(); err != nil {
		return err
	}
	return fmt.Errorf("%w: its records are cleaned up", ErrState)
}

// CheckRecords returns an error if the job's retention has cleaned up its records.
func (j *Job) CheckRecords() error {
	if !j.Retired {
		return nil
	}
	return fmt.Errorf("%w: its records were cleaned up on %s, as its retention of %s says", ErrState,
		j.CleanedAt.Format(time.DateOnly), Days(j.Retain))
}
