package mapper

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// JobsOptions choose what [Engine.Jobs] lists. What is zero does not matter.
type JobsOptions struct {
	State  State  // that jobs are in
	Mapper string // the name of their mapper

	// AllQueues lists the jobs of all queues, and not only of the engine's: others can't be
	// controlled by this engine, see [Job.Move].
	AllQueues bool
}

// A JobInfo is what the record of a job says.
type JobInfo struct {
	ID      string    `json:"id"`
	Mapper  string    `json:"mapper"`
	Queue   string    `json:"queue"`
	State   State     `json:"state"`
	Error   string    `json:"error,omitempty"` // as that of [Status], as far as the record has it
	Created time.Time `json:"created"`
	Ended   time.Time `json:"ended,omitzero"` // zero while it runs

	// Counted says that Processed and Failures are known: once the job has succeeded. [Job.Status]
	// adds them up for others.
	Counted   bool  `json:"counted"`
	Processed int64 `json:"processed"`
	Failures  int64 `json:"failures"`
}

// jobsPage is how many jobs a page has: with records of at most 1 MiB it fits in memory.
const jobsPage = 50

// list returns a page of the jobs that are chosen, and where to go on. An empty queue stands for all.
func (o *JobsOptions) list(ctx context.Context, st store.Store, queues []record.Owner, cursor string) (jobs []JobInfo, next string, err error) {
	if cursor != "" && !record.ValidPlace(cursor) {
		return nil, "", fmt.Errorf("%w: the cursor %.80q is not one of Jobs", ErrArguments, cursor)
	}
	if err := checkState(o.State); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrArguments, err)
	}
	var found []*record.Job
	for _, queue := range queues {
		some, err := st.Jobs(ctx, record.Listing{Queue: queue, State: string(o.State), Mapper: o.Mapper}, cursor, jobsPage)
		if err != nil {
			return nil, "", err
		}
		found = append(found, some...)
	}
	slices.SortFunc(found, func(a, b *record.Job) int { return cmp.Compare(record.Place(b), record.Place(a)) })
	found = found[:min(len(found), jobsPage)]
	for _, j := range found {
		info := JobInfo{ID: j.ID, Mapper: j.Mapper, Queue: string(j.Queue), State: State(j.State), Error: j.Error, Created: j.Created, Ended: j.Ended}
		if len(j.Totals) > 0 {
			sum, err := j.RecordedTotals()
			if err != nil {
				return nil, "", fmt.Errorf("job %s: %w", j.ID, err)
			}
			info.Counted, info.Processed, info.Failures = true, sum.Processed, sum.Failures
		}
		jobs = append(jobs, info)
	}
	if len(found) == jobsPage {
		next = record.Place(found[jobsPage-1])
	}
	return jobs, next, nil
}

// checkState returns an error if a job can't be in a state. An empty one stands for all.
func checkState(s State) error {
	switch s {
	case "", Running, Paused, Succeeded, SucceededWithFailures, Failed, Aborted:
		return nil
	}
	return fmt.Errorf("there is no state %q: a job is %s, %s, %s, %s, %s or %s", s, Running, Paused, Succeeded, SucceededWithFailures, Failed, Aborted)
}
