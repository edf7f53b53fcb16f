package estimate

import (
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/recent"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Shown remembers the estimates of jobs that a process has shown to people. It keeps the
// displayed progress from going back when a new sample gives a lower estimate. A Shown may be used
// by several goroutines.
type Shown struct {
	mu  sync.Mutex
	all recent.Map[string, seen]
	// counted has the number of entities in each range that was counted. Its keys name the job and
	// the range.
	counted recent.Map[string, int64]
}

// A seen is the state of a job that was last shown. The field most is the lowest upper bound so far
// for the job's total number of entities, or Unknown.
type seen struct {
	State
	most int64
}

// mostShown is the largest number of jobs whose estimates are remembered.
const mostShown = 1000

// Latest returns the state to show for a job whose new estimate is s. The shown number of processed
// entities does not decrease, unless the new number is exact. The shown fraction decreases only if
// it is above the new upper bound, because more entities were found.
//
// If their bounds allow it, the shown numbers add up to no more than the total. Without this rule,
// the highest of several estimates would stay on display.
func (sh *Shown) Latest(job string, s State) State {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	most := s.Total.Max
	if last, ok := sh.all.Get(job); ok {
		if last.most != Unknown && s.Total.Min <= last.most && s.Total.Min != most { // no further entities were found
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

// after returns the state s, changed so that it shows no less progress than the state last, which
// was shown before. The argument most is an upper bound for the job's total, or Unknown.
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

// Count returns the number of entities in a pending range. The first time it calls the function
// count, and later it returns the remembered result. If count does not know the number, Count
// returns Unknown.
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
