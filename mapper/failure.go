package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/tasks"
)

// A Failure is an entity that the function could not process.
type Failure struct {
	Key      *datastore.Key
	Error    string    // of the last attempt
	Attempts int       // that were made
	Time     time.Time // of the last one
}

// failurePage is how many ranges with failures are read at once.
const failurePage = 50

// Failures returns some failures of the job, and where to go on: an empty cursor
// is the beginning, and the end. A page has the failures of up to 50 pages of
// entities, and costs as many reads.
func (j *Job) Failures(ctx context.Context, cursor string) (failures []Failure, next string, err error) {
	if cursor != "" && !validRangeID.MatchString(cursor) {
		return nil, "", fmt.Errorf("mapper: failures of %s: %w: the cursor %.50q is not one of Failures", j.ID, ErrArguments, cursor)
	}
	if _, err := j.engine.loadJob(ctx, j.ID); err != nil {
		return nil, "", fmt.Errorf("mapper: failures: %w", err)
	}
	ranges, err := j.engine.marked(ctx, "failed", j.ID, cursor, failurePage)
	if err != nil {
		return nil, "", fmt.Errorf("mapper: failures of %s: %w", j.ID, err)
	}
	for _, r := range ranges {
		for _, f := range r.Failures {
			failures = append(failures, Failure{Key: f.Key, Error: f.Error, Attempts: int(f.Attempts), Time: f.Time})
		}
	}
	if len(ranges) == failurePage {
		next = ranges[failurePage-1].ID
	}
	return failures, next, nil
}

// Retry has the job process its failures again, and nothing else: each gets as
// many attempts as at first. The job runs again until they are done.
func (j *Job) Retry(ctx context.Context) error {
	record, err := j.engine.alter(ctx, j.ID, func(r *jobRecord) error {
		switch State(r.State) {
		case Running, Succeeded, SucceededWithFailures:
			r.State, r.Error, r.Ended, r.Totals = string(Running), "", time.Time{}, nil
			r.Replaying = true
			r.Generation++
			r.Epoch++
		default:
			return fmt.Errorf("%w: it has %s", ErrState, r.State)
		}
		return nil
	})
	if err == nil {
		err = j.engine.enqueueReplay(ctx, record, "")
	}
	if err == nil { // should the tasks of the retry be lost
		err = j.engine.enqueueSweep(ctx, record, sweepTask{Job: j.ID, Epoch: record.Epoch}, time.Now().Add(sweepEvery))
	}
	if err != nil {
		return fmt.Errorf("mapper: retry %s: %w", j.ID, err)
	}
	return nil
}

const replayPath = "replay"

// A replayTask is the body of a task that makes ranges of failures.
type replayTask struct {
	Job   string `json:"job"`
	Epoch int64  `json:"epoch"`
	After string `json:"after,omitempty"`
}

func (e *Engine) enqueueReplay(ctx context.Context, job *jobRecord, after string) error {
	body, err := json.Marshal(replayTask{job.ID, job.Epoch, after})
	if err != nil {
		return err
	}
	err = e.queue.Enqueue(ctx, tasks.Task{ID: tasks.ID(replayPath, job.ID, strconv.FormatInt(job.Epoch, 10), after), Path: replayPath, Body: body})
	if err != nil && !errors.Is(err, tasks.ErrExists) {
		return fmt.Errorf("enqueue the retry of job %s: %w", job.ID, err)
	}
	return nil
}

// deliverReplay runs a task of a replay. The job can't complete before all failures
// have become ranges.
func (e *Engine) deliverReplay(ctx context.Context, d tasks.Delivery) error {
	var t replayTask
	if err := json.Unmarshal(d.Body, &t); err != nil || !jobID.MatchString(t.Job) {
		return tasks.Drop(fmt.Errorf("the body is not a retry of ours: %w", errors.Join(err, errors.New("it names no job"))))
	}
	job, err := e.loadJob(ctx, t.Job)
	if errors.Is(err, ErrNoSuchJob) {
		return tasks.Drop(err)
	}
	if err != nil || State(job.State) != Running || job.Epoch != t.Epoch || !job.Replaying {
		return errors.Join(err, e.sweepAfterReplay(ctx, job, t.Epoch))
	}
	next, err := e.replayPage(ctx, job, t.After)
	if err != nil || next == "" {
		return err
	}
	return e.enqueueReplay(ctx, job, next)
}

// replayPage makes ranges of the next failures, and returns where to go on. Behind
// the last ones it ends the replay, and returns nothing.
func (e *Engine) replayPage(ctx context.Context, job *jobRecord, after string) (next string, err error) {
	failed, err := e.marked(ctx, "failed", job.ID, after, failurePage)
	if err != nil {
		return "", fmt.Errorf("look for failures of job %s: %w", job.ID, err)
	}
	for _, r := range failed {
		if err := e.replay(ctx, job, r); err != nil {
			return "", fmt.Errorf("retry the failures of range %s of job %s: %w", r.ID, job.ID, err)
		}
	}
	if len(failed) == failurePage {
		return failed[failurePage-1].ID, nil
	}
	// The sweep of the new epoch enqueues the ranges.
	epoch := job.Epoch
	job, err = e.alter(ctx, job.ID, func(j *jobRecord) error {
		if j.Epoch == epoch {
			j.Replaying = false
			j.Epoch++
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return "", e.enqueueSweep(ctx, job, sweepTask{Job: job.ID, Epoch: job.Epoch, All: true}, time.Time{})
}

// sweepAfterReplay enqueues the sweep of the epoch that a replay has ended with: who
// ended it may have died before that.
func (e *Engine) sweepAfterReplay(ctx context.Context, job *jobRecord, epoch int64) error {
	if job == nil || State(job.State) != Running || job.Replaying || job.Epoch != epoch+1 {
		return nil
	}
	return e.enqueueSweep(ctx, job, sweepTask{Job: job.ID, Epoch: job.Epoch, All: true}, time.Time{})
}

// replay makes a range of each failure of a range, while the job is replaying: a
// delivery that is late must not open a job that has ended.
func (e *Engine) replay(ctx context.Context, job *jobRecord, seen *rangeRecord) error {
	_, err := e.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		now := &jobRecord{ID: job.ID}
		if err := recordError(tx.Get(jobKey(job.ID), now)); err != nil {
			return err
		}
		if State(now.State) != Running || !now.Replaying || now.Epoch != job.Epoch {
			return nil
		}
		r := new(rangeRecord)
		if err := recordError(tx.Get(seen.key(), r)); err != nil {
			return err
		}
		created := time.Now().UTC().Truncate(time.Microsecond)
		for _, f := range r.Failures {
			child := r.child(stretch{start: f.Key, estimate: 1}, created)
			child.Alone = true
			r.Retries++
			if _, err := tx.Mutate(datastore.NewInsert(child.key(), child)); err != nil {
				return err
			}
		}
		r.Failures, r.Failed = nil, ""
		return r.update(tx)
	}, datastore.MaxAttempts(transactionAttempts))
	return err
}

// limitFailures pauses the job if too many entities have failed.
func (w *work) limitFailures(ctx context.Context) error {
	if len(w.record.Failures) == 0 || w.job.Limit < 0 {
		return nil
	}
	failed := datastore.NewQuery(rangeKind).FilterField("failed", "=", w.job.ID)
	seen, err := w.engine.readKeys(ctx, failed, int(w.job.Limit)+1)
	if err != nil {
		return fmt.Errorf("count the failures of job %s: %w", w.job.ID, err)
	}
	n := int64(len(seen.keys) + len(w.record.Failures) - 1) // at least
	if n <= w.job.Limit {
		return nil
	}
	_, err = w.engine.alter(ctx, w.job.ID, func(j *jobRecord) error {
		if State(j.State) == Running && j.Epoch == w.job.Epoch {
			j.State = string(Paused)
			j.Error = fmt.Sprintf("paused by its failure limit: more than %d entities have failed, the last with: %s", j.Limit, w.record.Failures[0].Error)
		}
		return nil
	})
	if err == nil {
		w.job.State = string(Paused)
	}
	return err
}
