package pace

import "time"

// Credit is how much later than allowed a job may use its rate without losing it. Without this
// credit, a worker that comes a moment too late would lower the rate.
const Credit = time.Second

// A Clock records up to which time a job's rate is reserved. Each reservation has the whole rate
// for a span of time. For example, a page that uses the rate for 2 s starts 2 s before the next
// page.
type Clock struct {
	Until time.Time // the end of the last reservation
	At    time.Time // time of the last reservation
	Ahead float64   // about the number of pages that had not started at that time
}

// A Queue describes the pages that have reserved the rate before a given page: how long they use
// the rate, and about how many pages they are.
type Queue struct {
	Wait  time.Duration
	Pages float64
}

// An Ask decides what to reserve when it knows the reservations before it. The result cost is the
// time in which the whole rate is used, and pages is the number of pages for which it is.
type Ask func(q Queue) (cost time.Duration, pages int64)

// Reserve reserves the time that ask decides. It returns the start of the reservation, and the
// reservations before it. The start is after all earlier reservations, and at most [Credit] in the
// past.
func (c *Clock) Reserve(now time.Time, ask Ask) (begin time.Time, q Queue) {
	if !c.Until.After(now) {
		c.Ahead = 0
	} else if now.After(c.At) {
		c.Ahead *= float64(c.Until.Sub(now)) / float64(c.Until.Sub(c.At))
	}
	if begin = now.Add(-Credit); c.Until.After(begin) {
		begin = c.Until
	}
	q = Queue{Wait: max(0, begin.Sub(now)), Pages: c.Ahead}
	cost, pages := ask(q)
	c.Until, c.At, c.Ahead = begin.Add(cost), now, c.Ahead+float64(pages)
	return begin, q
}
