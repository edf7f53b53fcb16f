package estimate

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Phase says what a job does or waits for. It has more detail than the job's state.
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

// dependsOnOthers reports whether something outside the job stops it or slows it down in this
// phase. Then it is unknown when the job goes on, or gets as fast as before.
func (p Phase) dependsOnOthers() bool {
	return p == Queued || p == Stuck || p == Slowed || p == GivingWay
}

// A Queue is the answer of a job's queue about the job's tasks.
type Queue struct {
	Complaint string // why the queue can't deliver the tasks; empty: it can, or that is unknown
	Waits     bool   // whether the task that has been due longest was not delivered yet
	Others    int    // if Waits: number of other running jobs in the queue, or Unknown
	Name      string
}

// slowStart is how long a job counts as starting if no task of it was delivered.
const slowStart = 5 * time.Second

// phase returns what the job does or waits for, and a text that says why it is not faster.
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
		return Finishing, cmp.Or(trouble, "all entities are done, and the records are added up")
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
	case idle > max(l.mostOfPage(), 5*l.slowestPage()):
		return Stuck, cmp.Or(trouble, fmt.Sprintf("no page was done for %s: if its tasks were lost, a sweep enqueues "+
			"them again within minutes", roughly(idle)))
	case len(s.Ends) == 0:
		return Starting, cmp.Or(trouble, says)
	case says != "" && limit.Near(rate, l.Totals.PerEntity(), l.Now.Sub(j.RampBegan())):
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

// givesWay returns a text if the job is a background job whose pages have waited longer in the last
// minute than they have worked. Otherwise it returns "".
func (l Look) givesWay() string {
	var worked, waited time.Duration
	n := 0
	for _, e := range l.Totals.Sample.Ends {
		if l.Now.Sub(e.At) < lately {
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

// Conditions for a job that counts as slowed. Its workers have to be busy, and its earlier pages
// must be short compared with the time that is observed.
const (
	slowerBy    = 5 // the factor by which a job is slower than before, so that its phase says so
	leastWindow = 10 * time.Second
	leastPages  = 8
)

// slowed returns a text if the job processes far fewer entities a second than before, and ""
// otherwise. It compares the last minute, or the second half of a younger job's time, with the time
// before.
func (l Look) slowed() string {
	from, s := l.runsSince(), l.Totals.Sample
	elapsed := l.Now.Sub(from)
	window := min(lately, elapsed/2)
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

// runsSince returns when the job was started or last resumed.
func (l Look) runsSince() time.Time {
	if l.Job.RampFrom.After(l.Job.Created) {
		return l.Job.RampFrom
	}
	return l.Job.Created
}

// shared reports whether the job's tasks have to wait because other jobs have tasks in the same
// queue.
func (q Queue) shared() bool { return q.Waits && q.Others > 0 }

// idle returns how long ago the last page was done.
func (l Look) idle() time.Duration {
	from := l.runsSince()
	if len(l.Totals.Sample.Ends) > 0 && lastEnd(l.Totals.Sample).After(from) {
		from = lastEnd(l.Totals.Sample)
	}
	return l.Now.Sub(from)
}

// says returns a text for people, which says why a task waits in the queue.
func (q Queue) says() string {
	name := q.Name[strings.LastIndex(q.Name, "/")+1:]
	switch {
	case q.Others > 0:
		return fmt.Sprintf("its tasks wait in the queue %s, which %s", name,
			entities(int64(q.Others), "another running job shares", "other running jobs share"))
	case q.Others == 0:
		return fmt.Sprintf("its tasks wait in the queue %s, which delivers none at present: is its concurrency used "+
			"up?", name)
	}
	return fmt.Sprintf("its tasks wait in the queue %s", name)
}

// entities returns a number with the singular or the plural of a noun.
func entities(n int64, one, several string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// roughly formats a duration in whole seconds or minutes.
func roughly(d time.Duration) string {
	if d < 2*time.Minute {
		return strings.Replace(d.Round(time.Second).String(), "m0s", "m", 1)
	}
	return fmt.Sprintf("%d min", int(d.Minutes()+0.5))
}

// sinceDue returns for how long the task that has been due longest has been due.
func (l Look) sinceDue() time.Duration {
	if l.Totals.Waiting == nil {
		return 0
	}
	return l.Now.Sub(l.Totals.Waiting.Due())
}

// backsOffUntil returns when the first pending range is due, if all of them wait for that after
// failed attempts. It returns the zero time if a range is due now.
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

// pausedPhase returns the phase of a paused job, which says whether pages are still under way, and
// a text that says why it is paused.
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
	case j.Poor:
		return OverBudget, why
	case j.Limited:
		return TooManyFailing, why
	}
	return Held, why
}

// longestPage returns how long a page that is under way may still take: twice as long as the
// slowest page so far.
func (l Look) longestPage() time.Duration {
	if slowest := l.slowestPage(); slowest > 0 {
		return min(l.mostOfPage(), 2*slowest)
	}
	return l.mostOfPage()
}

// longestCallWait is how long the first entity of a page may wait for calls that the job's rate
// limits: a quarter of the usual dispatch deadline.
const longestCallWait = 10 * time.Minute / 4

// mostOfPage returns the longest time that a page may take.
func (l Look) mostOfPage() time.Duration {
	most := 2*time.Duration(l.Job.PageTime) + time.Duration(l.Job.Timeout)
	if limit, err := l.Job.RateLimit(); err == nil && limit.CallsPerSecond > 0 {
		most += longestCallWait
	}
	return most
}

// slowestPage returns how long the slowest page has taken so far, at least a second. It returns 0
// if there is no page.
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
