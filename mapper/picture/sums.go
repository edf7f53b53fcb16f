package picture

import (
	"slices"
	"time"
)

// A Moment is one part of a job's time, with what the job did in it: see [Picture.Series].
type Moment struct {
	From time.Time `json:"from"`
	Rate float64   `json:"rate"` // entities a second; a page's entities are spread over the time of its delivery
	Busy float64   `json:"busy"` // tasks in flight, on average: an estimate, without pages that are not committed yet
}

// Series returns what the job did in each of n equal parts of its time so far. n must
// be at least 1.
func (p *Picture) Series(n int) []Moment {
	took := max(time.Duration(n), p.Until.Sub(p.Begun))
	part := took / time.Duration(n)
	all, timing := make([]Moment, n), p.timing()
	for i := range all {
		all[i].From = p.Begun.Add(time.Duration(i) * part)
	}
	at := func(t time.Time) int { return min(n-1, max(0, int(t.Sub(p.Begun)/part))) }
	for i := range p.Ranges {
		r := &p.Ranges[i]
		if r.Done.IsZero() || r.State == Failed {
			continue
		}
		began := timing.began(r)
		took := r.Done.Sub(began)
		if took <= 0 {
			all[at(r.Done)].Rate += r.weight() / part.Seconds()
			continue
		}
		for k := at(began); k <= at(r.Done); k++ {
			from, to := all[k].From, all[k].From.Add(part)
			if began.After(from) {
				from = began
			}
			if r.Done.Before(to) {
				to = r.Done
			}
			share := max(0, to.Sub(from).Seconds())
			all[k].Rate += r.weight() * share / took.Seconds() / part.Seconds()
			all[k].Busy += r.Stands * share / part.Seconds()
		}
	}
	return all
}

// A Level has the ranges of one depth: see [Picture.Levels]. If the picture is a sample, its
// numbers are estimates.
type Level struct {
	Depth    int64   `json:"depth"`
	Ranges   float64 `json:"ranges"`   // ranges of this depth
	Open     float64 `json:"open"`     // the number of Ranges that are not done
	Entities float64 `json:"entities"` // processed by them, or expected in the open ones
}

// Levels returns the job's ranges by depth, the root first: how its work fanned out. Ranges of
// single entities do not count, because their entities are also part of a page.
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
		l.Ranges += r.Stands
		l.Entities += r.weight()
		if r.Done.IsZero() {
			l.Open += r.Stands
		}
	}
	return all
}

// A Spread has quantiles of some numbers: half of them are at most Half, and so on. All are 0 if
// there are no numbers.
type Spread struct {
	Half    float64 `json:"p50"`
	Ninety  float64 `json:"p90"`
	Hundred float64 `json:"p99"` // 99 of 100 numbers are at most this
	Most    float64 `json:"max"`
}

func spreadOf(all []float64) Spread {
	slices.Sort(all)
	return Spread{quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99), quantile(all, 1)}
}

// Pages has statistics of a job's pages: see [Picture.Pages].
type Pages struct {
	Entities Spread `json:"entities"`   // entities of a page
	Seconds  Spread `json:"seconds"`    // the function's time for a page, in seconds
	Each     Spread `json:"per_entity"` // the function's time for an entity, in seconds
}

// Pages returns statistics of the job's pages that are done and had entities.
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
