package split

import "time"

// A Load has the facts by which a task decides how much of its range to keep, after it has
// processed some entities of it.
type Load struct {
	Left    int64         // number of remaining entities in the range, exact if known, or an estimate
	Here    time.Duration // the function's time for one of these entities
	Full    int64         // number of entities in a full page of the job
	Page    int64         // number of entities in the task's next page
	Workers int64         // number of the job's workers
	Query   time.Duration // the time until a query for the range's entities has a result
	Task    time.Duration // the time from the creation of a task to its delivery; 0: unknown
	Outlook               // the job's remaining work
	Age     time.Duration // the time since Outlook was read
	Known   time.Duration // the time since the task first read an Outlook of the job
}

// The constants of the law of cutting, see Load.Keep.
const (
	// tolerance is the share of an even part by which a task may keep more than that, while no
	// worker is idle.
	tolerance = 0.5
	// rounding is the unit to which numbers of entities are rounded, as a share of what the task
	// keeps. The unit is at most a page. So rounding changes a number by at most 1/16 of what the
	// task keeps.
	rounding = 0.125
	// worthOf is the least work, in time, that is given away, as a multiple of a task's cost. If
	// two queries take longer, the least work is their time: one query finds where the piece
	// starts, and one reads it.
	worthOf = 2
	// pageCalls is the cost of a page besides the function: twice the time of its calls. A query, a
	// read and a commit take 75 ms [package bench].
	pageCalls = 150 * time.Millisecond

	// soonest is the running time of the function on a page before the page may end early.
	soonest = 100 * time.Millisecond
	// lookOf sets the time between two reads of a job's open ranges. It is this share of the time
	// that the job still needs, or of the time since the first read if that is less.
	lookOf    = 0.1
	lookEvery = 250 * time.Millisecond // the shortest time between two reads of an Outlook
)

// WorthTask is the least running time of the function for which a task of its own is worth its
// cost. The task and its two commits take about as long, unless the queue takes longer to deliver
// it, see [Load.cost].
const WorthTask = 200 * time.Millisecond

// Keep returns how many of its remaining entities the task keeps, by the law of cutting. The task
// gives the others away in pieces. The result each is the number of entities in each of the first
// pieces; [Piece.Give] makes later ones longer. If the task keeps everything, each is 0.
//
// The job's remaining work, measured in time, is shared by all workers. If all stay busy, they end
// together, after an even part each. So a task may keep an even part. It gives away the excess, in
// pieces of one even part each, if the excess is worth a task. While no worker is idle it gives
// away only a large excess, because there is time to correct a small one.
//
// The task that takes a piece decides by the same law, with less time remaining. So late work is
// handed out in ever shorter pieces, down to what is worth a task. All workers end at about the
// same time.
//
// The law is factoring (Hummel, Schonberg and Flynn, 1992). The rest is handed out in batches of
// equal pieces, and each batch is a fixed part of it. Here the parts are of time instead of
// iterations, weighted by the measured pace (Banicescu, Velusamy and Devaprasad, 2003). One thing
// differs: a worker keeps its first range while it is in time.
func (l Load) Keep() (keep, each int64) {
	here := l.Here + callsOf(l.Full)
	left, even := times(l.Left, here), l.Even()
	worth := l.worth()
	mine, piece, slack := max(even, worth/2), max(even, worth), part(tolerance, even)
	if l.Waiting(l.Workers) {
		slack = 0
	}
	if left-mine < max(slack, worth) {
		return l.Left, 0
	}
	page := max(1, min(time.Duration(l.Page), part(rounding, mine)/here)) // or a part of one
	pages := func(t time.Duration) time.Duration { return (t + here*page/2) / (here * page) }
	return min(l.Left, int64(pages(mine)*page)), int64(max(1, pages(piece)) * page)
}

// Even returns an even part: the time that each worker still works if all workers share the job's
// remaining work equally. The job's remaining work is at least what remains in this range.
func (l Load) Even() time.Duration {
	workers := max(1, l.Workers)
	rest := l.Rest + times(l.Entities, callsOf(l.Full)) - times(min(workers, max(1, l.Open)), l.Age)
	return max(rest, times(l.Left, l.Here+callsOf(l.Full))) / time.Duration(workers)
}

// cost returns how much time a task costs besides the function.
func (l Load) cost() time.Duration { return max(WorthTask, l.Task) }

// worth returns the least amount of work, as the running time of the function, that the task gives
// away. Less would not be worth the cost of another task.
func (l Load) worth() time.Duration { return max(worthOf*l.cost(), 2*l.Query) }

// callsOf returns how long the calls of a page take for each of its entities. A page has full
// entities.
func callsOf(full int64) time.Duration { return pageCalls / time.Duration(max(1, full)) }

// longest is the upper bound of a job's remaining work: a hundred years of one worker. The sum of
// two such times fits into a time.Duration.
const longest = 100 * 365 * 24 * time.Hour

// times returns n times a duration, but at most longest.
func times(n int64, each time.Duration) time.Duration {
	return time.Duration(min(float64(n)*float64(each), float64(longest)))
}

// EndsPage reports whether a page should end early, so that idle workers can take work. The
// function has run on the page for ran. The page has left more entities. EndsPage returns true in
// two cases:
//   - By the law of cutting, the task would give away some of the page's remaining entities.
//   - The task would give away entities after the page, and a worker is idle now.
func (l Load) EndsPage(ran time.Duration, left int64) bool {
	if ran < soonest || times(left, l.Here) < l.cost() {
		return false
	}
	keep, _ := l.Keep()
	return keep < l.Left && (keep < left || l.Waiting(l.Workers))
}

// LookEvery returns how long the task may use its Outlook before it reads the job's open ranges
// again.
func (l Load) LookEvery() time.Duration {
	return max(lookEvery, part(lookOf, min(l.Even(), l.Known)))
}

func part(of float64, t time.Duration) time.Duration { return time.Duration(of * float64(t)) }

// Give returns the plan by which a task gives away the end of its piece. The task has processed the
// first dealt entities, and keeps the next keep. Of the rest, each worker gets a piece of each
// entities.
//
// Pieces after these are longer: each is twice as long as the one before, because little is known
// about far entities. If the piece's entities were not counted, a few pieces lie after its
// estimated end. There are at most MaxFanOut pieces.
func (s Piece) Give(dealt, keep, each, workers int64) CutPlan {
	keep += dealt
	near := min(max(1, workers), mostNear)
	lengths, more := []int64{}, 0
	for rest := s.Estimate - keep - each; rest > 0 || !s.Exact && more < beyondEstimate; rest -= each {
		if lengths = append(lengths, each); rest <= 0 {
			more++
		}
		if int64(len(lengths)) >= near || more > 0 {
			each *= 2
		}
	}
	return CutPlan{Pieces: int64(len(lengths)) + 2, Keep: keep, lengths: lengths, near: int(near)}
}

// beyondEstimate is how many pieces are cut off after the estimated end of a range that was not
// counted, because it may be longer. Each is twice as long as the one before, so a few of them
// reach far.
const beyondEstimate = 4

// mostNear is the largest number of pieces of equal length that are cut off. MaxFanOut allows 40
// more. Each of these is twice as long as the one before, so they reach the end of any range.
const mostNear = MaxFanOut - 40
