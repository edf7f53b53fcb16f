package executor

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// mostLooked is how many open ranges are looked at, at most. They are a random choice.
const mostLooked = 100

// lookAround returns what is left of a job, as it was a while ago: what the process has last seen
// of its open ranges. It has them looked at anew, in the background, if that is due. Until it has
// seen any nothing is taken to be done, of fair shares of so many entities; where that is unknown,
// too, it is not ok.
func lookAround(
	ctx context.Context, x *Executor, job *record.Job, fairShare int64, each time.Duration, l split.Load,
) (_ split.Outlook, age time.Duration, ok bool) {
	known, now := x.cache.at(job.Ref()), time.Now()
	seen := known.outlook.Load()
	if seen == nil {
		seen = &outlook{Outlook: split.Unseen(fairShare, job.Workers, each)}
	}
	l.Outlook, l.Known = seen.Outlook, now.Sub(known.outlookFrom(now))
	if now.Sub(seen.at) > l.LookEvery() && known.looking.CompareAndSwap(false, true) {
		go func() {
			defer known.looking.Store(false)
			// it only helps
			if open, part, err := x.Store.LookOpen(ctx, job.Ref(), int(min(job.Workers, mostLooked))); err == nil {
				known.outlook.Store(&outlook{split.OutlookOf(open, part, job.Workers, each, job.PageSize), now})
			}
		}()
	}
	if seen.at.IsZero() {
		return seen.Outlook, 0, fairShare > 0
	}
	return seen.Outlook, now.Sub(seen.at), true
}

// outlookFrom returns since when there is an outlook for a job.
func (r *cachedJob) outlookFrom(now time.Time) time.Time {
	r.looksFrom.CompareAndSwap(0, now.UnixNano())
	return time.Unix(0, r.looksFrom.Load())
}

// An outlook is that of a job at a time.
type outlook struct {
	split.Outlook
	at time.Time
}
