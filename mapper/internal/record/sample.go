package record

import "time"

// A Sample is a random sample of a job's records, from which the job's progress is estimated.
type Sample struct {
	Done  float64 // processed and failed entities in the sampled records
	Scale float64 // number of done records for each sampled one; 1: all are sampled
	Ends  []End

	Left      float64 // entities expected in the sampled pending ranges
	LeftScale float64 // as Scale, of pending ranges
	Counted   float64 // the part of Left that was counted, not estimated
	Gaps      float64 // number of gaps between sampled keys, from which the rest of Left was estimated
	Blind     int     // number of sampled pending ranges without an estimate

	DoneSquares, LeftSquares float64 // sums of squares of the records' parts
}

// NewSample returns an empty sample, to which the caller adds all records.
func NewSample() *Sample { return &Sample{Scale: 1, LeftScale: 1} }

// An End is when a page ended, and how many entities it had.
type End struct {
	At       time.Time
	Entities int64
}

// Add adds a range's record.
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

// SetPending takes the numbers of pending ranges from another sample.
func (s *Sample) SetPending(o *Sample) {
	s.Left, s.LeftScale, s.Counted, s.Gaps, s.Blind, s.LeftSquares = o.Left, o.LeftScale, o.Counted, o.Gaps, o.Blind,
		o.LeftSquares
}
