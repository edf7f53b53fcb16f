package mapper

import (
	"cmp"
	"time"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A RetryPolicy says how often, and when, a mapper's function is retried on an entity after an
// error. It also holds for pages that fail as a whole: see [Update]. If a field is zero in the
// settings of a job, the field in [Mapper.WithRetryPolicy] counts. If that is zero, too, the
// default counts.
type RetryPolicy struct {
	// MaxAttempts is the number of attempts, including the first, in [1, 100]. After the last
	// attempt the entity is recorded as a failure. If a page fails as a whole, the job fails after
	// the page's last attempt. Defaults to [DefaultUpdateAttempts] or [DefaultVisitAttempts].
	MaxAttempts int `json:"attempts,omitempty"`

	// MinBackoff is the wait before the second attempt, up to a week. Each further wait is four
	// times as long as the one before, up to MaxBackoff. Defaults to a second.
	MinBackoff time.Duration `json:"first_ns,omitempty"`

	// MaxBackoff is the longest wait, at least MinBackoff and up to a week. A [RetryAfter] may ask
	// for a longer one. Defaults to 1,024 seconds, or to MinBackoff if that is more.
	MaxBackoff time.Duration `json:"max_ns,omitempty"`
}

// Default numbers of attempts. The waits between the attempts of an Update are 85 seconds together,
// enough for a service to restart. The waits of a Visit are 74 minutes together, because it calls
// services that may be down for longer.
const (
	DefaultUpdateAttempts = 5
	DefaultVisitAttempts  = 10
)

// MaxDeaths is how many times one entity may kill a process. If an entity may have killed a
// process, another process runs the function on it and does nothing else. After MaxDeaths such
// processes have died, the entity is recorded as a failure. The same rule applies to a job's
// finalizer, but then the job fails.
const MaxDeaths = 5

// WithRetryPolicy sets the retry policy of the mapper's jobs. [StartOptions].Retries overrides its
// fields. WithRetryPolicy returns the mapper, for use in its definition. [NewEngine] returns an
// error if the policy is out of bounds.
func (m *Mapper[P]) WithRetryPolicy(r RetryPolicy) *Mapper[P] {
	if err := r.validate("RetryPolicy"); err != nil && m.def.Err == nil {
		m.def.Err = err
	}
	m.def.Backoff.Attempts, m.def.Backoff.First, m.def.Backoff.Max = int64(r.MaxAttempts), r.MinBackoff, r.MaxBackoff
	return m
}

// of returns the policy with its zero fields filled in: from the mapper's definition, or else from
// the defaults.
func (r RetryPolicy) of(def *function.Definition) RetryPolicy {
	attempts := DefaultUpdateAttempts
	if def.Mode == function.Visit {
		attempts = DefaultVisitAttempts
	}
	first := cmp.Or(r.MinBackoff, def.Backoff.First, record.DefaultBackoff.First)
	return RetryPolicy{
		MaxAttempts: cmp.Or(r.MaxAttempts, int(def.Backoff.Attempts), attempts),
		MinBackoff:  first,
		MaxBackoff:  max(first, cmp.Or(r.MaxBackoff, def.Backoff.Max, record.DefaultBackoff.Max)),
	}
}

// retriesOf returns the retry policy in a job's record.
func retriesOf(j *record.Job) RetryPolicy {
	b := j.Backoff()
	return RetryPolicy{MaxAttempts: int(b.Attempts), MinBackoff: b.First, MaxBackoff: b.Max}
}

const (
	mostAttempts = 100
	longestWait  = 7 * 24 * time.Hour // the longest wait; Cloud Tasks takes tasks for up to 30 days
)

// validate returns an error if a field of the policy is invalid. The parameter name is the policy's
// name in that error. Zero fields are valid: they stand for defaults.
func (r RetryPolicy) validate(name setting.Name) error {
	switch {
	case r.MaxAttempts < 0 || r.MaxAttempts > mostAttempts:
		return setting.Errorf("%s has to be in [1, %d], it is %d", name+".MaxAttempts", mostAttempts, r.MaxAttempts)
	case r.MinBackoff < 0 || r.MinBackoff > longestWait:
		return setting.Errorf("%s has to be in (0, %v], it is %v", name+".MinBackoff", longestWait, r.MinBackoff)
	case r.MaxBackoff < 0 || r.MaxBackoff > longestWait:
		return setting.Errorf("%s has to be in (0, %v], it is %v", name+".MaxBackoff", longestWait, r.MaxBackoff)
	case r.MaxBackoff > 0 && r.MaxBackoff < r.MinBackoff:
		return setting.Errorf("%s has to be at least %s, %v, it is %v", name+".MaxBackoff", name+".MinBackoff",
			r.MinBackoff, r.MaxBackoff)
	}
	return nil
}
