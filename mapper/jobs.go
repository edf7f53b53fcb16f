package mapper

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// JobsOptions select the jobs that [Engine.JobsPage] lists. The zero value selects all jobs of the
// engine's queues.
type JobsOptions struct {
	State  State  // the jobs' state; empty: any
	Mapper string // the name of the jobs' mapper; empty: any

	// StartedFrom and StartedBefore select the jobs that were started in this half-open interval of
	// time, to the microsecond. Zero is no limit.
	StartedFrom, StartedBefore time.Time

	// AllQueues also selects the jobs of queues that the engine does not have. The engine can read
	// these jobs, but not control them: see [Job.Move].
	AllQueues bool
}

// A JobInfo describes a job in a list ([Engine.JobsPage]). It has only what the job's own record
// has; [Job.Status] has more.
type JobInfo struct {
	ID      string    `json:"id"`
	Mapper  string    `json:"mapper"`
	Queue   string    `json:"queue"`
	State   State     `json:"state"`
	Error   string    `json:"error,omitempty"` // the text of Status.Error; empty if the job's record does not have it
	Created time.Time `json:"created"`
	Ended   time.Time `json:"ended,omitzero"` // when the job ended; zero before its end

	UndoneBy string `json:"undo,omitempty"` // the ID of the job that undoes this one; empty: none

	CleanUpAt time.Time `json:"clean_up_at,omitzero"` // the time of the automatic clean-up; zero: none, or unknown

	// Counted says that Processed, Failures and Dollars are known, because the job has succeeded.
	// If Counted is false, they are -1; [Job.Status] estimates them.
	Counted   bool    `json:"counted"`
	Processed int64   `json:"processed"`
	Failures  int64   `json:"failures"`
	Dollars   float64 `json:"dollars"` // about what the job has cost; -1 if unknown

	// NotRestored is the number of entities that this job, an undo, has left unchanged. It is 0 for
	// other jobs, and if Counted is false.
	NotRestored int64 `json:"not_restored,omitempty"`
}

// jobsPage is how many jobs a page has. Records have up to 1 MiB, so a page fits in memory.
const jobsPage = 50

// listing returns the options for package record, without the choice of queues.
func (o *JobsOptions) listing() record.Listing {
	return record.Listing{State: record.JobState(o.State), Mapper: o.Mapper, From: o.StartedFrom,
		Before: o.StartedBefore}
}

// list reads a page of the selected jobs from the store, and the cursor of the next page. An empty
// name in queues stands for all queues. The cost of each job is calculated with the given prices.
func (o *JobsOptions) list(
	ctx context.Context, st store.Store, queues []record.Owner, cursor string, prices billing.Prices,
) (jobs []JobInfo, next string, err error) {
	if cursor != "" && !record.ValidPlace(cursor) {
		return nil, "", fmt.Errorf("%w: the cursor %.80q is not one of Jobs", ErrInvalidArgument, cursor)
	}
	if err := record.CheckState(record.JobState(o.State)); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	found, err := st.Jobs(ctx, queues, o.listing(), cursor, jobsPage)
	if err != nil {
		return nil, "", err
	}
	for _, j := range found {
		info := JobInfo{ID: j.ID, Mapper: j.Mapper, Queue: string(j.Queue), State: State(j.State), Error: j.Error,
			Created: j.Created, Ended: j.Ended, UndoneBy: j.Undo, CleanUpAt: j.DueAt(),
			Processed: estimate.Unknown, Failures: estimate.Unknown, Dollars: estimate.Unknown}
		if len(j.Totals) > 0 {
			sum, bad := j.RecordedTotals()
			if bad != nil {
				return nil, "", fmt.Errorf("job %s: %w", j.ID, bad)
			}
			q, err := query.Of(j)
			if err == nil {
				info.Dollars = estimate.Dollars(j, sum, q, prices)
			} else {
				info.Error = cmp.Or(info.Error, err.Error()) // list the other jobs all the same
			}
			info.Counted, info.Processed, info.Failures = true, sum.Processed, sum.Failures
			if strings.HasPrefix(j.Mapper, record.UndoPrefix) {
				info.NotRestored = sum.Counters["left"]
			}
		}
		jobs = append(jobs, info)
	}
	if len(found) == jobsPage {
		next = found[jobsPage-1].Place()
	}
	return jobs, next, nil
}
