package pace

import (
	"cmp"
	"sync"
	"time"
)

// A Throughput is what a process has observed of a job's entities.
type Throughput struct {
	Entities, Bytes, Writes int64
	Spent                   time.Duration // by the function, on all of them
	Begun                   time.Time     // when the first of them was
	expected                int64         // bytes of an entity, for as long as none was seen; 0: unknown
	others                  sample        // of the job's pages, in all processes
}

// A sample is what is known of pages that were chosen at random. Those of an earlier choice count half.
type sample struct {
	entities float64
	ran      time.Duration
}

// The memory of a page is bounded: it reads as many entities at once as are expected to take readBytes,
// which is two full pages of mutations. Where nothing is known it reads firstRead entities: 100 of the
// largest possible, 1 MiB each, still fit.
const (
	readBytes = 8 << 20
	firstRead = 100
)

// Chunk returns how many of the rest of a page's entities to read at once.
func (p Throughput) Chunk(rest int) int {
	mean := p.expected
	if p.Entities > 0 {
		mean = p.Bytes/p.Entities + 1
	}
	if mean == 0 {
		return min(rest, firstRead)
	}
	return min(rest, int(max(1, readBytes/mean)))
}

// Each returns how long the function takes for an entity on average; 0 is unknown.
func (p Throughput) Each() time.Duration { return p.Spent / time.Duration(max(1, p.Entities)) }

// EachOfJob returns the same for the entities of the whole job, as far as that is known: by a sample of its pages, if
// there is one, and otherwise by those of this process.
func (p Throughput) EachOfJob() time.Duration {
	if p.others.entities == 0 {
		return p.Each()
	}
	return time.Duration(float64(p.others.ran) / p.others.entities)
}

// Fit reports whether n entities are known to be small enough to be read at once.
func (p Throughput) Fit(n int) bool { return p.Entities+p.expected > 0 && p.Chunk(n) == n }

// A Book keeps the throughput of each job that a process has worked for lately. Its zero value is ready
// for use, by several goroutines.
type Book[Job comparable] struct {
	mu    sync.Mutex
	job   map[Job]Throughput
	brake map[Job]*Brake
}

// maxJobs bounds a book. A job that is forgotten starts over.
const maxJobs = 1000

// Get returns what was observed of a job.
func (p *Book[Job]) Get(job Job) Throughput {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.job[job]
}

// Writes returns how many writes the function makes for an entity: on average so far, or usual if nothing
// was observed.
func (p *Book[Job]) Writes(job Job, usual float64) float64 {
	if known := p.Get(job); known.Entities > 0 {
		return float64(known.Writes) / float64(known.Entities)
	}
	return usual
}

// Add adds an observation.
func (p *Book[Job]) Add(job Job, more Throughput) {
	p.change(job, func(known *Throughput) {
		known.Entities += more.Entities
		known.Bytes += more.Bytes
		known.Writes += more.Writes
		known.Spent += more.Spent
		if known.Begun.IsZero() || more.Begun.Before(known.Begun) {
			known.Begun = more.Begun
		}
	})
}

// Sample adds what a sample of a job's pages says of all of them.
func (p *Book[Job]) Sample(job Job, entities int64, ran time.Duration) {
	p.change(job, func(known *Throughput) {
		known.others = sample{known.others.entities/2 + float64(entities), known.others.ran/2 + ran}
	})
}

// Expect notes how many bytes an entity of a job is said to have on average; 0 is unknown.
func (p *Book[Job]) Expect(job Job, bytes int64) {
	p.change(job, func(known *Throughput) { known.expected = cmp.Or(known.expected, bytes) })
}

func (p *Book[Job]) change(job Job, f func(*Throughput)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.job == nil || len(p.job) >= maxJobs {
		p.job = make(map[Job]Throughput)
	}
	known := p.job[job]
	f(&known)
	p.job[job] = known
}

// Brake returns the brake of a job's calls.
func (p *Book[Job]) Brake(job Job) *Brake {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.brake[job]
	if b == nil {
		if b = new(Brake); p.brake == nil || len(p.brake) >= maxJobs {
			p.brake = make(map[Job]*Brake)
		}
		p.brake[job] = b
	}
	return b
}
