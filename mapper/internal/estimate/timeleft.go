package estimate

import (
	"math"
	"slices"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// timeLeft sets the estimated time until the job ends, with its bounds. It is the longer one of two
// times. One is the number of remaining entities divided by the job's speed: the measured
// throughput or the expected pace, whichever is higher. The other is the time for which failed
// entities and pages wait for their next attempts.
func (s *State) timeLeft(l Look) {
	s.TimeLeftMin, s.TimeLeft, s.TimeLeftMax = Unknown, Unknown, Unknown
	sample := l.Totals.Sample
	switch {
	case s.Phase == Over && s.Remaining.Max == 0:
		s.TimeLeftMin, s.TimeLeft, s.TimeLeftMax = 0, 0, 0
		return
	case l.Job.State != record.Running || sample == nil:
		return
	case l.Job.Retrying: // the failed entities are still looked up
		s.TimeLeftMin = 0
		return
	case s.Phase == Finishing:
		s.TimeLeftMin, s.TimeLeft = 0, ending
		if len(sample.Ends) == 0 || l.Now.Sub(lastEnd(sample)) < 5*ending { // otherwise the last task was lost
			s.TimeLeftMax = 2 * ending
		}
		return
	}
	waits := l.waiting(sample)
	work, known := l.working(s.Remaining, sample)
	if !known {
		s.TimeLeftMin = waits.least
		return
	}
	// Some of the remaining entities will also fail an attempt, and wait for the next one.
	if f := l.failing(s, sample); f > 0 {
		work.most += waits.path
		switch none := math.Pow(1-waits.hopeless, f); {
		case none < 0.1:
			work.least += waits.path * 8 / 10
			work.about += waits.path
		case none < 0.5:
			work.about += waits.path
		}
	}
	s.TimeLeftMin = max(work.least, waits.least).Round(time.Millisecond)
	s.TimeLeft = (max(work.about, waits.about) + ending/2).Round(time.Millisecond)
	if now := s.EntitiesPerSecond; (s.Phase == Slowed || s.Phase == GivingWay) && now > 0 && s.Remaining.About > 0 {
		s.TimeLeft = max(s.TimeLeftMin, takes(float64(s.Remaining.About), now).Round(time.Millisecond))
	}
	if !s.Phase.dependsOnOthers() && s.Remaining.Max != Unknown {
		s.TimeLeftMax = (max(work.most, waits.most) + 2*ending).Round(time.Millisecond)
	}
}

// ending is about how long a job takes to end after its last page of entities.
const ending = time.Second

// A span is an estimated duration, with its lower and upper bound.
type span struct {
	least, about, most time.Duration

	path     time.Duration // how long an entity waits in total if all of its attempts fail
	hopeless float64       // the probability that an entity which has failed once fails all attempts
}

// margin is the factor by which the estimated time for the remaining entities may be too short or
// too long.
const margin = 1.7

// working estimates how long the workers need for the remaining entities. It returns false if this
// is unknown because no page is done yet.
func (l Look) working(remaining Number, s *record.Sample) (w span, known bool) {
	due := 0
	for _, r := range s.Open {
		if !r.NotBefore.After(l.Now) {
			due++
		}
	}
	if due == 0 {
		return span{}, remaining.About != Unknown
	}
	throughput, pages := l.throughput(s)
	speed := max(throughput, l.pace(s, float64(due)*s.LeftScale))
	if speed == 0 || remaining.About == Unknown {
		return span{}, false
	}
	off := margin
	if pages < 3 {
		off *= 1.3
	}
	n := float64(remaining.About)
	least, most := math.Sqrt(n*float64(remaining.Min)), math.Sqrt(n*float64(max(remaining.About, remaining.Max)))
	w.least, w.about, w.most = takes(least, speed*off), takes(n, speed), takes(most, speed/off)
	if throughput > 0 && l.slowed() != "" {
		w.about, w.most = takes(n, throughput), max(w.most, takes(most, throughput/off))
	}
	return w, true
}

// takes returns the time for n entities at a speed in entities a second.
func takes(n, speed float64) time.Duration {
	return time.Duration(min(n/speed*float64(time.Second), math.MaxInt64/4))
}

// throughput returns the measured speed in the last third of the job's time, in entities a second,
// and the number of pages done in it. Pages under way do not count. So after the job has become
// faster, the result is too low for a while.
func (l Look) throughput(s *record.Sample) (speed float64, pages int) {
	running := max(time.Millisecond, l.Now.Sub(l.runsSince()))
	window := min(running, max(running/3, 5*time.Second), max(5*time.Minute, l.recently()))
	n := int64(0)
	for _, e := range s.Ends {
		if l.Now.Sub(e.At) < window {
			n, pages = n+e.Entities, pages+1
		}
	}
	return float64(n) * s.Scale / window.Seconds(), pages
}

// pace returns the expected speed in entities a second. It assumes that an entity takes a worker as
// long as the mean so far. It returns 0 if the mean is unknown, or if other jobs' tasks wait in the
// same queue. The argument due is the number of ranges that can be processed now.
func (l Look) pace(s *record.Sample, due float64) float64 {
	each := perEntity(s)
	if each <= 0 || l.Queue.shared() {
		return 0
	}
	workers := due
	if most := float64(l.Job.AtOnce()); most > 0 {
		workers = min(workers, most)
	}
	pace := workers / each.Seconds()
	if most := l.mostEntities(); most > 0 {
		pace = min(pace, most)
	}
	return pace
}

// mostEntities returns the highest speed that the job's rate limit allows, in entities a second; 0
// if there is no limit.
func (l Look) mostEntities() float64 {
	limit, err := l.Job.RateLimit()
	if err != nil {
		return 0
	}
	return limit.Entities(l.Totals.PerEntity(l.Job), l.Now.Sub(l.Job.RampBegan()))
}

// perEntity returns the mean time that tasks have taken for an entity, or 0 if that is unknown.
func perEntity(s *record.Sample) time.Duration {
	took, n := time.Duration(0), int64(0)
	for _, e := range s.Ends {
		if !e.Began.IsZero() && !e.Alone {
			took, n = took+e.At.Sub(e.Began), n+e.Entities
		}
	}
	if n == 0 {
		for _, e := range s.Ends {
			if !e.Alone && e.Ran > 0 {
				took, n = took+e.Ran, n+e.Entities
			}
		}
	}
	return took / time.Duration(max(1, n))
}

// lastEnd returns when the last page of entities was done.
func lastEnd(s *record.Sample) time.Time {
	return slices.MaxFunc(s.Ends, func(a, b record.End) int { return a.At.Compare(b.At) }).At
}

// failing estimates how many of the entities that have not been tried yet will fail their first
// attempt, and so have to wait for the next one.
func (l Look) failing(s *State, sample *record.Sample) float64 {
	waited := 0
	for _, e := range sample.Ends {
		if e.Alone && !e.AtOnce {
			waited++
		}
	}
	alone := 0
	for _, r := range sample.Open {
		if r.Alone {
			alone++
		}
	}
	tried := float64(waited)*sample.Scale + float64(alone)*sample.LeftScale
	if tried == 0 || l.Job.TotalsBefore() != nil {
		return 0
	}
	left := float64(s.Remaining.About) - float64(alone)*sample.LeftScale
	return tried * left / max(1, float64(s.Processed.About+s.Failures.About)+float64(alone)*sample.LeftScale)
}

// waiting estimates how long failed entities and pages still wait for their next attempts. The
// lower bound is the time until the last of these attempts is due. The upper bound assumes that all
// attempts fail, and includes the waits between them. If it is likely that one of the ranges fails
// all its attempts, the estimate is the upper bound. A service's refusal is no failed attempt.
func (l Look) waiting(s *record.Sample) (w span) {
	backoff := l.Job.Backoff()
	gone, failed := 0, 0
	for _, e := range s.Ends {
		if e.Alone && !e.AtOnce {
			gone++
			if e.Failed {
				failed++
			}
		}
	}
	for n := int64(1); n < backoff.Attempts; n++ {
		w.path += backoff.Delay(n)
	}
	// The more attempts have failed, the likelier the others fail, too. The entities that have ended
	// say how likely it is in this job.
	hopeless := func(failures int64) float64 {
		return (float64(failed) + float64(failures+1)/float64(backoff.Attempts+1)) / float64(gone+1)
	}
	w.hopeless = hopeless(1)
	none := 1.0 // the probability that no range fails all its attempts
	for _, r := range s.Open {
		failures := r.RefusalsIn(l.Job)
		if failures == 0 && !r.NotBefore.After(l.Now) {
			continue
		}
		next := max(0, r.NotBefore.Sub(l.Now))
		all := next
		for n := failures + 1; n < backoff.Attempts; n++ {
			all += backoff.Delay(n)
		}
		if failures > 0 {
			none *= 1 - hopeless(failures)
		}
		w.least, w.most = max(w.least, next), max(w.most, all)
	}
	switch w.about = w.least; {
	case none < 0.1:
		w.least, w.about = w.most*9/10, w.most
	case none < 0.5:
		w.about = w.most
	}
	return w
}
