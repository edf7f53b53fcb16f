package estimate

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Phase says what a job does or waits for. It is more detailed than the job's state.
type Phase string

// The phases of jobs.
const (
	Queued         Phase = "queued"
	Starting       Phase = "starting"
	Processing     Phase = "processing"
	RateLimited    Phase = "rate limited"
	GivingWay      Phase = "giving way"
	Slowed         Phase = "slowed"
	Retrying       Phase = "retrying"
	Stuck          Phase = "stuck"
	Finishing      Phase = "finishing"
	Draining       Phase = "draining"
	Held           Phase = "paused"
	OverBudget     Phase = "over budget"
	TooManyFailing Phase = "too many failures"
	Over           Phase = "ended"
)

// dependsOnOthers reports whether in this phase something outside the job stops or slows the job,
// such as its queue. Then the time of the job's end can't be estimated.
func (p Phase) dependsOnOthers() bool {
	return p == Queued || p == Stuck || p == Slowed || p == GivingWay
}

// A Queue describes the queue that delivers the job's tasks.
type Queue struct {
	Complaint string // why the queue can't deliver the tasks; empty if it can, or if that is unknown
	Waits     bool   // whether the queue has not yet delivered the task that is overdue longest
	// if Waits: the number of other running jobs in the same queue, or Unknown. If it is ManyOthers,
	// there may be more.
	Others int
	Named  [3]string // the IDs of up to three of these jobs
	Name   string
}

// ManyOthers is the largest number of other jobs in a queue that are counted.
const ManyOthers = 10

// Shares returns the IDs of up to three other running jobs in the queue, if the job's tasks wait.
func (q Queue) Shares() (ids []string) {
	for _, id := range q.Named {
		if id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// slowStart is how long a job may wait for the first delivery of a task before its phase is Queued.
const slowStart = 5 * time.Second

// phase returns what the job does or waits for, and a text for people that says why the job is not
// faster. The argument rate is the job's speed in entities a second.
func (l Look) phase(rate float64) (Phase, string) {
	j := l.Job
	switch {
	case !j.Unfinished():
		return Over, ""
	case j.State == record.Paused:
		return l.pausedPhase()
	case l.Queue.Complaint != "":
		return Stuck, l.Queue.Complaint
	}
	trouble := cmp.Or(j.Error, j.Trouble)
	s := l.Totals.Sample
	if s == nil || len(s.Open) == 0 && l.Totals.Pending == 0 {
		p, why := l.phaseAtEnd()
		return p, cmp.Or(trouble, why)
	}
	idle := l.idle()
	if l.Queue.Waits && l.sinceDue() > slowStart && idle > max(2*slowStart, 2*l.slowestPage()) {
		return Queued, cmp.Or(trouble, l.Queue.says())
	}
	if until := l.backsOffUntil(); !until.IsZero() {
		return Retrying, cmp.Or(trouble, fmt.Sprintf("%s left, %s",
			entities(l.Totals.Pending, "the failed entity is", "failed entities or pages are"),
			fmt.Sprintf("the next attempt is due in %s", roughly(until.Sub(l.Now)))))
	}
	limit, err := j.RateLimit()
	says := ""
	if err == nil {
		says = limit.Says(l.Now.Sub(j.RampBegan()))
	}
	if l.Queue.shared() {
		says = cmp.Or(says, l.Queue.says())
	}
	switch {
	case idle > l.stuckAfter():
		return Stuck, cmp.Or(trouble, fmt.Sprintf("no page was done for %s: if its tasks were lost, a sweep enqueues "+
			"them again within minutes", roughly(idle)))
	case len(s.Ends) == 0:
		return Starting, cmp.Or(trouble, says)
	case says != "" && limit.Near(rate, l.Totals.PerEntity(j), l.Now.Sub(j.RampBegan())):
		return RateLimited, cmp.Or(trouble, says)
	}
	if waits := l.givesWay(); waits != "" {
		return GivingWay, cmp.Or(trouble, waits)
	}
	if slower := l.slowed(); says == "" && slower != "" {
		return Slowed, cmp.Or(trouble, slower)
	}
	return Processing, cmp.Or(trouble, says)
}

// phaseAtEnd returns the phase of a running job without pending ranges, and a text that says why it
// has not ended.
func (l Look) phaseAtEnd() (Phase, string) {
	if l.Job.Retrying {
		return Retrying, "the failed entities are looked up"
	}
	return Finishing, "all entities are done, and the records are added up"
}

// givesWay returns a text for people if the job currently gives way to other clients of the
// database. This is so if it is a background job, and its last pages (see recently) have waited for
// longer than they have worked. Otherwise givesWay returns "".
func (l Look) givesWay() string {
	var worked, waited time.Duration
	n, recently := 0, l.recently()
	for _, e := range l.Totals.Sample.Ends {
		if l.Now.Sub(e.At) < recently {
			worked += max(e.Ran, e.Took()-e.Yielded)
			waited += e.Yielded
			n++
		}
	}
	if !l.Job.Background || waited <= worked {
		return ""
	}
	return fmt.Sprintf("it gives way to other clients: its pages have waited %s each, as more pages at once would "+
		"slow the database down", (waited / time.Duration(n)).Round(100*time.Millisecond))
}

// Conditions under which a job counts as slowed. Its workers must be busy. Its earlier pages of
// entities must be short compared with the time over which its speed is measured.
const (
	slowerBy = 5 // a slowed job is at least this many times slower than before
	// The speed is measured over at least this time.
	leastWindow = 10 * time.Second
	// At least this number of pages must have ended before.
	leastPages = 8
)

// slowed returns a text for people if the job processes far fewer entities a second than before.
// Otherwise it returns "". It compares the last minute (see recently) with the time before. For a
// job younger than two minutes, it compares the two halves of its time.
func (l Look) slowed() string {
	from, s := l.runsSince(), l.Totals.Sample
	elapsed := l.Now.Sub(from)
	window := min(l.recently(), elapsed/2)
	if window < leastWindow || l.Totals.Pending < l.Job.AtOnce() {
		return ""
	}
	var before, recent, pages int64
	var took time.Duration
	for _, e := range s.Ends {
		switch ago := l.Now.Sub(e.At); {
		case ago < window:
			recent += e.Entities
		case ago < elapsed:
			before += e.Entities
			pages++
			took += e.Took()
		}
	}
	if pages < leastPages || took > time.Duration(pages)*window/4 {
		return ""
	}
	was := float64(before) * s.Scale / (elapsed - window).Seconds()
	is := float64(recent) * s.Scale / window.Seconds()
	if is*slowerBy > was {
		return ""
	}
	return fmt.Sprintf("%.0f entities a second in the last %s, %.0f before: the function takes longer, "+
		"or what it calls has become slow", is, roughly(window), was)
}

// runsSince returns when the job was started or last resumed, whichever is later.
func (l Look) runsSince() time.Time {
	if l.Job.RampFrom.After(l.Job.Created) {
		return l.Job.RampFrom
	}
	return l.Job.Created
}

// shared reports whether the job's tasks wait in the queue while other jobs have tasks in it, too.
func (q Queue) shared() bool { return q.Waits && q.Others > 0 }

// idle returns how long ago the job's last page of entities was done. If none is done yet, it
// counts from the start of the job. A sample of the pages seldom has the last one. But the commit of
// a page creates the ranges of what it has left, so the newest open range tells its time.
func (l Look) idle() time.Duration {
	s, from := l.Totals.Sample, l.runsSince()
	if len(s.Ends) > 0 && lastEnd(s).After(from) {
		from = lastEnd(s)
	}
	if s.Scale != 1 || s.LeftScale != 1 {
		for _, r := range s.Open {
			if r.Created.After(from) {
				from = r.Created
			}
		}
	}
	return l.Now.Sub(from)
}

// says returns a text for people that says why a task waits in the queue.
func (q Queue) says() string {
	text := fmt.Sprintf("its tasks wait in the queue %q", q.Name[strings.LastIndex(q.Name, "/")+1:])
	switch {
	case q.Others > 0:
		return text + ", shared with the " + q.others()
	case q.Others == 0:
		return text + ", which delivers none at present: is its concurrency used up?"
	}
	return text
}

// others names the other jobs in the queue, such as "job a", "jobs a and b" or "jobs a, b, c and 2
// others".
func (q Queue) others() string {
	names, least := q.Shares(), ""
	if q.Others == ManyOthers {
		least = "at least "
	}
	if more := int64(q.Others - len(names)); more > 0 {
		names = append(names, least+entities(more, "another one", "others"))
	}
	if len(names) == 1 {
		return "job " + names[0]
	}
	last := len(names) - 1
	return "jobs " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// entities returns the number n with its noun, such as "5 ranges". For 1 it returns the text one,
// and otherwise n followed by the noun several.
func entities(n int64, one, several string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// roughly formats a duration in whole seconds below two minutes, and otherwise in minutes.
func roughly(d time.Duration) string {
	if d < 2*time.Minute {
		return strings.Replace(d.Round(time.Second).String(), "m0s", "m", 1)
	}
	return fmt.Sprintf("%d min", int(d.Minutes()+0.5))
}

// sinceDue returns how long the task that is overdue longest has waited since it was due.
func (l Look) sinceDue() time.Duration {
	overdue := l.Job.Overdue(l.Totals.Sample.Open)
	if overdue == nil {
		return 0
	}
	return l.Now.Sub(overdue.Due())
}

// backsOffUntil returns when the next attempt is due, if all pending ranges wait for another
// attempt after a failed one. Otherwise it returns the zero time.
func (l Look) backsOffUntil() (first time.Time) {
	s := l.Totals.Sample
	if s.LeftScale != 1 {
		return first
	}
	for _, r := range s.Open {
		if !r.NotBefore.After(l.Now) {
			return time.Time{}
		}
		if first.IsZero() || r.NotBefore.Before(first) {
			first = r.NotBefore
		}
	}
	return first
}

// pausedPhase returns the phase of a paused job, and a text that says why it is paused. The phase
// says whether pages of entities are still under way.
func (l Look) pausedPhase() (Phase, string) {
	j := l.Job
	why, at := "paused", time.Time{}
	acts, _ := j.History.Acts() // without a history the pause has no name
	for _, a := range acts {
		if a.To == record.Paused {
			at = a.At
			if why = "paused"; a.By != "" {
				why += " by " + a.By
			}
		}
	}
	why = cmp.Or(j.Error, why)
	switch left := l.longestPage() - l.Now.Sub(at); {
	case left > 0 && l.Totals.Pending > 0:
		return Draining, fmt.Sprintf("%s; pages that are under way finish within %s", why, roughly(left+time.Second))
	case j.OverBudget:
		return OverBudget, why
	case j.Limited:
		return TooManyFailing, why
	}
	return Held, why
}

// longestPage estimates how long a page of entities that has just started may take: twice as long
// as the slowest page so far, but no longer than mostOfPage.
func (l Look) longestPage() time.Duration {
	if slowest := l.slowestPage(); slowest > 0 {
		return min(l.mostOfPage(), 2*slowest)
	}
	return l.mostOfPage()
}

// longestCallWait is how long the first entity of a page may wait for calls of a service, if the
// job's rate limits them. It is a quarter of the usual dispatch deadline of Cloud Tasks.
const longestCallWait = 10 * time.Minute / 4

// mostOfPage returns the longest time that a page of entities may take. If no page ends for longer,
// the job counts as stuck.
func (l Look) mostOfPage() time.Duration {
	most := 2*time.Duration(l.Job.PageTime) + time.Duration(l.Job.Timeout)
	if limit, err := l.Job.RateLimit(); err == nil && limit.CallsPerSecond > 0 {
		most += longestCallWait
	}
	return most
}

// stuckAfter returns the time after which a page of entities that is not done has probably no
// delivery any more.
func (l Look) stuckAfter() time.Duration { return max(l.mostOfPage(), 5*l.slowestPage()) }

// slowestPage returns the time of the slowest page of entities so far, but at least a second. It
// returns 0 if no page is done.
func (l Look) slowestPage() (slowest time.Duration) {
	if l.Totals.Sample == nil || len(l.Totals.Sample.Ends) == 0 {
		return 0
	}
	slowest = time.Second
	for _, e := range l.Totals.Sample.Ends {
		slowest = max(slowest, e.Took())
	}
	return slowest
}
