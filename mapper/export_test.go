package mapper

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// What tests outside the package use of its inside.
const (
	RangeKind = record.RangeKind
	JobKind   = record.JobKind
	DraftKind = record.DraftKind
	BatchKind = record.BatchKind
)

// LateRetry does what a delivery of a job's retry does that has read the job, and then
// the failures, some time before it goes on.
func LateRetry(ctx context.Context, e *Engine, id string, between func(failed []string)) error {
	job, err := e.store().LoadJob(ctx, record.Ref{ID: id})
	if err != nil {
		return err
	}
	failed, err := e.store().FirstMarked(ctx, "failed", job.Ref(), "", store.FailurePage)
	if err != nil {
		return err
	}
	ids := make([]string, len(failed))
	for i, r := range failed {
		ids[i] = r.ID
	}
	between(ids)
	for _, r := range failed {
		if err := e.jobs.Reopen(ctx, job, r); err != nil {
			return err
		}
	}
	_, err = e.jobs.ReopenPage(ctx, job, "")
	return err
}

// Reopen opens a job's failures, and enqueues them before the retry has ended.
func Reopen(ctx context.Context, e *Engine, id string) error {
	job, err := e.store().LoadJob(ctx, record.Ref{ID: id})
	if err != nil {
		return err
	}
	failed, err := e.store().FirstMarked(ctx, "failed", job.Ref(), "", store.FailurePage)
	for _, r := range failed {
		if err == nil {
			err = e.jobs.Reopen(ctx, job, r)
		}
		if err == nil {
			r.Generation++
			err = e.jobs.EnqueueAgain(ctx, job, r)
		}
	}
	return err
}

// SetPortion has an engine keep a draft of what a job's records add up to whenever it has so many
// more of each slice, and a new task go on after a time.
func SetPortion(e *Engine, records int, longest time.Duration) {
	e.jobs.Portion = lifecycle.Portion{Records: records, Time: longest}
}

// SetUndoMost has the commits of an engine's undos have so many bytes of images at most: the rest
// is restored in batches.
func SetUndoMost(e *Engine, bytes int64) { e.undoMost.Store(bytes) }

// LetTick has an engine take the ticks of schedules, and not start those that wait by itself.
func LetTick(e *Engine, schedules ...string) { e.schedules = append(e.schedules, schedules...) }
