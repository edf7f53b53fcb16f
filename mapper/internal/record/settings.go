package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// Strategy returns how the ranges of the job are cut.
func (j *Job) Strategy() (sp split.Strategy, err error) {
	if len(j.Splitting) == 0 {
		return sp, nil
	}
	if err := json.Unmarshal(j.Splitting, &sp); err != nil {
		return sp, fmt.Errorf("job %s: splitting: %w", j.ID, err)
	}
	return sp, nil
}

// RateLimit returns how fast the job may go.
func (j *Job) RateLimit() (limit pace.Limit, err error) {
	if len(j.Rate) == 0 {
		return limit, nil
	}
	if err := json.Unmarshal(j.Rate, &limit); err != nil {
		return limit, fmt.Errorf("job %s: rate: %w", j.ID, err)
	}
	return limit, nil
}

// AttemptSettings are how often the function is tried on an entity, or on a page that fails as a whole; 0 is the default.
type AttemptSettings struct {
	Attempts     int64 `datastore:"attempts,omitempty,noindex"`
	BackoffFirst int64 `datastore:"backoff_first,omitempty,noindex"` // nanoseconds
	BackoffMax   int64 `datastore:"backoff_max,omitempty,noindex"`   // nanoseconds
}

// DefaultBackoff is how often the function of an Update is tried on an entity: within 85 s, in which a conflict
// passes, and a service restarts.
var DefaultBackoff = fault.Backoff{Attempts: 5, First: time.Second, Max: 1024 * time.Second}

// VisitAttempts is how often that of a Visit is tried: the delays between them add up to 74 minutes.
const VisitAttempts = 10

// Backoff returns the retries with their defaults.
func (r AttemptSettings) Backoff() fault.Backoff {
	return fault.Backoff{
		Attempts: cmp.Or(r.Attempts, DefaultBackoff.Attempts),
		First:    cmp.Or(time.Duration(r.BackoffFirst), DefaultBackoff.First),
		Max:      cmp.Or(time.Duration(r.BackoffMax), DefaultBackoff.Max),
	}
}
