package executor

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// Where a process has few deliveries of a job under way, what it sees says little of the others: its part may be the
// slow one. Then it looks at a sample of the job's pages now and then, for the pace that the law of cutting compares
// its own with, see split.Load.Keep.
const (
	fewDeliveries = 8 // of a job in this process at once
	pagesInLook   = 32
)

// lookAround looks at a sample of a job's pages, if that is due. A fair share of the job has so many entities.
func lookAround(ctx context.Context, x *Executor, job *record.Job, fairShare int64) {
	known, now := x.cache.at(job.Ref()), time.Now()
	if inside := known.inside.Load(); inside >= fewDeliveries || inside >= job.Workers {
		return
	}
	seen := x.paces.Get(job.Ref())
	pause := split.Load{FairShare: fairShare, Job: seen.EachOfJob()}.Soonest()
	last := known.looked.Load()
	if now.Sub(job.RampBegan()) < pause || now.Sub(time.Unix(0, last)) < pause || !known.looked.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	entities, ran, err := x.Store.SamplePages(ctx, job.Ref(), pagesInLook)
	if err == nil && entities > 0 { // it only helps
		x.paces.Sample(job.Ref(), entities, ran)
	}
}
