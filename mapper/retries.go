package mapper

import (
	"cmp"
	"time"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// RetryPolicy say how often a mapper's function is tried on an entity that it returns an error for,
// and a page that fails as a whole, see [Update]; and how long these attempts wait. What is zero is
// the default: of a job that of its mapper, see [Mapper.WithRetryPolicy], and of a mapper
// [DefaultUpdateAttempts] or [DefaultVisitAttempts].
type RetryPolicy struct {
	// MaxAttempts is how often, in [1, 100]. After the last one the entity is a failure; if a page
	// fails as a whole, its job fails.
	MaxAttempts int `json:"attempts,omitempty"`

	// MinBackoff is how long the second attempt waits: up to a week, and a second by default. Each
	// further attempt waits four times as long as the one before, up to Max.
	MinBackoff time.Duration `json:"first_ns,omitempty"`

	// MaxBackoff is the longest that an attempt waits, unless the function asks for more by
	// [RetryAfter]: up to a week, and 1,024 seconds by default.
	MaxBackoff time.Duration `json:"max_ns,omitempty"`
}

// The attempts that are made by default. Those of an Update take 85 seconds, in which a service
// restarts. Those of a Visit take 74 minutes, as it calls services that may be down for longer.
const (
	DefaultUpdateAttempts = 5
	DefaultVisitAttempts  = 10
)

// MaxDeaths is how often a process may die while it does nothing but one entity, which is a failure
// then, or nothing but a job's finalizer, which fails the job.
const MaxDeaths = 5

// WithRetryPolicy sets how often, and when, the function is tried again in jobs that do not say so
// themselves. It returns the mapper, for use in its definition.
func (m *Mapper[P]) WithRetryPolicy(r RetryPolicy) *Mapper[P] {
	if err := r.validate("RetryPolicy"); err != nil && m.def.Err == nil {
		m.def.Err = err
	}
	m.def.Backoff.Attempts, m.def.Backoff.First, m.def.Backoff.Max = int64(r.MaxAttempts), r.MinBackoff, r.MaxBackoff
	return m
}

// of returns the retries of a job of a mapper.
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

// retriesOf returns the retries of a job.
func retriesOf(j *record.Job) RetryPolicy {
	b := j.Backoff()
	return RetryPolicy{MaxAttempts: int(b.Attempts), MinBackoff: b.First, MaxBackoff: b.Max}
}

const (
	mostAttempts = 100
	longestWait  = 7 * 24 * time.Hour // Cloud Tasks takes tasks for up to 30 days
)

// validate checks the retries, in which zeros are defaults.
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
