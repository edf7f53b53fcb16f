package executor

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/scattermap/scattermap/mapper/internal/recent"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// jobCache has the records of jobs as they were up to a second ago: so that a page
// can look at its job without a read for each page.
type jobCache struct {
	mu     sync.Mutex
	job    recent.Map[record.Ref, *cachedJob]
	forget func(record.Ref, *cachedJob) // is called for each job that is forgotten
}

type cachedJob struct {
	turn   *semaphore.Weighted // of who uses the rest, and may read it
	record *record.Job
	read   time.Time
	inside int  // deliveries under way; guarded by the cache, as owed is
	owed   bool // a look for completion

	outlook   atomic.Pointer[outlook] // nil: nobody has looked yet
	looking   atomic.Bool
	looksFrom atomic.Int64 // when it was first asked for, in nanoseconds behind 1970

	purse purse

	counting sync.Mutex
	counted  tally.Counters // the names that pages of this process have counted under
}

// cachedFor is for how long a record is good enough; pages take about as long.
const cachedFor = time.Second

// maxCached bounds of how many jobs something is remembered that have no delivery under way.
const maxCached = 1000

// at returns the place of a job. The one that was used longest ago is forgotten for it, if it has
// no delivery under way.
func (j *jobCache) at(job record.Ref) *cachedJob {
	j.mu.Lock()
	r, forgotten := j.place(job)
	j.mu.Unlock()
	j.forgot(forgotten)
	return r
}

// place returns the place of a job, and those that are forgotten for it.
func (j *jobCache) place(job record.Ref) (r *cachedJob, forgotten map[record.Ref]*cachedJob) {
	r, ok := j.job.Get(job)
	if !ok {
		r = &cachedJob{turn: semaphore.NewWeighted(1), purse: purse{turn: semaphore.NewWeighted(1)}}
		forgotten = j.job.Put(job, r, maxCached, func(_ record.Ref, r *cachedJob) bool { return r.inside > 0 })
	}
	return r, forgotten
}

func (j *jobCache) forgot(forgotten map[record.Ref]*cachedJob) {
	for job, r := range forgotten {
		j.forget(job, r)
	}
}

// inUse reports whether a job has a delivery under way.
func (j *jobCache) inUse(job record.Ref) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.job.Peek(job)
	return ok && r.inside > 0
}

// idle returns the jobs that have no delivery under way.
func (j *jobCache) idle() map[record.Ref]*cachedJob {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make(map[record.Ref]*cachedJob)
	j.job.All(func(job record.Ref, r *cachedJob) {
		if r.inside == 0 {
			all[job] = r
		}
	})
	return all
}

// enter notes that a delivery of a job begins, and leave that it ends. A look for completion is
// made by the last one in this process, for all that have come to their end: leave
// reports whether this is it, and whether it is the last one.
func (j *jobCache) enter(job record.Ref) *cachedJob {
	j.mu.Lock()
	r, forgotten := j.place(job)
	r.inside++
	j.mu.Unlock()
	j.forgot(forgotten)
	return r
}

func (j *jobCache) leave(r *cachedJob, ended bool) (look, last bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.inside--
	r.owed = r.owed || ended
	last = r.inside == 0
	if look = last && r.owed; look {
		r.owed = false
	}
	return look, last
}

// noteCounters notes what a page has counted. It reports whether all pages so far have more
// counters than a job can have.
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
