package picture

import (
	"slices"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// A Moment is a part of a job's time, with the job's speed in that part: see [Picture.Series].
type Moment struct {
	From time.Time `json:"from"`
	// Rate is the number of entities a second. The entities of a page are spread evenly over the
	// time of its delivery.
	Rate float64 `json:"rate"`
	Busy float64 `json:"busy"` // mean number of tasks under way, estimated

	// Partial says that pages from this time are not committed yet. Rate assumes that they process
	// as many entities a second as the committed pages did, up to the size of a page.
	Partial bool `json:"partial,omitempty"`
}

// Series divides the job's time so far into n equal parts, and returns the job's speed in each. If
// n is less than 1, it returns nothing.
func (p *Picture) Series(n int) []Moment {
	if n < 1 {
		return nil
	}
	took := max(time.Duration(n), p.Until.Sub(p.Begun))
	s := series{p.Begun, took / time.Duration(n), make([]Moment, n)}
	for i := range s.all {
		s.all[i].From = p.Begun.Add(time.Duration(i) * s.part)
	}
	timing := p.timing()
	var usual pageTimes
	for i := range p.Ranges {
		if r := &p.Ranges[i]; !r.Done.IsZero() && r.State != Failed {
			began := timing.began(r)
			usual.add(r, began)
			s.add(began, r.Done, r.entities(), r.Weight)
		}
	}
	if p.State == mapper.StateRunning && !p.Ended {
		s.addOpen(p, &timing, &usual)
	}
	return s.all
}

// A series is a job's time, divided into equal parts with sums for each.
type series struct {
	begun time.Time
	part  time.Duration
	all   []Moment
}

// at returns the index of the part that contains the time t.
func (s *series) at(t time.Time) int { return min(len(s.all)-1, max(0, int(t.Sub(s.begun)/s.part))) }

// add spreads entities and deliveries evenly over the parts in which a page ran.
func (s *series) add(began, done time.Time, entities, deliveries float64) {
	took := done.Sub(began)
	if took <= 0 {
		s.all[s.at(done)].Rate += entities / s.part.Seconds()
		return
	}
	for k := s.at(began); k <= s.at(done); k++ {
		from, to := s.all[k].From, s.all[k].From.Add(s.part)
		if began.After(from) {
			from = began
		}
		if done.Before(to) {
			to = done
		}
		share := max(0, to.Sub(from).Seconds())
		s.all[k].Rate += entities * share / took.Seconds() / s.part.Seconds()
		s.all[k].Busy += deliveries * share / s.part.Seconds()
	}
}

// addOpen adds the pages that are not committed yet, and sets Partial in the parts in which they
// have run. It estimates their entities and starts from usual, the sums over the committed pages.
func (s *series) addOpen(p *Picture, t *timing, usual *pageTimes) {
	first := p.Until
	for i := range p.Ranges {
		r := &p.Ranges[i]
		if r.State != Running {
			continue
		}
		began := t.afterHalt(r.Created, p.Until)
		if !r.Continues {
			began = later(began, p.Until.Add(-usual.mean()/2))
		}
		entities := usual.perSecond() * p.Until.Sub(began).Seconds()
		s.add(began, p.Until, min(entities, float64(r.Entities), usual.most)*r.Weight, r.Weight)
		if began.Before(first) {
			first = began
		}
	}
	first = later(first, p.Until.Add(-2*usual.mean())) // if a page hangs, only the latest time is partial
	for k := s.at(first); k < len(s.all) && first.Before(p.Until); k++ {
		s.all[k].Partial = true
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// pageTimes are sums over the committed pages.
type pageTimes struct {
	pages, entities, seconds float64
	most                     float64 // the largest number of entities in a page
}

func (t *pageTimes) add(r *Range, began time.Time) {
	t.pages++
	t.entities += float64(r.Entities)
	t.seconds += max(0, r.Done.Sub(began).Seconds())
	t.most = max(t.most, float64(r.Entities))
}

// mean returns the mean time of a page.
func (t *pageTimes) mean() time.Duration {
	return time.Duration(t.seconds / max(1, t.pages) * float64(time.Second))
}

// perSecond returns how many entities a task processes in a second.
func (t *pageTimes) perSecond() float64 {
	if t.seconds <= 0 {
		return 0
	}
	return t.entities / t.seconds
}

// A Level has numbers about the ranges with the same depth: see [Picture.Levels]. They are
// estimates if the picture is a sample.
type Level struct {
	Depth  int64   `json:"depth"`
	Ranges float64 `json:"ranges"` // number of ranges
	Open   float64 `json:"open"`   // number of ranges that are not done
	// Entities is the number of entities in the done ranges, plus the expected number in the open
	// ones.
	Entities float64 `json:"entities"`
}

// Levels returns numbers about the job's ranges by depth, starting with the root. They show how the
// work was divided. Ranges of single entities do not count, because their entities are also part of
// a page.
func (p *Picture) Levels() (all []Level) {
	for i := range p.Ranges {
		r := &p.Ranges[i]
		if r.Alone {
			continue
		}
		for int64(len(all)) <= r.Depth && len(all) < 100 {
			all = append(all, Level{Depth: int64(len(all))})
		}
		l := &all[min(r.Depth, int64(len(all)-1))]
		l.Ranges += r.Weight
		l.Entities += r.entities()
		if r.Done.IsZero() {
			l.Open += r.Weight
		}
	}
	return all
}

// A Spread holds percentiles of a list of numbers: half of the numbers are at most P50, 90% are at
// most P90, and so on. All are 0 if the list is empty.
type Spread struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func spreadOf(all []float64) Spread {
	slices.Sort(all)
	return Spread{quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99), quantile(all, 1)}
}

// Pages holds statistics of a job's pages: see [Picture.Pages].
type Pages struct {
	Entities Spread `json:"entities"`   // numbers of entities in a page
	Seconds  Spread `json:"seconds"`    // the function's time for a page, in seconds
	Each     Spread `json:"per_entity"` // the function's time for an entity, in seconds
}

// Pages returns statistics of the job's done pages that had entities.
func (p *Picture) Pages() Pages {
	var entities, seconds, each []float64
	for i := range p.Ranges {
		if r := &p.Ranges[i]; !r.Alone && !r.Done.IsZero() && r.Entities > 0 {
			entities = append(entities, float64(r.Entities))
			seconds = append(seconds, r.Ran.Seconds())
			each = append(each, r.Ran.Seconds()/float64(r.Entities))
		}
	}
	return Pages{spreadOf(entities), spreadOf(seconds), spreadOf(each)}
}
