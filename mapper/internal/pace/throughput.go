package pace

import (
	"cmp"
	"sync"
	"time"
)

// A Throughput is what this process has learned of a job's entities.
type Throughput struct {
	Entities, Bytes, Writes int64
	Spent                   time.Duration // on them, by the function
	Squares                 float64       // of the seconds that each took
	expected                int64         // bytes of an entity, where none is known; 0: nobody knows
}

// Reading a page is bounded in memory: as many entities at once as are expected
// to take readBytes, which is two full pages of mutations, and firstRead where
// nothing is known: 100 entities of the largest kind, 1 MiB, are still bearable.
const (
	readBytes = 8 << 20
	firstRead = 100
)

// Chunk returns how many of the next entities to read at once.
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

// Each returns how long the function takes for an entity; 0 is unknown.
func (p Throughput) Each() time.Duration { return p.Spent / time.Duration(max(1, p.Entities)) }

// Uneven reports whether entities take so different times that pages do, too: with a variance
// of five times the square of the mean, pages of 500 differ by a tenth.
func (p Throughput) Uneven() bool {
	n, mean := float64(p.Entities), p.Each().Seconds()
	return n > 0 && p.Squares/n > 6*mean*mean
}

// Fit reports whether so many entities can be read at once.
func (p Throughput) Fit(n int) bool { return p.Entities+p.expected > 0 && p.Chunk(n) == n }

// Book holds the pace of each job that this process has worked for lately.
type Book[Job comparable] struct {
	mu  sync.Mutex
	job map[Job]Throughput
}

// maxPaces bounds what is remembered; a forgotten job starts over.
const maxPaces = 1000

func (p *Book[Job]) Get(job Job) Throughput {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.job[job]
}

// Writes returns how many writes the function makes for an entity: what it did so far, or
// what is usual.
func (p *Book[Job]) Writes(job Job, usual float64) float64 {
	if known := p.Get(job); known.Entities > 0 {
		return float64(known.Writes) / float64(known.Entities)
	}
	return usual
}

// Add adds what was learned.
func (p *Book[Job]) Add(job Job, more Throughput) {
	p.change(job, func(known *Throughput) {
		known.Entities += more.Entities
		known.Bytes += more.Bytes
		known.Writes += more.Writes
		known.Spent += more.Spent
		known.Squares += more.Squares
	})
}

// Expect notes how many bytes an entity has on average; 0 is unknown.
func (p *Book[Job]) Expect(job Job, bytes int64) {
	p.change(job, func(known *Throughput) { known.expected = cmp.Or(known.expected, bytes) })
}

func (p *Book[Job]) change(job Job, f func(*Throughput)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.job == nil || len(p.job) >= maxPaces {
		p.job = make(map[Job]Throughput)
	}
	known := p.job[job]
	f(&known)
	p.job[job] = known
}
