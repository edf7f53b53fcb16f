package pace

import (
	"cmp"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/recent"
)

// A Throughput is what a process has observed of a job's entities.
type Throughput struct {
	Entities, Bytes, Writes int64
	Compared                int64         // entities that a transaction has read to compare them
	Spent                   time.Duration // total time of the function
	expected                int64         // expected bytes of an entity, used until one was seen; 0: unknown
}

// These constants bound the memory of a page. A page reads as many entities at once as are
// expected to take readBytes, which is two full pages of mutations. If the size of entities is
// unknown, it reads firstRead entities: 100 entities of the maximum size of 1 MiB still fit into
// memory.
const (
	readBytes = 8 << 20
	firstRead = 100
)

// Chunk returns how many of a page's remaining entities to read at once.
func (p Throughput) Chunk(rest int) int { return min(rest, p.In(readBytes)) }

// In returns how many entities are expected to fit into the given bytes, at least one.
func (p Throughput) In(bytes int64) int {
	mean := p.expected
	if p.Entities > 0 {
		mean = p.Bytes/p.Entities + 1
	}
	if mean == 0 {
		return firstRead
	}
	return int(max(1, bytes/mean))
}

// Each returns the function's mean time for an entity; 0: unknown.
func (p Throughput) Each() time.Duration { return p.Spent / time.Duration(max(1, p.Entities)) }

// Fit reports whether n entities are known to be small enough to be read at once.
func (p Throughput) Fit(n int) bool { return p.Entities+p.expected > 0 && p.Chunk(n) == n }

// A Book keeps the recent throughput of each job in a process. Its zero value is ready for use.
// Several goroutines may use it.
type Book[Job comparable] struct {
	// InUse reports whether the process is at work for a job. The book never forgets such a job.
	// nil: no job is in use.
	InUse func(Job) bool

	mu  sync.Mutex
	job recent.Map[Job, *page]
}

// A page is the part of a book on one job.
type page struct {
	Throughput
	brake Brake
	meter *Meter // of its pages
	calls *Meter
}

// maxJobs bounds the number of jobs in a book that are not in use. A forgotten job starts without
// observations.
const maxJobs = 1000

// Get returns the observations of a job.
func (p *Book[Job]) Get(job Job) Throughput {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.job.Get(job); ok {
		return known.Throughput
	}
	return Throughput{}
}

// Writes returns the function's mean number of writes for an entity, or usual if nothing was
// observed.
func (p *Book[Job]) Writes(job Job, usual float64) float64 {
	if known := p.Get(job); known.Entities > 0 {
		return float64(known.Writes) / float64(known.Entities)
	}
	return usual
}

// Compared returns how many entities a transaction reads for comparison, on average for each
// entity of the function.
func (p *Book[Job]) Compared(job Job) float64 {
	known := p.Get(job)
	return float64(known.Compared) / float64(max(1, known.Entities))
}

// Add adds an observation.
func (p *Book[Job]) Add(job Job, more Throughput) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of(job)
	known.Entities += more.Entities
	known.Bytes += more.Bytes
	known.Writes += more.Writes
	known.Compared += more.Compared
	known.Spent += more.Spent
}

// Expect notes the expected mean size of a job's entities in bytes; 0: unknown. The first known
// size stays.
func (p *Book[Job]) Expect(job Job, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of(job)
	known.expected = cmp.Or(known.expected, bytes)
}

// of returns the page of a job. A new page replaces the least recently used one if the book is
// full.
func (p *Book[Job]) of(job Job) *page {
	known, ok := p.job.Get(job)
	if !ok {
		known = &page{meter: NewMeter(), calls: NewMeter()}
		p.job.Put(job, known, maxJobs, func(job Job, _ *page) bool { return p.InUse != nil && p.InUse(job) })
	}
	return known
}

// Brake returns the brake for calls of the service that a job's function calls.
func (p *Book[Job]) Brake(job Job) *Brake {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &p.of(job).brake
}

// CallMeter returns the meter of a job's calls.
func (p *Book[Job]) CallMeter(job Job) *Meter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(job).calls
}

// Meter returns the meter of a job's pages.
func (p *Book[Job]) Meter(job Job) *Meter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(job).meter
}
