package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// Strategy returns how the job's ranges are cut: the setting Splitting, decoded.
func (j *Job) Strategy() (sp split.Strategy, err error) {
	if len(j.Splitting) == 0 {
		return sp, nil
	}
	if err := json.Unmarshal(j.Splitting, &sp); err != nil {
		return sp, fmt.Errorf("job %s: splitting: %w", j.ID, err)
	}
	return sp, nil
}

// RateLimit returns the job's rate limit, decoded. It is zero if there is none.
func (j *Job) RateLimit() (limit pace.Limit, err error) {
	if len(j.Rate) == 0 {
		return limit, nil
	}
	if err := json.Unmarshal(j.Rate, &limit); err != nil {
		return pace.Limit{}, fmt.Errorf("job %s: rate: %w", j.ID, err)
	}
	return limit, nil
}

// SetRate sets the job's rate, as JSON. If until is not zero, the job returns to its previous rate
// at that time.
func (j *Job) SetRate(rate []byte, until time.Time) {
	then := j.RateThen
	if j.RateUntil.IsZero() {
		then = j.Rate
	}
	if j.Rate, j.RateUntil, j.RateThen = rate, until, nil; !until.IsZero() {
		j.RateThen = then
	}
}

// EndRate restores the job's previous rate, if the time that SetRate has set has come. It reports
// whether it has changed the rate.
func (j *Job) EndRate(now time.Time) (changed bool) {
	if !RateEnds(j, now) {
		return false
	}
	j.Rate, j.RateUntil, j.RateThen = j.RateThen, time.Time{}, nil
	return true
}

// RateEnds reports whether the time has come at which the job returns to its previous rate.
func RateEnds(j *Job, now time.Time) bool { return !j.RateUntil.IsZero() && !now.Before(j.RateUntil) }

// A Budget limits the cost of a job, in dollars, in operations, or in both. 0 means no limit.
type Budget struct {
	Dollars    float64 `json:"dollars,omitempty"`
	Operations int64   `json:"operations,omitempty"`
}

// BudgetLimit returns the budget of a job, decoded. It is zero if there is none.
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
		return setting.Dollars(b.Dollars)
	case b.Dollars == 0:
		return fmt.Sprintf("%d operations", b.Operations)
	}
	return fmt.Sprintf("%s and %d operations", setting.Dollars(b.Dollars), b.Operations)
}

// Spend reserves a share of a running job's budget for the next pages of a process, and returns
// this share. It reserves want, but at most an eighth of the remaining budget, and at least need.
// If less than need remains, it reserves nothing and returns 0. All amounts are shares of the whole
// budget, from 0 to 1.
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

// GiveBack returns a share of the budget that was reserved but not spent. If the job's Allowance
// differs from the argument, the budget was renewed after the reservation, and GiveBack does
// nothing.
func (j *Job) GiveBack(allowance int64, share float64) (changed bool) {
	if j.Allowance != allowance || j.Over() && j.State != Failed {
		return false
	}
	j.Spent = max(0, j.Spent-share)
	return true
}

// leftOf returns the share of the budget that remains for pages. The argument around is the share
// that the job needs for other work.
func leftOf(j *Job, around float64) float64 {
	if j.Spent == 0 {
		return 1 - around
	}
	return 1 - j.Spent
}

// PauseByBudget pauses a running job if its next page needs more than remains of the budget. It
// returns false if the job is not paused. The arguments around and need are as in [Job.Spend].
func (j *Job) PauseByBudget(around, need float64, b Budget) (changed bool) {
	if j.State != Running || need <= leftOf(j, around) {
		return false
	}
	j.State, j.OverBudget = Paused, true
	j.Error = PausedByBudget + " of " + b.String() + ": " + j.Shortage(around, need, b)
	return true
}

// PausedByBudget is the text of the entry in a job's history if the job was paused because its
// budget was spent.
const PausedByBudget = "paused by its budget"

// Shortage returns a text for people that says how much of the budget remains, and that the next
// page may need more.
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

// SetBudget replaces the budget of a job by new JSON. The job may then spend the whole new budget.
// Reservations of the old budget have no effect any more. Empty JSON removes the budget.
func (j *Job) SetBudget(encoded []byte) {
	j.Budget, j.Spent = encoded, 0
	j.Allowance++
}

// AttemptSettings say how many attempts an entity gets, and how long to wait between them. They
// also apply to a page that fails as a whole. 0 means the default.
type AttemptSettings struct {
	Attempts int64 `datastore:"attempts,omitempty,noindex"`
	// BackoffFirst is the wait before the second attempt, in nanoseconds.
	BackoffFirst int64 `datastore:"backoff_first,omitempty,noindex"`
	BackoffMax   int64 `datastore:"backoff_max,omitempty,noindex"` // the longest wait, in nanoseconds
}

// DefaultBackoff has the default attempts of an Update: five within 85 seconds. In this time,
// conflicts usually end, and a service can restart.
var DefaultBackoff = fault.Backoff{Attempts: 5, First: time.Second, Max: 1024 * time.Second}

// VisitAttempts is the default number of attempts of a Visit. The nine waits between them add up to
// 74 minutes.
const VisitAttempts = 10

// Backoff returns the settings, with defaults in place of zeros.
func (r AttemptSettings) Backoff() fault.Backoff {
	return fault.Backoff{
		Attempts: cmp.Or(r.Attempts, DefaultBackoff.Attempts),
		First:    cmp.Or(time.Duration(r.BackoffFirst), DefaultBackoff.First),
		Max:      cmp.Or(time.Duration(r.BackoffMax), DefaultBackoff.Max),
	}
}
