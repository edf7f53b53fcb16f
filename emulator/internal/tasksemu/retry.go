package tasksemu

import (
	"net/http"
	"strconv"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
)

// backoff returns the wait after a failed attempt. The first attempt has the number 1. The wait
// starts at min_backoff, then doubles max_doublings times, and then grows linearly. It is at most
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

// exhausted reports whether a failed task gets no more attempts. If the settings limit both the
// attempts and the time, both limits must be reached. A limit that is not set does not count.
func exhausted(c *pb.RetryConfig, attempts int, age time.Duration) bool {
	longest := c.MaxRetryDuration.AsDuration()
	if c.MaxAttempts < 0 {
		return longest > 0 && age >= longest
	}
	return attempts >= int(c.MaxAttempts) && age >= longest
}

// retryAfter returns the wait that an answer's header Retry-After demands, in seconds or as a date.
// It returns 0 if the header is empty or invalid.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return max(0, date.Sub(now))
	}
	return 0
}
