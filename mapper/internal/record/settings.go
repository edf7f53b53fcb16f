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

// SetRate sets how fast the job may go, until a time if that is not zero: then it goes as fast
// again as it did before.
func SetRate(j *Job, rate []byte, until time.Time) {
	then := j.RateThen
	if j.RateUntil.IsZero() {
		then = j.Rate
	}
	if j.Rate, j.RateUntil, j.RateThen = rate, until, nil; !until.IsZero() {
		j.RateThen = then
	}
}

// EndRate has the job go as fast again as it did before its rate was set until a time, if that has
// come.
func EndRate(j *Job, now time.Time) (changed bool) {
	if !RateEnds(j, now) {
		return false
	}
	j.Rate, j.RateUntil, j.RateThen = j.RateThen, time.Time{}, nil
	return true
}

// RateEnds reports whether the time has come until which the job's rate was set.
func RateEnds(j *Job, now time.Time) bool { return !j.RateUntil.IsZero() && !now.Before(j.RateUntil) }

// A Budget is the most that a job may cost; what is 0 is no limit.
type Budget struct {
	Dollars    float64 `json:"dollars,omitempty"`
	Operations int64   `json:"operations,omitempty"`
}

// BudgetOf returns the budget of a job.
func BudgetOf(j *Job) (b Budget, err error) {
	if len(j.Budget) == 0 {
		return b, nil
	}
	if err := json.Unmarshal(j.Budget, &b); err != nil {
		return b, fmt.Errorf("job %s: budget: %w", j.ID, err)
	}
	return b, nil
}

// String returns the budget for people.
func (b Budget) String() string {
	switch {
	case b.Operations == 0:
		return fmt.Sprintf("$%g", b.Dollars)
	case b.Dollars == 0:
		return fmt.Sprintf("%d operations", b.Operations)
	}
	return fmt.Sprintf("$%g and %d operations", b.Dollars, b.Operations)
}

// Spend takes a share out of the budget of a job that runs: as much as is wanted, but not more than
// an eighth of what is left, and as much as is needed; or nothing, if there is less than that.
//
// Around is what the job takes besides its pages, of which the first one pays for.
func Spend(j *Job, around, need, want float64) (got float64) {
	left := leftOf(j, around)
	if j.State != Running || need > left {
		return 0
	}
	got = max(need, min(want, left/8))
	j.Spent = 1 - left + got
	return got
}

// GiveBack gives a share back that was taken out of an allowance of a job's budget, and not spent.
func GiveBack(j *Job, allowance int64, share float64) (changed bool) {
	if j.Allowance != allowance || j.Over() && j.State != Failed {
		return false
	}
	j.Spent = max(0, j.Spent-share)
	return true
}

// leftOf returns which share is left of a job's budget, for pages.
func leftOf(j *Job, around float64) float64 {
	if j.Spent == 0 {
		return 1 - around
	}
	return 1 - j.Spent
}

// PauseByBudget pauses a job that runs, if less of its budget is left than is needed.
func PauseByBudget(j *Job, around, need float64, b Budget) (changed bool) {
	if j.State != Running || need <= leftOf(j, around) {
		return false
	}
	j.State, j.Poor = Paused, true
	j.Error = fmt.Sprintf("paused by its budget of %v, which the next page might pass: a resume allows as much again",
		b)
	return true
}

// AttemptSettings are how often the function is tried on an entity, or on a page that fails as a
// whole; 0 is the default.
type AttemptSettings struct {
	Attempts     int64 `datastore:"attempts,omitempty,noindex"`
	BackoffFirst int64 `datastore:"backoff_first,omitempty,noindex"` // nanoseconds
	BackoffMax   int64 `datastore:"backoff_max,omitempty,noindex"`   // nanoseconds
}

// DefaultBackoff is how often the function of an Update is tried on an entity: within 85 s, in
// which a conflict passes, and a service restarts.
var DefaultBackoff = fault.Backoff{Attempts: 5, First: time.Second, Max: 1024 * time.Second}

// VisitAttempts is how often that of a Visit is tried: the delays between them add up to 74
// minutes.
const VisitAttempts = 10

// Backoff returns the retries with their defaults.
func (r AttemptSettings) Backoff() fault.Backoff {
	return fault.Backoff{
		Attempts: cmp.Or(r.Attempts, DefaultBackoff.Attempts),
		First:    cmp.Or(time.Duration(r.BackoffFirst), DefaultBackoff.First),
		Max:      cmp.Or(time.Duration(r.BackoffMax), DefaultBackoff.Max),
	}
}
