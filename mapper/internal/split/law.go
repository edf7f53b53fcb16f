package split

import "time"

// A Load holds the facts by which a running task decides how much of its range to keep, and how
// much of it to give to other workers.
type Load struct {
	Left    int64         // number of remaining entities in the range, counted or estimated
	Here    time.Duration // the function's mean time for an entity, measured in this range
	Full    int64         // number of entities in a full page of the job
	Page    int64         // number of entities in the task's next page
	Workers int64         // number of the job's workers
	Query   time.Duration // the time until a query for the range's entities returns its first result
	Task    time.Duration // the time from the creation of a task to its delivery by the queue; 0: unknown
	Outlook               // the job's remaining work, as last estimated
	Age     time.Duration // the time since Outlook was read
	Known   time.Duration // the time since the task read its first Outlook
}

// The constants of the law of cutting, see [Load.Keep].
const (
	// tolerance is how much more than its even part (see [Load.Even]) a task may keep while no
	// worker is idle, as a share of this part.
	tolerance = 0.5
	// rounding is the unit to which numbers of entities are rounded, as a share of what the task
	// keeps, but at most a page. So rounding changes a number by at most 1/16 of what the task
	// keeps.
	rounding = 0.125
	// worthOf is the factor between the cost of a task and the least work that is given away. If
	// two queries take longer, the least work is their time, because one query finds where the
	// given part starts, and another one reads it.
	worthOf = 2
	// pageCalls is the assumed cost of a page of entities without the function: twice the time of
	// its calls to the database. A query, a read and a commit take 75 ms [package bench].
	pageCalls = 150 * time.Millisecond

	// soonest is how long the function must have run on a page of entities before the page may end
	// early for idle workers.
	soonest = 100 * time.Millisecond
	// lookOf sets how often a task reads the job's open ranges. The time between two reads is 10%
	// of the time that the job still needs, but at most 10% of the time since the first read.
	lookOf    = 0.1
	lookEvery = 250 * time.Millisecond // the shortest time between two reads of an Outlook
)

// WorthTask is the least running time of the mapper's function for which a separate task is worth
// its cost. The task and its two commits cost about as much time, unless the queue is slow (see
// [Load.cost]).
const WorthTask = 200 * time.Millisecond

// Keep decides by the law of cutting how many of its remaining entities the task keeps. It gives
// the others away in pieces. The result each is the length of the first pieces, in entities;
// [Piece.Give] makes later ones longer. If the task keeps everything, each is 0.
//
// The law: The job's remaining work, measured in time, is divided equally among all workers. So all
// of them would end together, after one even part each. A task may keep one even part. It gives
// away the excess in pieces of one even part each, if the excess is worth a task. While no worker
// is idle, it gives away only a large excess, because a small one can still be corrected later.
//
// The task that takes a piece decides by the same law, when less time remains. So pieces become
// shorter and shorter, down to the least work that is worth a task. All workers end at about the
// same time.
//
// The law is factoring (Hummel, Schonberg and Flynn, 1992): the rest is handed out in batches of
// equal pieces, and each batch is a fixed part of the rest. Here the parts are of time instead of
// iterations, weighted by the measured pace (Banicescu, Velusamy and Devaprasad, 2003). There is
// one difference: a worker keeps its first range while it is in time.
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
	page := max(1, min(time.Duration(l.Page), part(rounding, mine)/here)) // or round to a part of a page
	pages := func(t time.Duration) time.Duration { return (t + here*page/2) / (here * page) }
	return min(l.Left, int64(pages(mine)*page)), int64(max(1, pages(piece)) * page)
}

// Even returns the even part in the law of cutting ([Load.Keep]): the time that each worker still
// works if all workers share the job's remaining work equally. The remaining work of the job is at
// least the rest of this range.
func (l Load) Even() time.Duration {
	workers := max(1, l.Workers)
	rest := l.Rest + times(l.Entities, callsOf(l.Full)) - times(min(workers, max(1, l.Open)), l.Age)
	return max(rest, times(l.Left, l.Here+callsOf(l.Full))) / time.Duration(workers)
}

// cost returns the time that giving work to another task costs, in addition to the function's time.
func (l Load) cost() time.Duration { return max(WorthTask, l.Task) }

// worth returns the least work that is worth giving to another task, as running time of the
// function.
func (l Load) worth() time.Duration { return max(worthOf*l.cost(), 2*l.Query) }

// callsOf returns how long the calls of a page to the database take for each of its entities. The
// argument full is the number of entities in a full page.
func callsOf(full int64) time.Duration { return pageCalls / time.Duration(max(1, full)) }

// longest is the upper bound of a job's remaining work: a hundred years of one worker. It is small
// enough that the sum of two such times is a valid time.Duration.
const longest = 100 * 365 * 24 * time.Hour

// times returns n times a duration, but at most longest.
func times(n int64, each time.Duration) time.Duration {
	return time.Duration(min(float64(n)*float64(each), float64(longest)))
}

// EndsPage reports whether a page should end early, so that idle workers can take its work. The
// parameter ran is how long the function has run on the page so far, and left is the number of
// entities that remain in the page. EndsPage returns true in two cases:
//
//   - By the law of cutting ([Load.Keep]), the task would give away some of the page's remaining
//     entities.
//   - By this law, the task would give away entities after the page, and a worker is idle now.
func (l Load) EndsPage(ran time.Duration, left int64) bool {
	if ran < soonest || times(left, l.Here) < l.cost() {
		return false
	}
	keep, _ := l.Keep()
	return keep < l.Left && (keep < left || l.Waiting(l.Workers))
}

// LookEvery returns how long the task may use the same Outlook before it reads the job's open
// ranges again to update it.
func (l Load) LookEvery() time.Duration {
	return max(lookEvery, part(lookOf, min(l.Even(), l.Known)))
}

func part(of float64, t time.Duration) time.Duration { return time.Duration(of * float64(t)) }

// Give returns the plan by which a task gives away the end of its piece. The task has already
// processed the first dealt entities, and keeps the next keep entities. The rest is cut into pieces
// for other workers. The first pieces, one for each worker, have each entities.
//
// Later pieces are longer: each is twice as long as the previous one, because little is known about
// entities far away. If the piece's entities were not counted, a few more pieces are planned after
// its estimated end. There are at most MaxFanOut pieces.
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

// beyondEstimate is the number of pieces that are planned after the estimated end of a range that
// was not counted. Each is twice as long as the previous one. So they cover the range even if it is
// far longer than estimated.
const beyondEstimate = 4

// mostNear is the largest number of pieces of equal length that a task gives away. MaxFanOut leaves
// room for 40 more, each twice as long as the previous one. These reach the end of any range.
const mostNear = MaxFanOut - 40
