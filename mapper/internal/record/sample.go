package record

import "time"

// A Sample is what some records of a job, which are as good as any others, say of how far it is.
type Sample struct {
	Done  float64 // entities that were processed, or have failed
	Scale float64 // by how much more records are done; 1: these are all
	Ends  []End

	Left      float64 // entities that are expected in pending ranges,
	LeftScale float64 // as Scale;
	Counted   float64 // of which so many were counted, and the others guessed
	Gaps      float64 // between the keys that the guesses come from
	Blind     int     // pending ranges of which nothing is known

	DoneSquares, LeftSquares float64 // sums of the squares of each record's
}

// NewSample returns a sample of all records, none of which was added.
func NewSample() *Sample { return &Sample{Scale: 1, LeftScale: 1} }

// An End is that of a page.
type End struct {
	At       time.Time
	Entities int64
}

// Add adds the record of a range.
func (s *Sample) Add(r *Range) {
	done, left := 0.0, 0.0
	switch {
	case r.State == Done:
		n := r.Processed
		if r.Failed != "" {
			n++
		}
		if done = float64(n); n > 0 {
			s.Ends = append(s.Ends, End{r.Done, n})
		}
	case r.Alone:
		left, s.Counted = 1, s.Counted+1
	case r.Estimate > 0 || r.Exact:
		left = float64(r.Estimate)
		if r.Exact {
			s.Counted += left
		} else {
			s.Gaps += float64(len(r.Samples) + 1)
		}
	default:
		s.Blind++
	}
	s.Done += done
	s.Left += left
	s.DoneSquares += done * done
	s.LeftSquares += left * left
}

// SetPending has what is pending be what another sample says.
func (s *Sample) SetPending(o *Sample) {
	s.Left, s.LeftScale, s.Counted, s.Gaps, s.Blind, s.LeftSquares = o.Left, o.LeftScale, o.Counted, o.Gaps, o.Blind,
		o.LeftSquares
}
