package observe

import (
	"sync"
	"time"
)

// progress is when jobs have last committed a page, as far as this process knows: from its own
// pages, and from the records that it has looked at.
type progress struct {
	mu   sync.Mutex
	jobs map[string]*lately
}

type lately struct {
	mapper    string
	committed time.Time // the last page
	// when this process has last found the job running; zero: it has not, or it does not run any
	// more
	looked time.Time
	// the epoch in which the job has ended, or was paused; a look that began before that says
	// nothing
	over int64
}

const (
	// shown is for how long a process tells of a job after it has looked at it: sweeps come every
	// two minutes.
	shown = 3 * time.Minute

	// forgotten is after how long it forgets a job, and most how many it remembers.
	forgotten = time.Hour
	most      = 1000
)

// at returns the place of a job. Its caller has the lock.
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

// committed notes that a page was committed.
func (p *progress) committed(job, mapper string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at(job, mapper, now).committed = now
}

// running notes that a job runs in an epoch, and that a page of it was committed as late as last.
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

// ended notes that a job does not run any more, as of an epoch.
func (p *progress) ended(job, mapper string, epoch int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.at(job, mapper, now)
	l.looked, l.over = time.Time{}, max(l.over, epoch)
}

// idle returns for how long jobs that run have committed nothing: by mapper, the longest.
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
