package pace

import "time"

// Credit is how long a job may use its rate later than allowed. Without it, a worker that comes a
// moment too late would lower the rate.
const Credit = time.Second

// A Clock says how much of a job's rate its pages have reserved. A page that costs 2 s of the
// rate starts 2 s before the next one.
type Clock struct {
	Until time.Time // all time before it is reserved
	At    time.Time // time of the last reservation
	Ahead float64   // estimate of the pages that had not started then
}

// A Queue describes the pages that have reserved the rate before a page: how long it waits for
// them, and about how many they are.
type Queue struct {
	Wait  time.Duration
	Pages float64
}

// An Ask decides what to reserve, once the queue before it is known. cost is a time in which the
// whole rate is used, and pages is the number of pages that it is for.
type Ask func(q Queue) (cost time.Duration, pages int64)

// Reserve reserves what ask decides. It returns the start of the reservation, and the queue before
// it. The start is after all earlier reservations, and at most [Credit] in the past.
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
