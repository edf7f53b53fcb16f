package pace

import (
	"cmp"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/recent"
)

// A Throughput holds what a process has measured for a job: numbers of entities, bytes and writes,
// and how long the mapper's function ran.
type Throughput struct {
	Entities, Bytes, Writes int64
	Others                  int64         // number of reads of other entities
	Spent                   time.Duration // total time of the function
	expected                int64         // the expected size of an entity in bytes, before one was read; 0: unknown
}

// Limits for the memory of a page. A page reads its entities in chunks of probably readBytes, which
// is twice the largest size of the function's writes in a page. If the size of entities is unknown,
// it reads firstRead entities. Even with the maximum size of 1 MiB, 100 entities fit into memory.
const (
	readBytes = 8 << 20
	firstRead = 100
)

// Chunk returns how many entities a page should read in its next call. It still has to read rest
// entities.
func (p Throughput) Chunk(rest int) int { return min(rest, p.In(readBytes)) }

// In returns how many entities of the job probably fit into this number of bytes. It is at least 1.
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

// Each returns how long the function takes for an entity, on average; 0: unknown.
func (p Throughput) Each() time.Duration { return p.Spent / time.Duration(max(1, p.Entities)) }

// Fit reports whether n entities fit into memory at the same time, by their measured or expected
// size. If the size is unknown, it returns false.
func (p Throughput) Fit(n int) bool { return p.Entities+p.expected > 0 && p.Chunk(n) == n }

// A Book holds the [Throughput] of each job in a process, and the job's brake and meters, which
// limit its rate. The zero value is ready for use. A Book may be used by several goroutines.
type Book[Job comparable] struct {
	// InUse reports whether the process currently works on a job. The book keeps such jobs even if
	// it is full. If InUse is nil, it may forget any job.
	InUse func(Job) bool

	mu  sync.Mutex
	job recent.Map[Job, *entry]
}

// An entry is what a Book holds for one job.
type entry struct {
	Throughput
	brake Brake
	meter *Meter // distributes the job's rate among its pages
	calls *Meter
}

// maxJobs is the largest number of jobs in a book, not counting jobs in use. If a forgotten job
// returns, its measurements start again from zero.
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

// Writes returns the mean number of the function's writes for an entity. If nothing was measured
// yet, it returns usual.
func (p *Book[Job]) Writes(job Job, usual float64) float64 {
	if known := p.Get(job); known.Entities > 0 {
		return float64(known.Writes) / float64(known.Entities)
	}
	return usual
}

// Others returns the mean number of reads of other entities for a processed entity.
func (p *Book[Job]) Others(job Job) float64 {
	known := p.Get(job)
	return float64(known.Others) / float64(max(1, known.Entities))
}

// Add adds new measurements to a job's Throughput.
func (p *Book[Job]) Add(job Job, more Throughput) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of(job)
	known.Entities += more.Entities
	known.Bytes += more.Bytes
	known.Writes += more.Writes
	known.Others += more.Others
	known.Spent += more.Spent
}

// Expect sets the expected mean size of a job's entities in bytes, unless it is already set. Zero
// means unknown.
func (p *Book[Job]) Expect(job Job, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of(job)
	known.expected = cmp.Or(known.expected, bytes)
}

// of returns the entry of a job, and creates it if necessary. If the book is full, it forgets the
// job that was used longest ago.
func (p *Book[Job]) of(job Job) *entry {
	known, ok := p.job.Get(job)
	if !ok {
		known = &entry{meter: NewMeter(), calls: NewMeter()}
		p.job.Put(job, known, maxJobs, func(job Job, _ *entry) bool { return p.InUse != nil && p.InUse(job) })
	}
	return known
}

// Brake returns the job's brake, which limits the rate of its function's calls while a service
// refuses some of them.
func (p *Book[Job]) Brake(job Job) *Brake {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &p.of(job).brake
}

// CallMeter returns the meter that distributes a job's rate of calls among the calls of its
// function.
func (p *Book[Job]) CallMeter(job Job) *Meter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(job).calls
}

// Meter returns the meter that distributes a job's rate among its pages of entities.
func (p *Book[Job]) Meter(job Job) *Meter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of(job).meter
}
