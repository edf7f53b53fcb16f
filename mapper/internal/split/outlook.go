package split

import (
	"cmp"
	"slices"
	"time"
)

// An Outlook is what is left of a job: what the records of its open ranges say.
type Outlook struct {
	Open     int64         // how many there are, about
	Entities int64         // in them
	Rest     time.Duration // that the function still takes on these
}

// Waiting reports whether some of so many workers have nothing to do.
func (o Outlook) Waiting(workers int64) bool { return o.Open > 0 && o.Open < workers }

// Unseen is the outlook for a job of which nothing is done: a fair share for each of its workers,
// where the function takes so long for each entity.
func Unseen(fairShare, workers int64, each time.Duration) Outlook {
	return Outlook{Open: workers, Entities: fairShare * workers, Rest: times(fairShare*workers, each)}
}

// An OpenRange is what the record of an open range says.
type OpenRange struct {
	Estimate int64         // of its entities
	Pace     time.Duration // that was seen where it was cut off, of an entity; 0: none
	Age      time.Duration // of the record
}

// OutlookOf returns the outlook by some open ranges, which are a random part of all, of a job with
// so many entities on a full page. Where no pace was seen the function takes so long for each
// entity. The workers are at those that have been open longest, for about as long, and make the
// calls of their pages besides.
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
