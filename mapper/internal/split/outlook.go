package split

import (
	"cmp"
	"slices"
	"time"
)

// An Outlook is a job's remaining work, added up from the records of its open ranges.
type Outlook struct {
	Open     int64         // the number of open ranges, estimated
	Entities int64         // the entities in them
	Rest     time.Duration // the function's time for these entities
}

// Waiting reports whether some of the workers are idle.
func (o Outlook) Waiting(workers int64) bool { return o.Open > 0 && o.Open < workers }

// Unseen returns the outlook for a job before any of its work is done: every worker has one fair
// share. each is the function's time for an entity.
func Unseen(fairShare, workers int64, each time.Duration) Outlook {
	return Outlook{Open: workers, Entities: fairShare * workers, Rest: times(fairShare*workers, each)}
}

// An OpenRange is what the record of an open range says.
type OpenRange struct {
	Estimate int64         // of its entities
	Pace     time.Duration // the function's time for an entity, measured where the range was cut off; 0: not measured
	Age      time.Duration // the time since the record was written
}

// OutlookOf estimates the outlook from a random sample of the open ranges. part is the sample's
// share of all open ranges. each is the function's time for an entity where no pace was measured.
// full is the number of entities on a full page.
//
// Workers are assumed to be at the ranges that have been open longest. For each of these it
// subtracts the entities that a worker has processed since, with the time of its pages' calls.
func OutlookOf(some []OpenRange, part float64, workers int64, each time.Duration, full int64) Outlook {
	slices.SortFunc(some, func(a, b OpenRange) int { return cmp.Compare(b.Age, a.Age) })
	var o Outlook
	for i, r := range some {
		pace, n := cmp.Or(r.Pace, each), r.Estimate
		if float64(i) < float64(workers)*part {
			n = max(0, n-int64(r.Age/max(1, pace+callsOf(full))))
		}
		o.Rest = min(o.Rest+times(n, pace), longest)
		o.Entities += n
	}
	all := func(n int64) int64 { return int64(min(float64(n)/part+0.5, float64(longest))) }
	return Outlook{Open: all(int64(len(some))), Entities: all(o.Entities), Rest: time.Duration(all(int64(o.Rest)))}
}
