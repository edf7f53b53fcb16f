package split

import (
	"cmp"
	"slices"
	"time"
)

// An Outlook is an estimate of a job's remaining work. It is added up from the records of the job's
// open ranges, which are not done yet.
type Outlook struct {
	Open     int64         // estimated number of open ranges
	Entities int64         // the estimated number of entities in the open ranges
	Rest     time.Duration // the time that the mapper's function needs for these entities
}

// Waiting reports whether at least one of the workers is idle, because there are fewer open ranges
// than workers. It returns false if no range is open.
func (o Outlook) Waiting(workers int64) bool { return o.Open > 0 && o.Open < workers }

// Unseen returns the assumed outlook of a job that has just started: each worker has fairShare
// entities to process. The argument each is the function's time for one entity.
func Unseen(fairShare, workers int64, each time.Duration) Outlook {
	return Outlook{Open: workers, Entities: fairShare * workers, Rest: times(fairShare*workers, each)}
}

// An OpenRange holds the facts from the record of an open range.
type OpenRange struct {
	Estimate int64 // the estimated number of entities in the range
	// Pace is the function's mean time for an entity, measured near the place where the range was
	// cut off. It is 0 if it was not measured.
	Pace time.Duration
	Age  time.Duration // the time since the record was written
}

// OutlookOf estimates a job's remaining work from a random choice of its open ranges. The argument
// part is their share of all open ranges. For a range without a measured pace, each is the
// function's time for one entity. The argument full is the number of entities in a full page.
//
// OutlookOf assumes that the ranges that have been open longest are being processed. It subtracts
// the entities that a worker has probably processed there since the range's record was written.
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
