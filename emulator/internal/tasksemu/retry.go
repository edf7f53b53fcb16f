package tasksemu

import (
	"net/http"
	"strconv"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
)

// backoff is the time between a failed attempt, counted from 1, and the next:
// min_backoff, doubled max_doublings times, then growing linearly, up to
// max_backoff.
func backoff(c *pb.RetryConfig, attempt int) time.Duration {
	longest := c.MaxBackoff.AsDuration()
	d := c.MinBackoff.AsDuration()
	for range min(attempt-1, int(c.MaxDoublings)) {
		if d > longest/2 {
			return longest
		}
		if d *= 2; d == 0 {
			return 0
		}
	}
	if linear := attempt - 1 - int(c.MaxDoublings); linear > 0 && d > 0 {
		if int64(linear) >= int64(longest/d) {
			return longest
		}
		d += time.Duration(linear) * d
	}
	return min(d, longest)
}

// exhausted reports whether a task that failed has to be given up: its attempts
// and its time have both run out. No limit of time leaves the attempts alone to
// decide, and no limit of attempts the time.
func exhausted(c *pb.RetryConfig, attempts int, age time.Duration) bool {
	longest := c.MaxRetryDuration.AsDuration()
	if c.MaxAttempts < 0 {
		return longest > 0 && age >= longest
	}
	return attempts >= int(c.MaxAttempts) && age >= longest
}

// retryAfter is the time that the header Retry-After of an answer asks for, in
// seconds or as a date. 0 means none.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return max(0, date.Sub(now))
	}
	return 0
}
