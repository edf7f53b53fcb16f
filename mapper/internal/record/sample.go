package record

import "time"

// A Sample is a random sample of a job's records, from which the state of the job is estimated.
type Sample struct {
	Pages             int     // sampled records of ranges that are done, and not failures
	Done, DoneSquares float64 // their processed entities, and the sum of the squares
	Failed            int     // sampled failures
	Alone             int     // of Pages, the entities that were tried alone, and have succeeded
	Scale             float64 // number of done records for each sampled one; 1: all are sampled
	Ends              []End

	Open        []*Range // the sampled pending ranges
	LeftScale   float64  // as Scale, of pending ranges
	Left        float64  // entities expected in Open
	LeftSquares float64  // the sum of the squares
	Counted     float64  // the part of Left that was counted, not estimated
	Gaps        float64  // number of gaps between sampled keys, from which the rest of Left was estimated
	Blind       int      // number of ranges in Open without an estimate

	Census *Census // nil: the numbers of records are estimates, too
}

// A Census has the numbers of a job's records at one moment.
type Census struct {
	Ranges, Open, Failed int64
}

// Done returns the number of ranges that are done, and not failures.
func (c Census) Done() int64 { return max(0, c.Ranges-c.Open-c.Failed) }

// NewSample returns an empty sample, to which the caller adds all records.
func NewSample() *Sample { return &Sample{Scale: 1, LeftScale: 1} }

// An End is the end of a range that had entities.
type End struct {
	At       time.Time
	Began    time.Time // when its delivery started it; zero: unknown
	Entities int64
	Ran      time.Duration // how long the function took
	Yielded  time.Duration // how long it waited as a page of a background job
	Alone    bool          // it was one entity that was tried alone
	Failed   bool          // that entity has failed
	AtOnce   bool          // it has failed at its first attempt, with its page
}

// Took returns how long the page took, or its function if that is all that is known.
func (e End) Took() time.Duration {
	if e.Began.IsZero() {
		return e.Ran
	}
	return max(e.Ran, e.At.Sub(e.Began))
}

// Add adds a range's record.
func (s *Sample) Add(r *Range) {
	switch {
	case r.State == Done:
		s.addDone(r)
		return
	case r.Alone:
		s.addLeft(1)
		s.Counted++
	case r.Estimate > 0 || r.Exact:
		s.addLeft(float64(r.Estimate))
		if r.Exact {
			s.Counted += float64(r.Estimate)
		} else {
			s.Gaps += float64(len(r.Samples) + 1)
		}
	default:
		s.Blind++
	}
	s.Open = append(s.Open, r)
}

func (s *Sample) addLeft(n float64) {
	s.Left += n
	s.LeftSquares += n * n
}

func (s *Sample) addDone(r *Range) {
	e := End{At: r.Done, Entities: r.Processed, Ran: r.Ran, Yielded: r.Yielded, Alone: r.Alone, Failed: r.Failed != "",
		AtOnce: r.Done.Equal(r.Created)}
	if r.Continued && r.Attempts == 0 && r.Refusals == 0 {
		e.Began = r.Created
	}
	if e.Failed {
		s.Failed++
		e.Entities = 1
	} else {
		s.Pages++
		if r.Alone {
			s.Alone++
		}
		s.Done += float64(r.Processed)
		s.DoneSquares += float64(r.Processed) * float64(r.Processed)
	}
	if e.Entities > 0 {
		s.Ends = append(s.Ends, e)
	}
}

// CountBlind adds the number of entities in a pending range without an estimate, which was counted.
func (s *Sample) CountBlind(n int64) {
	s.Blind--
	s.addLeft(float64(n))
	s.Counted += float64(n)
}

// SetPending takes the numbers of pending ranges from another sample.
func (s *Sample) SetPending(o *Sample) {
	s.Open, s.Left, s.LeftScale, s.Counted, s.Gaps, s.Blind, s.LeftSquares = o.Open, o.Left, o.LeftScale, o.Counted,
		o.Gaps, o.Blind, o.LeftSquares
}
