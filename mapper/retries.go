package mapper

import (
	"cmp"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Retries say how often a mapper's function is tried on an entity that it returns an error for, and
// a page that fails as a whole, see [Update]; and how long these attempts wait. What is zero is the
// default: of a job that of its mapper, see [Mapper.Retries], and of a mapper [UpdateAttempts] or
// [VisitAttempts].
type Retries struct {
	// Attempts is how often, in [1, 100]. After the last one the entity is a failure; if a page
	// fails as a whole, its job fails.
	Attempts int `json:"attempts,omitempty"`

	// First is how long the second attempt waits: up to a week, and a second by default. Each
	// further attempt waits four times as long as the one before, up to Max.
	First time.Duration `json:"first_ns,omitempty"`

	// Max is the longest that an attempt waits, unless the function asks for more by [RetryAfter]:
	// up to a week, and 1,024 seconds by default.
	Max time.Duration `json:"max_ns,omitempty"`
}

// The attempts that are made by default. Those of an Update take 85 seconds, in which a service
// restarts. Those of a Visit take 74 minutes, as it calls services that may be down for longer.
const (
	UpdateAttempts = 5
	VisitAttempts  = 10
)

// MaxDeaths is how often a process may die while it does nothing but one entity, which is a failure
// then, or nothing but a job's finalizer, which fails the job.
const MaxDeaths = 5

// Retries sets how often, and when, the function is tried again in jobs that do not say so
// themselves. It returns the mapper, for use in its definition.
func (m *Mapper[P]) Retries(r Retries) *Mapper[P] {
	if err := r.validate("Retries"); err != nil && m.def.Err == nil {
		m.def.Err = err
	}
	m.def.Backoff.Attempts, m.def.Backoff.First, m.def.Backoff.Max = int64(r.Attempts), r.First, r.Max
	return m
}

// of returns the retries of a job of a mapper.
func (r Retries) of(def *function.Definition) Retries {
	attempts := UpdateAttempts
	if def.Mode == function.Visit {
		attempts = VisitAttempts
	}
	first := cmp.Or(r.First, def.Backoff.First, record.DefaultBackoff.First)
	return Retries{
		Attempts: cmp.Or(r.Attempts, int(def.Backoff.Attempts), attempts),
		First:    first,
		Max:      max(first, cmp.Or(r.Max, def.Backoff.Max, record.DefaultBackoff.Max)),
	}
}

// retriesOf returns the retries of a job.
func retriesOf(j *record.Job) Retries {
	b := j.Backoff()
	return Retries{Attempts: int(b.Attempts), First: b.First, Max: b.Max}
}

const (
	mostAttempts = 100
	longestWait  = 7 * 24 * time.Hour // Cloud Tasks takes tasks for up to 30 days
)

// validate checks the retries, in which zeros are defaults.
func (r Retries) validate(name string) error {
	switch {
	case r.Attempts < 0 || r.Attempts > mostAttempts:
		return fmt.Errorf("%s.Attempts has to be in [1, %d], it is %d", name, mostAttempts, r.Attempts)
	case r.First < 0 || r.First > longestWait:
		return fmt.Errorf("%s.First has to be in (0, %v], it is %v", name, longestWait, r.First)
	case r.Max < 0 || r.Max > longestWait:
		return fmt.Errorf("%s.Max has to be in (0, %v], it is %v", name, longestWait, r.Max)
	case r.Max > 0 && r.Max < r.First:
		return fmt.Errorf("%s.Max has to be at least First, %v, it is %v", name, r.First, r.Max)
	}
	return nil
}
