package estimate

import (
	"math"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Progress says how far a job is.
type Progress struct {
	// Fraction estimates the part of its entities that the job has processed or failed on, from 0
	// to 1. FractionMin and FractionMax are its bounds. FractionMin is four standard deviations
	// below the estimate. So a later estimate is hardly ever below an earlier FractionMin, unless
	// entities were inserted: these count once the job has found them.
	//
	// All three are equal if all remaining entities were counted and all records were read. They
	// are far apart while little is known, and if the query filters a kind.
	FractionMin float64 `json:"at_least"`
	Fraction    float64 `json:"about"`
	FractionMax float64 `json:"at_most"`

	EntitiesPerSecond        float64 `json:"rate"`    // entities a second in the last minute, while the job runs
	EntitiesPerSecondOverall float64 `json:"overall"` // entities a second since the job was started

	// TimeLeft estimates the time until the last entity at EntitiesPerSecond, in nanoseconds, with
	// its bounds. It is 0 if that is unknown, for example before the first entity.
	TimeLeftMin time.Duration `json:"left_at_least,omitempty"`
	TimeLeft    time.Duration `json:"left,omitempty"`
	TimeLeftMax time.Duration `json:"left_at_most,omitempty"`
}

// Bounds of estimates.
const (
	deviations = 4 // standard deviations, on each side of an estimate
	// density is the error of an estimate by sampled keys. The number of entities for each key is
	// within 25% two times in three (mapper.Estimate.Exact).
	density = 0.25
	// narrowed multiplies density if the query leaves out some entities of the kind.
	narrowed = 4
	lately   = time.Minute
)

// ProgressOf returns how far a job is, and about what it has cost so far in dollars. The sum is
// over the job's records.
func ProgressOf(
	j *record.Job, sum record.Totals, q query.Query, now time.Time, prices billing.Prices,
) (Progress, float64) {
	used := billing.Usage{Reads: sum.Processed + sum.Failures + 3*sum.Pages + sum.Tasks,
		Writes: sum.Written + pace.RecordWrites*sum.Pages, TaskOps: 2 * (sum.Tasks + 1)}
	if q.KeysOnly {
		used.Reads -= sum.Processed + sum.Failures
	}
	k := known{begun: j.Created, now: now, whole: q.Whole() && q.Share.All(), ended: !j.Unfinished()}
	if k.ended {
		k.now = j.Ended
	}
	if sum.Sample == nil { // nothing remains
		sum.Sample = record.NewSample()
		sum.Sample.Done = float64(sum.Processed + sum.Failures)
	}
	return k.progress(sum.Sample), prices.Dollars(used)
}

// Share returns which part of a budget has been used, at the given prices.
func Share(b record.Budget, u billing.Usage, prices billing.Prices) (share float64) {
	if b.Dollars > 0 {
		share = prices.Dollars(u) / b.Dollars
	}
	if b.Operations > 0 {
		share = max(share, float64(u.Reads+u.Writes+u.Deletes+u.TaskOps)/float64(b.Operations))
	}
	return share
}

// A known is what is known about a job besides a sample.
type known struct {
	begun, now time.Time
	whole      bool // its query is over whole kinds
	ended      bool
}

// progress returns how far a job is, from a sample of its records.
func (k known) progress(s *record.Sample) Progress {
	var p Progress
	p.rates(s, k)
	done, expected := s.Done*s.Scale, s.Left*s.LeftScale
	if done+expected == 0 {
		if p.FractionMax = 1; s.Blind == 0 && k.ended {
			p.FractionMin, p.Fraction = 1, 1
		}
		return p
	}
	p.Fraction = share(done, expected)
	guessed, factor := s.Left-s.Counted, 1.0
	if guessed > 0 {
		off := density
		if !k.whole {
			off *= narrowed
		}
		factor = math.Exp(deviations * math.Sqrt(off*off+1/s.Gaps))
	}
	off := sampled(s.LeftSquares, s.Left, s.LeftScale)
	least, most := (s.Counted+guessed/factor)*s.LeftScale*(1-off), (s.Counted+guessed*factor)*s.LeftScale*(1+off)
	if s.Blind > 0 {
		most = math.Inf(1)
	}
	off = sampled(s.DoneSquares, s.Done, s.Scale)
	p.FractionMin, p.FractionMax = share(done*(1-off), most), share(done*(1+off), least)
	p.left(expected, least, most)
	return p
}

// sampled returns the relative error of the sum of a sample, from the sum of its squares.
func sampled(squares, sum, scale float64) float64 {
	if scale == 1 || sum == 0 {
		return 0
	}
	return min(1, deviations*math.Sqrt(squares)/sum)
}

// share returns the part of the work that is done.
func share(done, left float64) float64 {
	if math.IsInf(left, 1) {
		return 0
	}
	if done+left == 0 {
		return 1
	}
	return done / (done + left)
}

// rates sets how many entities a second were done, in the last minute and overall.
func (p *Progress) rates(s *record.Sample, k known) {
	took := k.now.Sub(k.begun)
	if took <= 0 {
		return
	}
	p.EntitiesPerSecondOverall = s.Done * s.Scale / took.Seconds()
	if k.ended {
		return
	}
	n := int64(0)
	for _, e := range s.Ends {
		if k.now.Sub(e.At) < lately {
			n += e.Entities
		}
	}
	p.EntitiesPerSecond = float64(n) * s.Scale / min(took, lately).Seconds()
}

// left sets the remaining time, at the rate of the last minute.
func (p *Progress) left(about, least, most float64) {
	takes := func(n float64) time.Duration {
		if p.EntitiesPerSecond == 0 || math.IsInf(n, 1) {
			return 0
		}
		return time.Duration(min(n/p.EntitiesPerSecond*float64(time.Second), math.MaxInt64/2)).Round(time.Millisecond)
	}
	p.TimeLeftMin, p.TimeLeft, p.TimeLeftMax = takes(least), takes(about), takes(most)
}
