package observe

import (
	"sync"
	"time"
)

// progress records when each running job last committed a page. It learns this from the pages of
// this process, and from the records that this process reads.
type progress struct {
	mu   sync.Mutex
	jobs map[string]*lately
}

type lately struct {
	mapper    string
	committed time.Time // when the job last committed a page
	// when this process last saw the job running; zero: not since the job stopped
	looked time.Time
	// the job's epoch when it stopped (record.Job.Epoch); records of this epoch and of earlier ones
	// no longer count
	over int64
}

const (
	// shown is how long a job counts as running after this process last saw it running. Sweeps see
	// a running job every two minutes.
	shown = 3 * time.Minute

	// forgotten is the time after which a job is dropped. At most most jobs are kept.
	forgotten = time.Hour
	most      = 1000
)

// at returns the entry of a job, which may be new. The caller holds the lock.
func (p *progress) at(job, mapper string, now time.Time) *lately {
	if p.jobs == nil {
		p.jobs = make(map[string]*lately)
	}
	l := p.jobs[job]
	if l == nil {
		for other, old := range p.jobs {
			if now.Sub(old.committed) > forgotten && now.Sub(old.looked) > forgotten || len(p.jobs) >= most {
				delete(p.jobs, other)
			}
		}
		l = &lately{mapper: mapper, over: -1}
		p.jobs[job] = l
	}
	return l
}

// committed records that a job has committed a page at the time now.
func (p *progress) committed(job, mapper string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at(job, mapper, now).committed = now
}

// running records that a job was seen running, and its epoch at that time. Its last page was
// committed at the time last, or later.
func (p *progress) running(job, mapper string, epoch int64, last, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.at(job, mapper, now)
	if epoch <= l.over {
		return
	}
	l.looked = now
	if last.After(l.committed) {
		l.committed = last
	}
}

// ended records that a job stopped running, and its epoch at that time.
func (p *progress) ended(job, mapper string, epoch int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.at(job, mapper, now)
	l.looked, l.over = time.Time{}, max(l.over, epoch)
}

// idle returns, for each mapper, the longest time since the last page of one of its running jobs.
func (p *progress) idle(now time.Time) map[string]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := make(map[string]time.Duration)
	for _, l := range p.jobs {
		if now.Sub(l.looked) <= shown {
			idle[l.mapper] = max(idle[l.mapper], now.Sub(l.committed))
		}
	}
	return idle
}
