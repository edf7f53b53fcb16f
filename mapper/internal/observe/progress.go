package observe

import (
	"sync"
	"time"
)

// progress records when each running job last committed a page, a group of entities. It learns this
// from the pages that this process commits, and from the records that it reads.
type progress struct {
	mu   sync.Mutex
	jobs map[string]*lately
}

type lately struct {
	mapper    string
	committed time.Time // when the job last committed a page
	// looked is when this process last read that the job was running. It is zero if the job has
	// stopped since then.
	looked time.Time
	// over is the job's epoch when it stopped. Each resume or retry raises the epoch, a number in
	// the job's record. So records of a job with this epoch or a lower one are outdated.
	over int64
}

const (
	// shown is how long a job counts as running after this process last read that it was running. A
	// sweep, a task of every running job, reads the job's record every two minutes.
	shown = 3 * time.Minute

	// A job is dropped after the time forgotten. If there are more than most jobs, others are
	// dropped earlier.
	forgotten = time.Hour
	most      = 1000
)

// at returns the entry of a job, and makes one if there is none. The caller holds the lock.
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

// running records that the job was read as running, with this epoch. The time last is a lower bound
// for the time of its last page.
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

// idle returns how long the running jobs of each mapper have committed no page. If a mapper has
// several running jobs, the longest time counts.
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
