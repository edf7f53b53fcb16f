package record

import "time"

// A Sample is a random sample of the records of a job's ranges. Package estimate calculates the
// numbers for the job's status from it.
type Sample struct {
	Pages             int     // number of sampled ranges that are done, without failures
	Done, DoneSquares float64 // entities processed in these ranges: the sum, and the sum of the squares
	Failed            int     // number of sampled single-entity ranges that have failed
	Alone             int     // number of ranges in Pages that are single entities, which succeeded in a retry
	Scale             float64 // for how many done ranges each sampled one stands; 1: all are sampled
	Ends              []End

	Open        []*Range // the sampled pending ranges
	LeftScale   float64  // for how many pending ranges each one in Open stands
	Left        float64  // expected number of entities in the ranges in Open
	LeftSquares float64  // sum of the squares of these ranges' expected numbers
	Counted     float64  // the part of Left that was counted and not estimated
	Gaps        float64  // number of gaps between sampled keys from which the rest of Left was estimated
	Blind       int      // number of ranges in Open whose size is unknown

	Census *Census // exact numbers of the job's records; nil: only estimates are known
}

// A Census has exact numbers of a job's records at one moment: all ranges, the pending ones, and
// the failed entities.
type Census struct {
	Ranges, Open, Failed int64
}

// Done returns the number of ranges that are done, without failures.
func (c Census) Done() int64 { return max(0, c.Ranges-c.Open-c.Failed) }

// NewSample returns an empty sample, to which the caller adds the records of all ranges of a job.
func NewSample() *Sample { return &Sample{Scale: 1, LeftScale: 1} }

// An End describes how a sampled range ended. There is one for each sampled range that had
// entities.
type End struct {
	At       time.Time
	Began    time.Time // when a delivery started on the range; zero: unknown
	Entities int64
	Ran      time.Duration // how long the function ran
	// how long the page waited in favour of other clients, because the job is a background job
	Yielded time.Duration
	Alone   bool // whether the range is a single entity that was retried
	Failed  bool // whether that entity has failed
	AtOnce  bool // whether that entity failed finally in its first attempt, in a page with other entities
}

// Took returns how long the page took, from the start of its delivery. If that start is unknown, it
// returns how long the function ran.
func (e End) Took() time.Duration {
	if e.Began.IsZero() {
		return e.Ran
	}
	return max(e.Ran, e.At.Sub(e.Began))
}

// Add adds the record of a range to the sample.
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

// CountBlind adds n entities to the sample. The size of one pending range in the sample was
// unknown, and a count has now found n.
func (s *Sample) CountBlind(n int64) {
	s.Blind--
	s.addLeft(float64(n))
	s.Counted += float64(n)
}

// SetPending replaces the numbers about pending ranges by the numbers in another sample, o.
func (s *Sample) SetPending(o *Sample) {
	s.Open, s.Left, s.LeftScale, s.Counted, s.Gaps, s.Blind, s.LeftSquares = o.Open, o.Left, o.LeftScale, o.Counted,
		o.Gaps, o.Blind, o.LeftSquares
}
