package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Retire notes that the retention of a job has begun to clean it up.
func Retire(j *Job, now time.Time) {
	j.Retired, j.CleanedAt = true, now.UTC().Truncate(time.Microsecond)
}

// DueAt returns when the retention of a job that has ended cleans it up; zero if it does not.
func DueAt(j *Job) time.Time {
	if j.Retain <= 0 || j.Retired || !j.Over() || j.Ended.IsZero() {
		return time.Time{}
	}
	return j.Ended.Add(j.Retain)
}

// Due reports whether the retention of a job has come to its end.
func Due(j *Job, now time.Time) bool {
	at := DueAt(j)
	return !at.IsZero() && !at.After(now)
}

// retires returns the value that lists a job whose retention will clean it up among those of its
// queue, by the time. It is empty for all others, and while a clean-up is under way.
func retires(j *Job) string {
	if at := DueAt(j); !at.IsZero() && j.Cleaning == "" {
		return retiring(j.Queue) + fmt.Sprintf("%016x", at.UnixMicro())
	}
	return ""
}

// retiring begins the values of retires for the jobs of a queue.
func retiring(queue Owner) string {
	h := sha256.Sum256([]byte(queue))
	return hex.EncodeToString(h[:8]) + "."
}

// RetiringBounds returns between which values of the property "retires" the jobs of a queue are
// that are due at a time.
func RetiringBounds(queue Owner, now time.Time) (from, to string) {
	return retiring(queue), retiring(queue) + fmt.Sprintf("%016x", now.UnixMicro()+1)
}

// Days writes a time for people: in days, if it is some.
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

// CleanedUp returns the error for whoever needs the records of a job that is cleaned up.
func CleanedUp(j *Job) error {
	if err := CheckRecords(j); err != nil {
		return err
	}
	return fmt.Errorf("%w: its records are cleaned up", ErrState)
}

// CheckRecords returns an error if the retention of a job has cleaned up its records.
func CheckRecords(j *Job) error {
	if !j.Retired {
		return nil
	}
	return fmt.Errorf("%w: its records were cleaned up on %s, as its retention of %s says", ErrState,
		j.CleanedAt.Format(time.DateOnly), Days(j.Retain))
}
