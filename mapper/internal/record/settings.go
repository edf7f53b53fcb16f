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

// Strategy returns the job's setting Splitting: how its ranges are cut.
func (j *Job) Strategy() (sp split.Strategy, err error) {
	if len(j.Splitting) == 0 {
		return sp, nil
	}
	if err := json.Unmarshal(j.Splitting, &sp); err != nil {
		return sp, fmt.Errorf("job %s: splitting: %w", j.ID, err)
	}
	return sp, nil
}

// RateLimit returns the job's rate limit.
func (j *Job) RateLimit() (limit pace.Limit, err error) {
	if len(j.Rate) == 0 {
		return limit, nil
	}
	if err := json.Unmarshal(j.Rate, &limit); err != nil {
		return pace.Limit{}, fmt.Errorf("job %s: rate: %w", j.ID, err)
	}
	return limit, nil
}

// SetRate sets the job's rate. If until is not zero, the previous rate returns at that time.
func (j *Job) SetRate(rate []byte, until time.Time) {
	then := j.RateThen
	if j.RateUntil.IsZero() {
		then = j.Rate
	}
	if j.Rate, j.RateUntil, j.RateThen = rate, until, nil; !until.IsZero() {
		j.RateThen = then
	}
}

// EndRate restores the job's previous rate, if the time set by SetRate has come.
func (j *Job) EndRate(now time.Time) (changed bool) {
	if !RateEnds(j, now) {
		return false
	}
	j.Rate, j.RateUntil, j.RateThen = j.RateThen, time.Time{}, nil
	return true
}

// RateEnds reports whether the time has come at which the job's previous rate returns.
func RateEnds(j *Job, now time.Time) bool { return !j.RateUntil.IsZero() && !now.Before(j.RateUntil) }

// A Budget is the largest cost of a job. 0 means no limit.
type Budget struct {
	Dollars    float64 `json:"dollars,omitempty"`
	Operations int64   `json:"operations,omitempty"`
}

// BudgetLimit returns the budget of a job.
func (j *Job) BudgetLimit() (b Budget, err error) {
	if len(j.Budget) == 0 {
		return b, nil
	}
	if err := json.Unmarshal(j.Budget, &b); err != nil {
		return b, fmt.Errorf("job %s: budget: %w", j.ID, err)
	}
	return b, nil
}

// String formats the budget for people.
func (b Budget) String() string {
	switch {
	case b.Operations == 0:
		return fmt.Sprintf("$%g", b.Dollars)
	case b.Dollars == 0:
		return fmt.Sprintf("%d operations", b.Operations)
	}
	return fmt.Sprintf("$%g and %d operations", b.Dollars, b.Operations)
}

// Spend reserves a share of a running job's budget for the next pages of a process, and returns
// this share. It reserves want, but at least need and at most an eighth of the remaining budget. If
// less than need remains, it reserves nothing. All amounts are shares of the whole budget, in [0,
// 1].
//
// The argument around is the cost of the job apart from its pages. The first reservation includes
// it.
func (j *Job) Spend(around, need, want float64) (got float64) {
	left := leftOf(j, around)
	if j.State != Running || need > left {
		return 0
	}
	got = max(need, min(want, left/8))
	j.Spent = 1 - left + got
	return got
}

// GiveBack returns a reserved but unspent share to the budget. If the job's Allowance is not the
// given one, the budget was renewed after the reservation, and GiveBack does nothing.
func (j *Job) GiveBack(allowance int64, share float64) (changed bool) {
	if j.Allowance != allowance || j.Over() && j.State != Failed {
		return false
	}
	j.Spent = max(0, j.Spent-share)
	return true
}

// leftOf returns the share of the budget that remains for pages. around is the share that the job
// needs for other work.
func leftOf(j *Job, around float64) float64 {
	if j.Spent == 0 {
		return 1 - around
	}
	return 1 - j.Spent
}

// PauseByBudget pauses a running job if its remaining budget is less than its next page needs.
func (j *Job) PauseByBudget(around, need float64, b Budget) (changed bool) {
	if j.State != Running || need <= leftOf(j, around) {
		return false
	}
	j.State, j.OverBudget = Paused, true
	j.Error = PausedByBudget + " of " + b.String() + ": " + j.Shortage(around, need, b)
	return true
}

// PausedByBudget is the action in the history of a job that was paused because its budget was
// spent.
const PausedByBudget = "paused by its budget"

// Shortage returns a text that says how much of the budget remains, and that the next page may need
// more.
func (j *Job) Shortage(around, need float64, b Budget) string {
	return fmt.Sprintf("the next page may cost up to %s, and %s is left for pages, as %s is kept for other work",
		b.part(need), b.part(leftOf(j, around)), b.part(around))
}

// part formats a share of the budget as an amount.
func (b Budget) part(share float64) string {
	switch {
	case b.Operations == 0:
		return fmt.Sprintf("$%.4f", share*b.Dollars)
	case b.Dollars == 0:
		return fmt.Sprintf("%.0f operations", share*float64(b.Operations))
	}
	return fmt.Sprintf("%.2f%%", 100*share)
}

// SetBudget replaces the budget of a job. From now on, the job may spend the whole new budget.
// Reservations of the old budget become void. Empty JSON removes the budget.
func (j *Job) SetBudget(encoded []byte) {
	j.Budget, j.Spent = encoded, 0
	j.Allowance++
}

// AttemptSettings say how many attempts an entity has, or a page that fails as a whole, and how
// long the waits between them are. 0 means the default.
type AttemptSettings struct {
	Attempts int64 `datastore:"attempts,omitempty,noindex"`
	// the wait before the second attempt, in nanoseconds
	BackoffFirst int64 `datastore:"backoff_first,omitempty,noindex"`
	BackoffMax   int64 `datastore:"backoff_max,omitempty,noindex"` // the longest wait, in nanoseconds
}

// DefaultBackoff has the default attempts of an Update: five within 85 seconds. In this time,
// conflicts usually pass, and a service can restart.
var DefaultBackoff = fault.Backoff{Attempts: 5, First: time.Second, Max: 1024 * time.Second}

// VisitAttempts is the default number of attempts of a Visit. The waits between ten attempts add up
// to 74 minutes.
const VisitAttempts = 10

// Backoff returns the settings, with defaults for those that are 0.
func (r AttemptSettings) Backoff() fault.Backoff {
	return fault.Backoff{
		Attempts: cmp.Or(r.Attempts, DefaultBackoff.Attempts),
		First:    cmp.Or(time.Duration(r.BackoffFirst), DefaultBackoff.First),
		Max:      cmp.Or(time.Duration(r.BackoffMax), DefaultBackoff.Max),
	}
}
