package main

import "time"

// This file decides how many instances exist, and which instance and revision get a request. It
// uses neither processes nor clocks, so it can be tested alone.

// limits are the settings of a Cloud Run service.
type limits struct {
	min, max    int           // bounds of the number of a revision's instances
	concurrency int           // number of requests that an instance takes at once
	keep        time.Duration // how long an instance without requests stays
}

// target is the share of the instances' concurrency, in tenths, above which the router starts
// another instance. Cloud Run documents 60%.
const target = 6

// A stage is a part of an instance's life.
type stage int

const (
	starting stage = iota // the startup probe of the instance has not succeeded yet
	serving
	ending // the instance was told to end, and gets no more requests
)

// A standing is what the decisions in this file need to know about an instance.
type standing struct {
	stage    stage
	underWay int           // number of requests that the instance is handling
	idle     time.Duration // how long the instance has had no requests
}

// wanted returns the number of instances for a number of requests, including waiting ones.
func (l limits) wanted(requests int) int {
	full := l.concurrency * target
	n := (10*requests + full - 1) / full
	return min(l.max, max(l.min, min(n, requests)))
}

// choose returns the index of the instance for the next request: the one with the fewest requests.
// Of several, it is the oldest. The result is -1 if no instance can take a request.
func (l limits) choose(all []standing) int {
	best := -1
	for i, s := range all {
		if s.stage == serving && s.underWay < l.concurrency && (best < 0 || s.underWay < all[best].underWay) {
			best = i
		}
	}
	return best
}

// missing returns how many further instances to start, if this number of requests is waiting. It
// does not count instances that were told to end.
func (l limits) missing(all []standing, waiting int) int {
	there, underWay := 0, 0
	for _, s := range all {
		if s.stage != ending {
			there++
			underWay += s.underWay
		}
	}
	return max(0, l.wanted(underWay+waiting)-there)
}

// spare returns the indexes of the instances to end: those that were idle for long enough, without
// going below the minimum.
func (l limits) spare(all []standing) (spare []int) {
	there := 0
	for _, s := range all {
		if s.stage != ending {
			there++
		}
	}
	for i, s := range all {
		if there > l.min && s.stage == serving && s.underWay == 0 && s.idle >= l.keep {
			spare = append(spare, i)
			there--
		}
	}
	return spare
}

// busiest returns the index of the instance with the most requests, or -1 if there is none.
func busiest(all []standing) int {
	best := -1
	for i, s := range all {
		if s.stage == serving && (best < 0 || s.underWay > all[best].underWay) {
			best = i
		}
	}
	return best
}

// toNewest reports whether a request goes to the newest revision, whose share of the requests is
// percent. The first request is number 0. Of any hundred successive requests the revision gets
// exactly its percentage, evenly spread.
func toNewest(request, percent int) bool {
	return (request+1)*percent/100 > request*percent/100
}

// patience returns how long a request waits for an instance before it is refused with 429. This is
// 3.5 times the mean time of a start, and at least the duration least. The starts so far have taken
// the duration inAll together. Cloud Run documents 10 s or 3.5 times the mean time of a start.
func patience(least time.Duration, starts int, inAll time.Duration) time.Duration {
	if starts == 0 {
		return least
	}
	return max(least, inAll*7/2/time.Duration(starts))
}
