package split

import "time"

// A Load is what a task knows, behind some entities of its range, when it decides how much of what
// is left it keeps.
type Load struct {
	Left    int64         // entities of the range, as far as is known
	Here    time.Duration // that the function takes for each of them
	Full    int64         // entities of a page of the job,
	Page    int64         // and of the next one here
	Workers int64         // of the job
	Query   time.Duration // that a query of its entities takes, until it has a result
	Outlook               // for the job, so long ago:
	Age     time.Duration
	Known   time.Duration // since there is any outlook
}

// The constants of the law.
const (
	slackOf = 0.5 // of an even part: by so much what is kept may be more while nobody waits
	// of what is kept: by half of that it may be more or less, so that pages are full
	partOf = 0.125
	// what is given away takes at least, and two queries: one finds where it begins, and one reads
	// it
	worthOf = 2 * WorthTask
	// what a page costs beside the function: twice what its calls take [package bench: 75 ms for a
	// query, a read and a commit]
	pageCalls = 150 * time.Millisecond

	soonest = 100 * time.Millisecond // a page does not end early before the function has run for so long
	// the pause between two looks at a job's ranges, as a part of what the job still takes or has
	// been looked at,
	lookOf    = 0.1
	lookEvery = 250 * time.Millisecond // and at least
)

// WorthTask is how long the function has to take on entities that are worth a task of their own:
// the task and its two commits take about as long.
const WorthTask = 200 * time.Millisecond

// Keep is the law of cutting: of the entities that are left, the task keeps the first, and leaves
// the others to workers that have nothing to do, in pieces of each so many. It keeps all if nothing
// is worth a task.
//
// What is left of the job, in time, is shared by all of its workers: if they all were busy until
// the end, it would come when each has done an even part of that. So that is what a task may keep.
// What it would end later with is what it gives away, in pieces of an even part each, if that is
// worth a task; while nobody waits, only if it is much, as there is time to change that. Whoever
// takes a piece up decides in the same way, with less time left. So what is late is handed out in
// pieces that become shorter and shorter, down to what is worth a task, and all workers end at
// about the same time.
//
// It is factoring (Hummel, Schonberg and Flynn, 1992: what is left is handed out in batches of
// equal pieces, each batch a fixed part of it), of time and not of iterations, and weighted by the
// pace that was measured (Banicescu, Velusamy and Devaprasad, 2003); but a worker keeps what it
// began with for as long as it is in time.
func (l Load) Keep() (keep, each int64) {
	here := l.Here + l.calls()
	left, even := times(l.Left, here), l.Even()
	worth := max(worthOf, 2*l.Query)
	mine, piece, slack := max(even, worth/2), max(even, worth), part(slackOf, even)
	if l.Waiting(l.Workers) {
		slack = 0
	}
	if left-mine < max(slack, worth) {
		return l.Left, 0
	}
	page := max(1, min(time.Duration(l.Page), part(partOf, mine)/here)) // or a part of one
	pages := func(t time.Duration) time.Duration { return (t + here*page/2) / (here * page) }
	return min(l.Left, int64(pages(mine)*page)), int64(max(1, pages(piece)) * page)
}

// Even returns what each worker has left to do if all of them have the same: at least of what is
// left here.
func (l Load) Even() time.Duration {
	workers := max(1, l.Workers)
	rest := l.Rest + times(l.Entities, l.calls()) - times(min(workers, max(1, l.Open)), l.Age)
	return max(rest, times(l.Left, l.Here+l.calls())) / time.Duration(workers)
}

func (l Load) calls() time.Duration { return callsOf(l.Full) }

// callsOf returns an entity's part of the calls of its page.
func callsOf(full int64) time.Duration { return pageCalls / time.Duration(max(1, full)) }

// longest bounds what is left of a job: a hundred years of a worker. Two of them can be added.
const longest = 100 * 365 * 24 * time.Hour

// times returns how long it takes to do something n times.
func times(n int64, each time.Duration) time.Duration {
	return time.Duration(min(float64(n)*float64(each), float64(longest)))
}

// EndsPage reports whether a page ends early, with so many of its entities left, once the function
// has run on it for a time: some of these are to be given away, or what is behind them, and
// somebody waits for that.
func (l Load) EndsPage(ran time.Duration, left int64) bool {
	if ran < soonest || times(left, l.Here) < WorthTask {
		return false
	}
	keep, _ := l.Keep()
	return keep < l.Left && (keep < left || l.Waiting(l.Workers))
}

// LookEvery returns how long an outlook for the job is good enough.
func (l Load) LookEvery() time.Duration {
	return max(lookEvery, part(lookOf, min(l.Even(), l.Known)))
}

func part(of float64, t time.Duration) time.Duration { return time.Duration(of * float64(t)) }

// Give returns the plan by which a task that has dealt with some entities of a piece keeps so many
// more, and gives the others away: a piece of each so many entities for every worker, and what is
// behind these in pieces that are twice as long as the one before, because little is known of what
// is far away: also behind the estimate, if that is one. There are up to MaxFanOut pieces.
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

// beyondEstimate is how many pieces are cut off behind the estimate of a range that was not
// counted: it may be longer. Their lengths double, so that a few reach far where the pieces before
// them have doubled.
const beyondEstimate = 4

// mostNear leaves room for as many pieces as double the length of a range until it has any entity
// that there may be.
const mostNear = MaxFanOut - 40
