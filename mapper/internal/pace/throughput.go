package pace

import (
	"cmp"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/recent"
)

// A Throughput has what a process has measured for a job: numbers of entities, bytes and writes,
// and the time they took.
type Throughput struct {
	Entities, Bytes, Writes int64
	Compared                int64         // number of entities that transactions have read only for comparison
	Spent                   time.Duration // total time of the function
	expected                int64         // bytes of an entity, expected before one was read; 0: unknown
}

// These constants limit the memory of a page. A page reads as many entities at once as probably
// take readBytes, which is two full pages of mutations. If the size of entities is unknown, it
// reads firstRead entities: 100 entities of the maximum size of 1 MiB still fit into memory.
const (
	readBytes = 8 << 20
	firstRead = 100
)

// Chunk returns how many entities the page should read at once. The page has rest more entities to
// read.
func (p Throughput) Chunk(rest int) int { return min(rest, p.In(readBytes)) }

// In returns how many entities probably fit into the given bytes, at least one.
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

// Fit reports whether n entities fit into memory at once, by their known or expected size. It
// returns false if the size is unknown.
func (p Throughput) Fit(n int) bool { return p.Entities+p.expected > 0 && p.Chunk(n) == n }

// A Book has the Throughput of each job in a process, with the job's brake and meters. The zero
// value is ready for use. Several goroutines may use a Book.
type Book[Job comparable] struct {
	// InUse reports whether the process works on a job at present. The book never forgets such a
	// job. If InUse is nil, it may forget any job.
	InUse func(Job) bool

	mu  sync.Mutex
	job recent.Map[Job, *page]
}

// A page is the entry of a Book for one job. It is not a page of entities.
type page struct {
	Throughput
	brake Brake
	meter *Meter // distributes the job's rate among its pages
	calls *Meter
}

// maxJobs is the largest number of jobs in a book that are not in use. A forgotten job starts again
// without measurements.
const maxJobs = 1000

// Get returns the measurements of a job.
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

// Compared returns how many entities a transaction reads for comparison, as a mean for each entity
// that the function processes.
func (p *Book[Job]) Compared(job Job) float64 {
	known := p.Get(job)
	return float64(known.Compared) / float64(max(1, known.Entities))
}

// Add adds measurements to a job's.
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

// Expect sets the expected mean size of a job's entities in bytes, unless one is set already. 0 is
// unknown.
func (p *Book[Job]) Expect(job Job, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of(job)
	known.expected = cmp.Or(known.expected, bytes)
}

// of returns the entry of a job, or makes it. If the book is full, a new entry replaces the least
// recently used one.
func (p *Book[Job]) of(job Job) *page {
	known, ok := p.job.Get(job)
	if !ok {
		known = &page{meter: NewMeter(), calls: NewMeter()}
		p.job.Put(job, known, maxJobs, func(job Job, _ *page) bool { return p.InUse != nil && p.InUse(job) })
	}
	return known
}

// Brake returns the brake for the calls that a job's function makes of a service.
func (p *Book[Job]) Brake(job Job) *Brake {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &p.of(job).brake
}

// CallMeter returns the meter that distributes a job's rate among its function's calls.
func (p *Book[Job]) CallMeter(job Job) *Meter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(job).calls
}

// Meter returns the meter that distributes a job's rate among its pages.
func (p *Book[Job]) Meter(job Job) *Meter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(job).meter
}
