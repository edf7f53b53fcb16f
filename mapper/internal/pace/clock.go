package pace

import "time"

// Credit is how late a job may use a reserved part of its rate. Time that was not used by then is
// lost. Without this tolerance, workers that are a moment late would lower the job's speed.
const Credit = time.Second

// A Clock records until when a job's rate is reserved. All processes share it in a record of the
// database. Each reservation is a span of time in which one process may use the whole rate. For
// example, if a page of entities needs 2 s of the rate, the next page starts 2 s later.
type Clock struct {
	Until time.Time // the end of the last reservation
	At    time.Time // time of the last reservation
	Ahead float64   // estimated number of pages with reservations that had not started at that time
}

// A Queue describes the reservations that come before a page of entities: how long the page waits
// for them, and for about how many pages they are.
type Queue struct {
	Wait  time.Duration
	Pages float64
}

// An Ask is a function that decides how much of the rate to reserve. It gets the reservations that
// come before. The result cost is the time for which the whole rate is reserved, and pages is the
// number of pages that share this time.
type Ask func(q Queue) (cost time.Duration, pages int64)

// Reserve reserves as much of the rate as ask decides, and returns the start of the reserved time,
// and the reservations before it. The time starts after all earlier reservations, and at most
// [Credit] in the past.
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
