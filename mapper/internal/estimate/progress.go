package estimate

import (
	"math"
	"slices"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Unknown stands for an unknown number or time.
const Unknown = -1

// A Number is an estimate with a lower and an upper bound. About and Max are Unknown if nothing is
// known.
type Number struct{ About, Min, Max int64 }

// exactly returns the Number for n, which is known exactly.
func exactly(n int64) Number { return Number{n, n, n} }

// A State says how far a job is, what it does and what it costs, for the jobs API, the command line
// and the dashboard.
//
// The sum of Processed, Failures and Remaining is Total. This is also true of their bounds.
type State struct {
	Processed, Failures, Remaining, Total Number
	Progress
	Phase  Phase
	Reason string // a text that says why the job is in its phase, and why it is not faster

	Dollars      float64 // the cost so far
	DollarsTotal float64 // the cost at the job's end; Unknown if nothing is known
}

// A Progress says how far a job is.
type Progress struct {
	// Fraction estimates the part of the job's entities that is done, from 0 to 1: it has processed
	// them or failed on them. FractionMin and FractionMax are its bounds.
	FractionMin, Fraction, FractionMax float64

	// EntitiesPerSecond is the present speed while the job runs: in the last minute (see
	// [Look.recently]), or in the later half of a younger job's time.
	EntitiesPerSecond        float64
	EntitiesPerSecondOverall float64 // mean speed since the job was started

	// TimeLeft estimates the time until the job ends, with its bounds. It is Unknown if the job
	// does not run, or if nothing is known.
	TimeLeftMin, TimeLeft, TimeLeftMax time.Duration
}

// Constants for the bounds of estimates.
const (
	deviations = 3 // distance of each bound from the estimate, in standard deviations
	// density is the relative error of a size that is estimated from sampled keys. Two times in
	// three, the estimate is within 25% (mapper.Estimate.Exact).
	density = 0.25
	// narrowed multiplies density if the query does not select all entities of the kind.
	narrowed = 4
	// lately is the time over which the current speed is measured, see [Look.recently].
	lately = time.Minute
	// fewEnds is the number of sampled pages that are enough to measure a speed.
	fewEnds = 25
)

// A Look holds the facts about a job at one moment, to estimate its State.
type Look struct {
	Job    *record.Job
	Totals record.Totals // sums over the records of the job's ranges; until the job ends they contain a Sample
	Query  query.Query
	Now    time.Time
	Queue  Queue
	Prices billing.Prices
}

// State estimates the state of the job.
func (l Look) State() State {
	s := State{Dollars: Dollars(l.Job, l.Totals, l.Query, l.Prices)}
	switch sample := l.Totals.Sample; {
	case sample != nil:
		s.counts(l.counts(sample))
	case l.Totals.Pending > 0: // a clean-up has deleted the records of the remaining ranges
		s.counts(exactly(l.Totals.Processed), exactly(l.Totals.Failures), Number{Unknown, 0, Unknown})
	default: // no entities remain
		s.counts(exactly(l.Totals.Processed), exactly(l.Totals.Failures), exactly(0))
	}
	s.fractions()
	s.DollarsTotal = s.cost()
	s.rates(l)
	s.Phase, s.Reason = l.phase(s.EntitiesPerSecond)
	s.timeLeft(l)
	return s
}

// cost estimates the job's total cost at its end in dollars. It assumes that the remaining entities
// cost as much as the earlier ones.
func (s *State) cost() float64 {
	switch done := s.Processed.About + s.Failures.About; {
	case s.Remaining.About == 0:
		return s.Dollars
	case s.Remaining.About == Unknown || done == 0:
		return Unknown
	default:
		return s.Dollars * float64(done+s.Remaining.About) / float64(done)
	}
}

// Dollars estimates what a job has cost so far.
func Dollars(j *record.Job, sum record.Totals, q query.Query, prices billing.Prices) float64 {
	used := billing.Usage{Reads: sum.Processed + sum.Failures + 3*sum.Pages + sum.Tasks,
		Writes: sum.WrittenBy(j) + pace.RecordWrites*sum.Pages, TaskOps: 2 * (sum.Tasks + 1)}
	if q.KeysOnly {
		used.Reads -= sum.Processed + sum.Failures
	}
	return prices.Dollars(used)
}

// Share returns which part of the budget b the usage u takes at the given prices; 1 is all of the
// budget. If the budget limits both dollars and operations, the larger part is returned.
func Share(b record.Budget, u billing.Usage, prices billing.Prices) (share float64) {
	if b.Dollars > 0 {
		share = prices.Dollars(u) / b.Dollars
	}
	if b.Operations > 0 {
		share = max(share, float64(u.Reads+u.Writes+u.Deletes+u.TaskOps)/float64(b.Operations))
	}
	return share
}

// counts sets the state's numbers of entities, and sets Total to their sum.
func (s *State) counts(processed, failures, remaining Number) {
	s.Processed, s.Failures, s.Remaining = processed, failures, remaining
	s.Total = Number{processed.About + failures.About + remaining.About,
		processed.Min + failures.Min + remaining.Min, processed.Max + failures.Max + remaining.Max}
	if remaining.About == Unknown {
		s.Total.About = Unknown
	}
	if remaining.Max == Unknown {
		s.Total.Max = Unknown
	}
}

// counts estimates the numbers of entities in each state from a sample of the job's records.
func (l Look) counts(s *record.Sample) (processed, failures, remaining Number) {
	failures = failuresIn(s)
	remaining = l.remaining(s)
	if before := l.Job.TotalsBefore(); before != nil && (s.Scale == 1 || s.Census != nil) {
		// The job has repeated only failures, so no other range can be open.
		open := int64(len(s.Open))
		if s.Census != nil {
			open = s.Census.Open
		}
		return exactly(before.Processed + before.Failures - failures.About - open), failures, exactly(open)
	}
	return processedIn(s), failures, remaining
}

// processedIn estimates the number of processed entities from a sample of the job's records.
func processedIn(s *record.Sample) Number {
	about := s.Done * s.Scale
	off := 0.0
	switch n := float64(s.Pages); {
	case s.Pages == 0 || s.Scale == 1:
	case s.Census != nil: // Census counts all pages, so only the mean number of entities in a page is estimated
		mean := s.Done / n
		variance := max(0, s.DoneSquares/n-mean*mean) * n / max(1, n-1)
		off = deviations * n * s.Scale * math.Sqrt(variance/n*max(0, 1-1/s.Scale))
	default:
		off = deviations * s.Scale * math.Sqrt(s.DoneSquares)
	}
	return around(about, off, s.Done)
}

// failuresIn estimates the number of failed entities from a sample of the job's records.
func failuresIn(s *record.Sample) Number {
	switch {
	case s.Census != nil:
		return exactly(s.Census.Failed)
	case s.Scale == 1:
		return exactly(int64(s.Failed))
	}
	n := float64(s.Failed)
	return around(n*s.Scale, deviations*s.Scale*math.Sqrt(max(1, n)), n)
}

// around returns a Number for the estimate about, with bounds at a distance of off. The lower bound
// is at least seen, the number that was found in the sample.
func around(about, off, seen float64) Number {
	return Number{int64(about + 0.5), int64(max(seen, about-off) + 0.5), int64(math.Ceil(about + off))}
}

// remaining estimates the number of entities in pending ranges, which are not processed yet.
func (l Look) remaining(s *record.Sample) Number {
	if len(s.Open) > 0 && s.Blind == len(s.Open) {
		return Number{Unknown, 0, Unknown}
	}
	guessed, factor := s.Left-s.Counted, 1.0
	if guessed > 0 {
		off := density
		if !l.Query.Whole() || !l.Query.Share.All() {
			off *= narrowed
		}
		factor = math.Exp(deviations * math.Sqrt(off*off+1/max(1, s.Gaps)))
	}
	off := 0.0
	if s.LeftScale != 1 && s.Left > 0 {
		off = min(1, deviations*math.Sqrt(s.LeftSquares)/s.Left)
		if n := float64(len(s.Open)); s.Census != nil && n > 1 {
			mean := s.Left / n
			variance := max(0, s.LeftSquares/n-mean*mean) * n / (n - 1)
			off = min(1, deviations*math.Sqrt(variance/n*max(0, 1-1/s.LeftScale))/mean)
		}
	}
	r := Number{int64(s.Left*s.LeftScale + 0.5), int64((s.Counted + guessed/factor) * s.LeftScale * (1 - off)),
		int64(math.Ceil((s.Counted + guessed*factor) * s.LeftScale * (1 + off)))}
	if s.Blind > 0 {
		r.Max = Unknown
	}
	return r
}

// fractions sets Fraction, FractionMin and FractionMax from the state's numbers of entities.
func (s *State) fractions() {
	part := func(done, left int64) float64 {
		switch {
		case left == Unknown:
			return 0
		case done+left == 0:
			return 1
		}
		return float64(done) / float64(done+left)
	}
	done := func(n func(Number) int64) int64 { return n(s.Processed) + n(s.Failures) }
	s.Fraction = part(done(Number.about), s.Remaining.About)
	s.FractionMin = part(done(Number.least), s.Remaining.Max)
	s.FractionMax = part(done(Number.most), s.Remaining.Min)
}

func (n Number) about() int64 { return n.About }
func (n Number) least() int64 { return n.Min }
func (n Number) most() int64  { return n.Max }

// rates sets the job's speeds in entities a second: at present and overall.
func (s *State) rates(l Look) {
	ended := !l.Job.Unfinished()
	now := l.Now
	if ended {
		now = l.Job.Ended
	}
	took := now.Sub(l.Job.Created)
	if took <= 0 {
		return
	}
	s.EntitiesPerSecondOverall = float64(s.Processed.About+s.Failures.About) / took.Seconds()
	if ended || l.Totals.Sample == nil {
		return
	}
	window := l.recently()
	if took < 2*window { // the later half shows a change of speed, but is too short at first
		window = min(took, max(took/2, leastWindow))
	}
	n := int64(0)
	for _, e := range l.Totals.Sample.Ends {
		if now.Sub(e.At) < window {
			n += e.Entities
		}
	}
	s.EntitiesPerSecond = float64(n) * l.Totals.Sample.Scale / window.Seconds()
}

// recently returns the time over which the job's current speed is measured: the last minute. If only
// some of the pages are sampled, few of them may be that new. Then it goes back to the last fewEnds
// of them, but not to before a Resume.
func (l Look) recently() time.Duration {
	s := l.Totals.Sample
	if s.Scale == 1 || len(s.Ends) == 0 || l.Job.State != record.Running {
		return lately
	}
	ago := make([]time.Duration, 0, len(s.Ends))
	for _, e := range s.Ends {
		ago = append(ago, l.Now.Sub(e.At))
	}
	slices.Sort(ago)
	return max(lately, min(ago[min(len(ago), fewEnds)-1], l.Now.Sub(l.runsSince())))
}
