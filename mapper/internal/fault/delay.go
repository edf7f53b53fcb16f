package fault

import (
	"errors"
	"time"
)

// FirstDelay is how long an entity or a page waits for its second attempt. A conflict or a hiccup of a
// service has passed by then. Each further attempt waits four times as long: five attempts take 85 s,
// within which a service restarts.
const FirstDelay = time.Second

// RetryDelay returns how long the next attempt waits after so many have failed.
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
