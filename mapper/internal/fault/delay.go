package fault

import (
	"errors"
	"time"
)

// A Backoff says how many attempts an entity or page gets, and how long to wait between them. The
// wait before the second attempt is First. Each later wait is four times as long as the previous
// one, but at most Max.
type Backoff struct {
	Attempts   int64
	First, Max time.Duration
}

// Delay returns the wait before the next attempt, after the given number of failed attempts.
func (b Backoff) Delay(failed int64) time.Duration {
	d := b.First
	for range failed - 1 {
		if d *= 4; d >= b.Max {
			return b.Max
		}
	}
	return d
}

// maxRetryAfter is the longest wait that a function can request. Cloud Tasks keeps tasks for up to
// 30 days.
const maxRetryAfter = 7 * 24 * time.Hour

// RetryAfter returns err with a mark: the next attempt must wait for at least d.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return retryAfterError{err, min(d, maxRetryAfter)}
}

type retryAfterError struct {
	err   error
	after time.Duration
}

func (e retryAfterError) Error() string { return e.err.Error() }
func (e retryAfterError) Unwrap() error { return e.err }

// After returns how long the next attempt must wait according to a mark by RetryAfter, or 0 without
// a mark.
func After(err error) time.Duration {
	var r Refusal
	if errors.As(err, &r) {
		return r.After
	}
	var later retryAfterError
	errors.As(err, &later)
	return later.after
}

// IsLater reports whether an error was marked by RetryAfter.
func IsLater(err error) bool { return errors.As(err, new(retryAfterError)) }
