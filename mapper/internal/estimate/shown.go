package estimate

import (
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/recent"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Shown remembers the estimates that a process has shown of its jobs, so that a new sample does
// not make them go back. Several goroutines may use it.
type Shown struct {
	mu      sync.Mutex
	all     recent.Map[string, seen]
	counted recent.Map[string, int64] // counted numbers of entities, by range
}

// A seen has what was last shown of a job. It also has the least upper bound of the job's total so
// far, or Unknown.
type seen struct {
	State
	most int64
}

// mostShown is the largest number of jobs whose estimates are remembered.
const mostShown = 1000

// Latest returns the state to show for a job. Its number of processed entities is not below the
// last one shown, unless it is now exact. Its fraction is not below the last one either, as far as
// the bounds allow: entities that were found meanwhile lower it.
//
// A sum of estimates does not exceed the total, as far as their bounds allow. Estimates err to both
// sides, and the highest of many would be far too high.
func (sh *Shown) Latest(job string, s State) State {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	most := s.Total.Max
	if last, ok := sh.all.Get(job); ok {
		if last.most != Unknown && s.Total.Min <= last.most && s.Total.Min != most { // no more entities were found
			most = last.most
			if s.Total.Max != Unknown {
				most = min(most, s.Total.Max)
			}
		}
		s = s.after(last.State, most)
	}
	sh.all.Put(job, seen{s, most}, mostShown, nil)
	return s
}

// after returns the state s, changed so that it shows no less progress than the earlier state last.
// The job's total is at most most, or Unknown.
func (s State) after(last State, most int64) State {
	p, r := s.Processed, s.Remaining
	if p.Min != p.Max {
		p.Min = max(p.Min, last.Processed.Min)
		if most != Unknown && r.About != Unknown {
			p.About = min(p.About, most-s.Failures.About-r.About)
		}
		p.About = max(p.About, p.Min, last.Processed.About)
		p.Max = max(p.Max, p.About)
		if most != Unknown && r.About != Unknown {
			r.About = max(r.Min, min(r.About, most-s.Failures.About-p.About))
		}
		s.counts(p, s.Failures, r)
		s.fractions()
	}
	s.Fraction = max(s.Fraction, min(last.Fraction, s.FractionMax))
	return s
}

// Count returns the number of entities in a pending range. It calls count only once for the range,
// and later returns that result. If count fails, it returns Unknown.
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
