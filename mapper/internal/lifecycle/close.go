package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// If a job's mapper has a function Forget, the job deletes the records of its ranges before it
// ends:
//
// 1. The records are added up. One transaction stores the totals in the job's record, and marks the
// job as closed.
// 2. The records are deleted, while the job is still running.
// 3. The function runs, outside of any transaction.
// 4. The transaction that ends the job removes from its record what the job was about.

// close stores the sum l of a job's records in the job's record, and starts to delete the records.
func (fi finalizer) close(ctx context.Context, job *record.Job, t body.Job, l *ledger.Ledger) error {
	how, err := json.Marshal(CleanUp{IncludeFailures: true})
	if err != nil {
		return err
	}
	job, err = fi.Store.UpdateJob(ctx, job.Ref(), func(j *record.Job) (bool, error) {
		if !j.MayEnd(t.Epoch) || len(j.Closing) > 0 {
			return false, nil
		}
		return true, j.Close(record.Closing{Ranges: l.Tiles, Alone: l.Alone, Failures: l.Failures,
			Salt: fi.salt()}, &l.Totals, string(how))
	})
	if err != nil || !t.Current(job) || len(job.Closing) == 0 {
		return err
	}
	return fi.runClosed(ctx, job, t)
}

func (js *Jobs) salt() string {
	return strconv.FormatUint(js.Random(), 36) + strconv.FormatUint(js.Random(), 36)
}

// runClosed deletes the remaining records of a job, and then calls the mapper's function from
// mapper.Mapper.Forget.
func (fi finalizer) runClosed(ctx context.Context, job *record.Job, t body.Job) error {
	place, err := fi.Gate.Enter(ctx, false)
	if err != nil {
		return err
	}
	job, err = fi.clean(ctx, job, t)
	place.Leave()
	if job == nil { // the function also runs after an error of the transaction
		return err
	}
	if fi.sum, err = job.RecordedTotals(); err != nil {
		return err
	}
	return fi.run(ctx, job, t)
}

// clean deletes the remaining records of a job, and then returns the job. If its time is over
// before, it enqueues tasks that continue, and returns nil.
func (fi finalizer) clean(ctx context.Context, job *record.Job, t body.Job) (*record.Job, error) {
	for job.Cleaning != "" {
		_, n, err := fi.cleanRecords(ctx, job, "", "")
		switch {
		case err != nil:
			return nil, err
		case n > 0 && (time.Since(t.BegunAt) > fi.Queue.DispatchDeadline()/4 || fi.Gate.IsDraining()):
			return nil, fi.enqueueCleanUp(ctx, job)
		case n > 0:
			continue
		}
		if err := fi.finishCleanUp(ctx, job); err != nil {
			return nil, err
		}
		if job, err = fi.Store.LoadJob(ctx, job.Ref()); err != nil || !t.Current(job) {
			return nil, err
		}
	}
	return job, nil
}

// forget calls the mapper's function from mapper.Mapper.Forget, and ends the job. failed is the
// function's error, and err is any other error.
func (fi finalizer) forget(ctx context.Context, job *record.Job) (failed, err error) {
	ended := *job
	if err := ended.Succeed(fi.sum, time.Now()); err != nil { // the function sees the job as ended
		return nil, err
	}
	a := function.NewAttempt(job.Ref(), function.Update, record.JobKey(job.ID))
	longest := fi.Queue.DispatchDeadline() / 2
	var said error // the function's error; a call that takes too long is abandoned, and may set it later
	err = function.Calls(ctx, longest, &fi.Gate.Strays, func(r *function.Runner) {
		r.Call(func(ctx context.Context) {
			defer function.Recovered(&said)
			said = a.Run(func() error { return fi.def.Forget(ctx, a, &ended, fi.sum) })
		})
	})
	switch {
	case errors.Is(err, function.ErrTimeout):
		return fmt.Errorf("it took more than %v", longest), nil
	case err != nil:
		return err, nil
	case said != nil:
		return said, nil
	}
	return nil, fi.end(ctx, job, "", func(_ *datastore.Transaction, j *record.Job) error {
		if len(j.Closing) == 0 {
			return fmt.Errorf("the record of job %s does not say any more that its ranges' records are deleted", j.ID)
		}
		if err := j.Succeed(fi.sum, time.Now()); err != nil {
			return err
		}
		j.Finalizes, j.Finalized = true, j.Epoch
		return j.Redact(record.Subject{}, fi.salt(), time.Now())
	})
}
