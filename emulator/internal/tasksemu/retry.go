package tasksemu

import (
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
		if d *= 2; d >= longest {
			return longest
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
