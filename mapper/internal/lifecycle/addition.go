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

// A Portion limits the work that is lost if a process dies while it adds up a job's records. A
// field of 0 means the default.
type Portion struct {
	// after this number of records of each slice of IDs, the sum so far is stored as a draft
	Records int
	Time    time.Duration // the time after which another task continues
}

// portionRecords is the default of Portion.Records. It is so small that a process stores a draft
// every few seconds. A job with fewer records is added up without a draft.
const portionRecords = 5000

// addUp adds up the records of a job, and returns their sum. While goesOn returns true for the
// job's record, the ranges' records must not change. addUp regularly stores a draft, which is the
// sum so far. If its time is over first, it enqueues a task that continues from the draft, and
// returns nil. That task has the path of this one, which is t.
//
// If a delivery dies, the next one continues from its draft. If two deliveries add up at the same
// time, both continue from the draft with more records.
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

// draft returns the stored sum from which addUp continues.
func (js *Jobs) draft(ctx context.Context, job *record.Job) (*ledger.Draft, error) {
	if !job.Drafted {
		return store.NewDraft(job), nil
	}
	return js.Store.LoadDraft(ctx, job)
}

// lastLink returns the latest task in the chain of tasks that add up a job's records at its end.
// Without a draft, this is the first task.
func (js *Jobs) lastLink(ctx context.Context, job *record.Job) (body.Job, error) {
	d, err := js.draft(ctx, job)
	if err != nil {
		return body.Job{}, err
	}
	return body.Job{Link: d.Link}, nil
}
