package pace

import "time"

// Credit is for how long what a job's rate allowed may be used later. Without it, a worker that
// comes a moment too late would lower the rate.
const Credit = time.Second

// A Clock says how much of a job's rate its pages have reserved. A page that costs 2 s of the rate
// begins 2 s before the next one.
type Clock struct {
	Until time.Time // all before is reserved
	At    time.Time // when the last page reserved
	Ahead float64   // pages that had not begun then, about
}

// Reserve reserves a cost for some pages, and returns when that begins: after all that was reserved
// before, and at most [Credit] in the past.
func (c *Clock) Reserve(now time.Time, cost time.Duration, pages int64) (begin time.Time) {
	if !c.Until.After(now) {
		c.Ahead = 0
	} else if now.After(c.At) {
		c.Ahead *= float64(c.Until.Sub(now)) / float64(c.Until.Sub(c.At))
	}
	if begin = now.Add(-Credit); c.Until.After(begin) {
		begin = c.Until
	}
	c.Until, c.At, c.Ahead = begin.Add(cost), now, c.Ahead+float64(pages)
	return begin
}
