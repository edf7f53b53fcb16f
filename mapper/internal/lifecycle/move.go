package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Mover moves jobs to this engine's queue.
type Mover struct{ *Jobs }

// moveTime bounds how long the commit of a move may take: the sweep that was enqueued before it comes
// later than that.
const moveTime = 30 * time.Second

// Move has a job belong to this engine's queue. Its tasks in the queue that it had are superseded, and
// all of its open ranges get tasks here. The first sweep is enqueued before the commit, so that
// whoever dies between them leaves a job that has a task; if nothing is committed that sweep finds
// the job in another queue. Adapt fits the record to this engine, or says why the job can't run here.
func (mv Mover) Move(ctx context.Context, ref record.Ref, adapt func(*record.Job) error) error {
	job, err := mv.Store.LoadJob(ctx, ref)
	if err != nil {
		return err
	}
	owner, moved := record.Owner(mv.Queue.Name()), *job
	if !owner.Move(&moved) {
		return nil
	}
	if err := adapt(&moved); err != nil {
		return err
	}
	if moved.Active {
		if err := mv.enqueueSweep(ctx, &moved, time.Now().Add(moveTime)); err != nil {
			return err
		}
	}
	commit, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	now, err := mv.Store.UpdateJob(commit, job.Ref(), func(j *record.Job) (bool, error) {
		if j.Queue == owner {
			return false, nil // the answer to a commit was lost
		}
		if j.Queue != job.Queue || j.Epoch != job.Epoch || j.Generation != job.Generation || j.State != job.State {
			return false, fmt.Errorf("%w: it has changed just now", record.ErrState)
		}
		j.Concurrent = moved.Concurrent
		return owner.Move(j), nil
	})
	switch {
	case err != nil:
		return err
	case now.Cleaning != "":
		return cleaner(mv).enqueueFirst(ctx, now)
	case now.State != record.Running:
		return nil
	}
	return Control(mv).goOn(ctx, now)
}
