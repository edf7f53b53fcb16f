package fault

import (
	"errors"
	"time"
)

// A Backoff says how often something is tried, and how long the attempts wait. It is the second
// attempt that waits for First; each further one waits four times as long as the one before, up to
// Max.
type Backoff struct {
	Attempts   int64
	First, Max time.Duration
}

// Delay returns how long the next attempt waits after so many have failed.
func (b Backoff) Delay(failed int64) time.Duration {
	d := b.First
	for range failed - 1 {
		if d *= 4; d >= b.Max {
			return b.Max
		}
	}
	return d
}

// maxRetryAfter bounds what a function can ask for. Cloud Tasks takes tasks for up to 30 days.
const maxRetryAfter = 7 * 24 * time.Hour

// RetryAfter marks an error of a function whose next attempt is to wait for d at least.
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

// After returns how long an error wants the next attempt to wait, at least.
func After(err error) time.Duration {
	var r Refusal
	if errors.As(err, &r) {
		return r.After
	}
	var later retryAfterError
	errors.As(err, &later)
	return later.after
}

// IsLater reports whether an error wants another attempt later.
func IsLater(err error) bool { return errors.As(err, new(retryAfterError)) }
