package split

import "time"

// A Load is what a task knows, behind some entities of its range, when it decides how much of what is left it
// keeps.
type Load struct {
	Left      int64         // entities of the range, as far as is known
	Here      time.Duration // that the function has taken for each of those behind,
	Job       time.Duration // and for each of the job's, on average; 0: unknown
	FairShare int64         // of one worker, in entities of the job
	Elapsed   time.Duration // since the job has been running
	Begun     time.Duration // of that, until its first page began in this process
	Page      int64         // entities of the next page,
	Full      int64         // and of a page of the job
}

// The constants of the law.
const (
	pieceOf   = 0.25                  // of a fair share, or of the range if that is less, in each piece
	grainOf   = 0.05                  // of a fair share: what a task keeps, and a piece has, at least
	startOf   = 0.25                  // of a fair share: what the start of the job may take, without which all seem late
	worthOf   = 2 * WorthTask         // what is given away takes at least
	pageCalls = 75 * time.Millisecond // what the calls of a page take [package bench: a query, a read and a commit]
	soonest   = time.Second           // behind its beginning, and before its end, a page ends early,
	soonestOf = 0.1                   // or so much of a fair share, if that is more
)

// WorthTask is how long the function has to take on entities that are worth a task of their own: the
// task and its two commits take about as long.
const WorthTask = 200 * time.Millisecond

// Keep is the law of cutting: of the entities that are left, the task keeps the first, and leaves the others to
// workers that have nothing to do, in pieces of each so many. It keeps all if nothing is worth a task.
//
// If all workers were busy until the job's end, it would end once it has run for as long as a worker's fair share
// of all entities takes at the job's own pace. So that is until when a task may go on, at the pace that it has seen
// here, and what it would end later with is what it gives away: in pieces of a quarter of a fair share, or of what is
// left here if that is less. Their tasks do the same when their turn comes, with less time left. So what is late is
// handed out in pieces that become shorter and shorter, down to what is worth a task, and all workers end at
// about the same time.
//
// It is factoring (Hummel, Schonberg and Flynn, 1992: what is left is handed out in batches of equal pieces, each
// batch a fixed part of it), of time and not of iterations, and weighted by the pace that was measured
// (Banicescu, Velusamy and Devaprasad, 2003); but a worker keeps what it began with for as long as it is in time.
func (l Load) Keep() (keep, each int64) {
	calls := pageCalls / time.Duration(max(1, l.Full))
	here, job := l.Here+calls, l.Job+calls
	if l.Job == 0 {
		job = here
	}
	share, left := time.Duration(l.FairShare)*job, time.Duration(l.Left)*here
	grain := part(grainOf, share)
	mine := max(share+min(l.Begun, part(startOf, share))-l.Elapsed, grain, worthOf/2)
	if left-mine < worthOf {
		return l.Left, 0
	}
	piece := max(part(pieceOf, min(share, left)), grain, worthOf)
	page := max(1, min(time.Duration(l.Page), piece/here)) // or a part of one
	pages := func(t time.Duration) time.Duration { return (t + here*page/2) / (here * page) }
	return min(l.Left, int64(pages(mine)*page)), int64(max(1, pages(piece)) * page)
}

// Soonest returns how long a page has run at least, and would go on for, if it ends early, so that others can begin
// with what its task would end late with.
func (l Load) Soonest() time.Duration {
	return max(soonest, part(soonestOf, time.Duration(l.FairShare)*l.Job))
}

func part(of float64, t time.Duration) time.Duration { return time.Duration(of * float64(t)) }

// Give returns the plan by which a task that has dealt with some entities of a piece keeps so many more, and
// gives the others away. There are up to MaxFanOut pieces.
func (s Piece) Give(dealt, keep, each int64) CutPlan {
	keep += dealt
	n := (s.Estimate - keep + each - 1) / each
	if n > MaxFanOut {
		each = (s.Estimate - keep + MaxFanOut - 1) / MaxFanOut
		n = MaxFanOut
	}
	return CutPlan{Pieces: 1 + n, Keep: keep, each: each}
}
