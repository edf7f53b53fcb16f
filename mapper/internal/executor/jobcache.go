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

// jobCache keeps each job's record for a second, so that not every page has to read it. It also
// keeps other state of this process about each job.
type jobCache struct {
	mu     sync.Mutex
	job    recent.Map[record.Ref, *cachedJob]
	forget func(record.Ref, *cachedJob) // called for each job that the cache drops; must not wait
}

type cachedJob struct {
	turn   *semaphore.Weighted // held by the delivery that uses record and read
	record *record.Job
	read   time.Time
	inside int  // number of deliveries under way; the cache's mu guards inside and owed
	owed   bool // whether the last delivery has to check whether the job is complete

	outlook   atomic.Pointer[outlook] // the estimate of remaining work; nil: not read yet
	looking   atomic.Bool
	looksFrom atomic.Int64 // when a delivery first asked for the outlook, in Unix nanoseconds

	purse purse
	pages atomic.Int64 // number of pages that this process has committed for the job

	counting sync.Mutex
	counted  tally.Counters // sums of the counters of these pages
}

// cachedFor is how long a cached record of a job may be used. It is about as long as a page takes.
const cachedFor = time.Second

// maxCached is the largest number of jobs in the cache that have no delivery under way.
const maxCached = 1000

// fewPages is a limit of the pages that a process has committed for a job. Below it, the job may be
// small: it has up to about 300 records. The last delivery of a small job ends it, without another
// task.
const fewPages = 100

// at returns the cached state of a job, or a new one. If there are too many, the cache drops the
// least recently used job without a delivery under way.
func (j *jobCache) at(job record.Ref) *cachedJob {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.place(job)
}

// place does the same as at. The caller holds mu.
func (j *jobCache) place(job record.Ref) *cachedJob {
	if r, ok := j.job.Get(job); ok {
		return r
	}
	r := &cachedJob{turn: semaphore.NewWeighted(1), purse: purse{turn: semaphore.NewWeighted(1)}}
	inUse := func(_ record.Ref, r *cachedJob) bool { return r.inside > 0 }
	for job, r := range j.job.Put(job, r, maxCached, inUse) {
		j.forget(job, r)
	}
	return r
}

// inUse reports whether a job has a delivery under way.
func (j *jobCache) inUse(job record.Ref) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.job.Peek(job)
	return ok && r.inside > 0
}

// idle returns the jobs without a delivery under way.
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

// enter records that a delivery of a job starts. The delivery must call leave when it ends.
func (j *jobCache) enter(job record.Ref) *cachedJob {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.place(job)
	r.inside++
	return r
}

// leave records that a delivery has ended. If ended is true, a check is due whether the job is
// complete. The job's last delivery in this process makes one check for all. look is true if this
// delivery has to make it. last is true if the job has no other delivery under way.
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

// noteCounters adds the counters of a page to this process's sums. It reports whether the sums have
// more names than a job may have.
func (r *cachedJob) noteCounters(page tally.Counters) (over bool) {
	r.counting.Lock()
	defer r.counting.Unlock()
	r.counted.Merge(page)
	return r.counted.TooMany()
}

// note caches a record that was read at the given time.
func (j *jobCache) note(record *record.Job, read time.Time) {
	r := j.at(record.Ref())
	if !r.turn.TryAcquire(1) {
		return // another delivery is reading the record
	}
	defer r.turn.Release(1)
	if read.After(r.read) {
		r.record, r.read = record, read
	}
}

// load returns the record of a job. It was read at most a second before the call. Deliveries that
// have waited for the same read share its result, however long it took.
func (j *jobCache) load(ctx context.Context, st store.Store, job record.Ref) (*record.Job, error) {
	r, asked := j.at(job), time.Now()
	if err := r.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer r.turn.Release(1)
	if asked.Sub(r.read) < cachedFor { // read less than a second before the call, or later
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
