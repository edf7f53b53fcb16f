package fault

import (
	"errors"
	"time"
)

// FirstDelay is how long an entity, or a page, waits for its second attempt: long
// enough for a conflict or a hiccup of a service to pass. Each further one waits four
// times as long: with five attempts it is 85 s in all, which a restart of a service
// takes.
const FirstDelay = time.Second

// RetryDelay returns how long the next attempt waits after some that have failed.
func RetryDelay(failed int64) time.Duration {
	return FirstDelay << (2 * min(max(0, failed-1), 5))
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
