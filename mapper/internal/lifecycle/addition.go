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

// A Portion bounds what is lost when somebody dies who adds up the records of a job. What is 0 is
// the default.
type Portion struct {
	Records int           // of each slice of the IDs, after which a draft is kept
	Time    time.Duration // after which another task goes on
}

// portionRecords is the default of Portion.Records: some seconds pass from one draft to the next. A
// job with fewer in all is added up without any.
const portionRecords = 5000

// addUp adds up the records of a job, none of which changes while goesOn holds. It keeps a draft
// now and then; after its time it enqueues the next task of a chain, and returns nothing. A
// delivery that follows one that has died goes on with its draft, and so do two of one task:
// whoever is further leads.
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

// draft returns the draft that the next one goes on with who adds up.
func (js *Jobs) draft(ctx context.Context, job *record.Job) (*ledger.Draft, error) {
	if !job.Drafted {
		return store.NewDraft(job), nil
	}
	return js.Store.LoadDraft(ctx, job)
}

// lastLink returns the task that goes on to add up the records of a job that is about to end: the
// first one, if there is no draft.
func (js *Jobs) lastLink(ctx context.Context, job *record.Job) (body.Job, error) {
	d, err := js.draft(ctx, job)
	if err != nil {
		return body.Job{}, err
	}
	return body.Job{Link: d.Link}, nil
}
