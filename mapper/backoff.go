package mapper

import (
	"errors"
	"time"
)

// firstDelay is how long an entity, or a page, waits for its second attempt: long
// enough for a conflict or a hiccup of a service to pass. Each further one waits four
// times as long: with five attempts it is 85 s in all, which a restart of a service
// takes.
const firstDelay = time.Second

// retryDelay returns how long the next attempt waits after some that have failed.
func retryDelay(failed int64) time.Duration {
	return firstDelay << (2 * min(max(0, failed-1), 5))
}

// maxRetryAfter bounds what a function can ask for. Cloud Tasks takes tasks for up to 30 days.
const maxRetryAfter = 7 * 24 * time.Hour

// retryNoSooner marks an error of a function whose next attempt is to wait for d at least.
func retryNoSooner(err error, d time.Duration) error {
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

// retryAfter returns how long an error wants to wait, at least.
func retryAfter(err error) time.Duration {
	var r retryAfterError
	if errors.As(err, &r) {
		return r.after
	}
	return 0
}
