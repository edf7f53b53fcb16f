package estimate

import (
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/recent"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Shown remembers what a process has shown of its jobs, so that no estimate goes back because
// another sample was drawn. Several goroutines may use it.
type Shown struct {
	mu      sync.Mutex
	all     recent.Map[string, State]
	counted recent.Map[string, int64] // by range
}

// mostShown is the most jobs that are remembered.
const mostShown = 1000

// Latest returns the state to show for a job. The number of processed entities is not below what
// was shown before, unless it is now known exactly. The fraction is not below either, as far as the
// bounds allow: entities that were found meanwhile lower it.
func (sh *Shown) Latest(job string, s State) State {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if last, ok := sh.all.Get(job); ok {
		s = s.after(last)
	}
	sh.all.Put(job, s, mostShown, nil)
	return s
}

// after returns the state, which shows no less progress than an earlier one.
func (s State) after(last State) State {
	p := s.Processed
	if p.Min != p.Max {
		p.About, p.Min = max(p.About, last.Processed.About), max(p.Min, last.Processed.Min)
		p.Max = max(p.Max, p.About)
		s.counts(p, s.Failures, s.Remaining)
		s.fractions()
	}
	s.Fraction = max(s.Fraction, min(last.Fraction, s.FractionMax))
	return s
}

// Count returns the number of entities in a pending range, as count returned it when it was first
// called for the range. It is Unknown if count fails.
func (sh *Shown) Count(r *record.Range, count func() (n int64, known bool)) int64 {
	id := r.Ref().String() + r.ID
	sh.mu.Lock()
	n, ok := sh.counted.Get(id)
	sh.mu.Unlock()
	if ok {
		return n
	}
	n, known := count()
	if !known {
		return Unknown
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.counted.Put(id, n, mostShown, nil)
	return n
}
