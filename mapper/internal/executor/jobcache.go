package executor

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// jobCache has the records of jobs as they were up to a second ago: so that a page
// can look at its job without a read for each page.
type jobCache struct {
	mu  sync.Mutex
	job map[record.Ref]*cachedJob
}

type cachedJob struct {
	turn   *semaphore.Weighted // of who uses the rest, and may read it
	record *record.Job
	read   time.Time
	inside atomic.Int64 // deliveries under way
	owed   atomic.Bool  // a look for completion

	outlook   atomic.Pointer[outlook] // nil: nobody has looked yet
	looking   atomic.Bool
	looksFrom atomic.Int64 // when it was first asked for, in nanoseconds behind 1970

	purse    purse
	optimism pace.Optimism // of pages
	puts     atomic.Bool   // the function puts or deletes other entities than its own

	counting sync.Mutex
	counted  tally.Counters // the names that pages of this process have counted under
}

// cachedFor is for how long a record is good enough; pages take about as long.
const cachedFor = time.Second

// maxCached bounds what is remembered.
const maxCached = 1000

// at returns the place of a job.
func (j *jobCache) at(job record.Ref) *cachedJob {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job == nil || len(j.job) >= maxCached {
		j.job = make(map[record.Ref]*cachedJob)
	}
	r := j.job[job]
	if r == nil {
		r = &cachedJob{turn: semaphore.NewWeighted(1), purse: purse{turn: semaphore.NewWeighted(1)}}
		j.job[job] = r
	}
	return r
}

// enter notes that a delivery begins, and leave that it ends. A look for completion is
// made by the last one in this process, for all that have come to their end. leave
// reports whether this is it.
func (r *cachedJob) enter() { r.inside.Add(1) }

func (r *cachedJob) leave(ended bool) (look bool) {
	if ended {
		r.owed.Store(true)
	}
	return r.inside.Add(-1) == 0 && r.owed.Swap(false)
}

// noteCounters notes what a page has counted. It reports whether all pages so far have more counters than
// a job can have.
func (r *cachedJob) noteCounters(page tally.Counters) (over bool) {
	r.counting.Lock()
	defer r.counting.Unlock()
	r.counted.Merge(page)
	return r.counted.TooMany()
}

// note takes a record over that was read at a time.
func (j *jobCache) note(record *record.Job, read time.Time) {
	r := j.at(record.Ref())
	if !r.turn.TryAcquire(1) {
		return // another is being read
	}
	defer r.turn.Release(1)
	if read.After(r.read) {
		r.record, r.read = record, read
	}
}

// load returns the record of a job as it was up to a second ago.
func (j *jobCache) load(ctx context.Context, st store.Store, job record.Ref) (*record.Job, error) {
	r := j.at(job)
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer r.turn.Release(1)
	if r.record != nil && time.Since(r.read) < cachedFor {
		return r.record, nil
	}
	now := time.Now()
	record, err := st.LoadJob(ctx, job)
	if err != nil {
		return nil, err
	}
	r.record, r.read = record, now
	return record, nil
}
