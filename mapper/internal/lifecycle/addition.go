package lifecycle

import (
	"cmp"
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Portion limits how much work is lost if a process dies while it adds up a job's records. A
// field of 0 has its default.
type Portion struct {
	Records int           // number of records from each slice of IDs after which a draft is stored
	Time    time.Duration // the time after which another task goes on
}

// portionRecords is the default of Portion.Records. It is small enough that a process stores a
// draft every few seconds. Jobs with fewer records are added up without a draft.
const portionRecords = 5000

// addUp adds up the records of a job, and returns their sum. The records must not change while
// goesOn returns true. Now and then addUp stores a draft, which is the sum so far. If its time is
// over, it enqueues a task that goes on from the draft, and returns nil.
//
// If a delivery dies, the next one goes on from its draft. If two deliveries add up at the same
// time, both go on from the draft with more records.
func (js *Jobs) addUp(
	ctx context.Context, job *record.Job, path string, t body.Job, goesOn func(*record.Job) bool,
) (*ledger.Ledger, error) {
	most, longest := cmp.Or(js.Portion.Records, portionRecords), cmp.Or(js.Portion.Time, js.Queue.DispatchDeadline()/4)
	over := func() bool { return time.Since(t.BegunAt) > longest || js.Gate.IsDraining() }
	d, err := js.draft(ctx, job)
	if err != nil {
		return nil, err
	}
	for d.Link <= t.Link {
		all, err := js.Store.AddTo(ctx, job.Ref(), d, most, over)
		if err != nil {
			return nil, err
		}
		if all {
			d.Ledger.Close(job)
			return &d.Ledger, nil
		}
		if over() {
			d.Link = t.Link + 1
		}
		if d, err = js.Store.KeepDraft(ctx, job, d, goesOn); err != nil || d == nil {
			return nil, err
		}
	}
	t.Link = d.Link
	return nil, js.enqueue(ctx, job, path, t, time.Time{})
}

// draft returns the stored sum from which addUp goes on.
func (js *Jobs) draft(ctx context.Context, job *record.Job) (*ledger.Draft, error) {
	if !job.Drafted {
		return store.NewDraft(job), nil
	}
	return js.Store.LoadDraft(ctx, job)
}

// lastLink returns the latest task of the chain that adds up the records of a job at its end.
// Without a draft, that is the first task.
func (js *Jobs) lastLink(ctx context.Context, job *record.Job) (body.Job, error) {
	d, err := js.draft(ctx, job)
	if err != nil {
		return body.Job{}, err
	}
	return body.Job{Link: d.Link}, nil
}
